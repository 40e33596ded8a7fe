"""Online training: agents that improve from the feedback of their users."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ajet import Reader, hookimpl
from ajet_online.reader import StoreReader

if TYPE_CHECKING:
    from ajet import Algorithm
    from ajet_online.runner.runner import Model, Runner, ShadowRun
    from ajet_online.runner.selection import Context, ExplicitMarking, SamplingRate, Selection, Strategy, mark
    from ajet_online.runner.tools import guard_tools, read_only

__all__ = [
    "Context",
    "ExplicitMarking",
    "Model",
    "Runner",
    "SamplingRate",
    "Selection",
    "ShadowRun",
    "StoreReader",
    "Strategy",
    "guard_tools",
    "mark",
    "read_only",
]
_MODULES = {
    "ajet_online.runner.runner": ("Model", "Runner", "ShadowRun"),
    "ajet_online.runner.selection": (
        "Context",
        "ExplicitMarking",
        "SamplingRate",
        "Selection",
        "Strategy",
        "mark",
    ),
    "ajet_online.runner.tools": ("guard_tools", "read_only"),
}


def __getattr__(name: str) -> Any:
    """The names of the runner library, which is imported when it is used: every `ajet --help` imports this module."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@hookimpl
def ajet_readers() -> list[type[Reader]]:
    return [StoreReader]


@hookimpl
def ajet_algorithms() -> Iterable[type[Algorithm]]:
    from ajet_online.algorithms import KTO, Reinforce

    return [Reinforce, KTO]
