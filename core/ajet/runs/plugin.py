"""The backbone `debug`, registered like that of any plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ajet.hookspecs import hookimpl

if TYPE_CHECKING:
    from ajet.job.job import Backbone


@hookimpl
def ajet_backbones() -> Iterable[type[Backbone]]:
    from ajet.runs.debug import Debug

    return [Debug]
