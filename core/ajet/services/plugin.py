"""Chat models, services and workflows that are commands, registered like those of any plugin."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.hookspecs import hookimpl

if TYPE_CHECKING:
    from ajet.interfaces.base import Plugin
    from ajet.interfaces.workflow import LoadedWorkflow


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    from ajet.interfaces.service import Command
    from ajet.services.chat_models import OpenAIChatModel, ScriptChatModel

    return [OpenAIChatModel, ScriptChatModel, Command]


@hookimpl
def ajet_workflows(workflow: Any, folder: Path) -> LoadedWorkflow | None:
    if not isinstance(workflow, str) or not workflow.startswith("cmd:"):
        return None
    from ajet.services.command_workflow import command_workflow

    return command_workflow(workflow, folder)
