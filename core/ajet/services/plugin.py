"""Chat models, and services that are commands, registered like those of any plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ajet.hookspecs import hookimpl

if TYPE_CHECKING:
    from ajet.interfaces.base import Plugin


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    from ajet.interfaces.service import Command
    from ajet.services.chat_models import OpenAIChatModel, ScriptChatModel

    return [OpenAIChatModel, ScriptChatModel, Command]
