"""The backbone `debug`, registered like that of any plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ajet.hookspecs import hookimpl

if TYPE_CHECKING:
    from ajet.interfaces.base import Plugin


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    from ajet.runs.debug import Debug

    return [Debug]
