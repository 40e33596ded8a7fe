"""Online training: agents that improve from the feedback of their users."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ajet import hookimpl

if TYPE_CHECKING:
    from ajet import Plugin
    from ajet.interfaces.source import EpisodeSource
    from ajet_online.reader import StoreReader
    from ajet_online.runner import (
        Counts,
        ExplicitMarking,
        Request,
        Runner,
        SamplingRate,
        Selection,
        ShadowRun,
        guard_tools,
        in_shadow_run,
        mark,
        marked,
        read_only,
    )

__all__ = [
    "StoreReader",
    "Runner",
    "ShadowRun",
    "Selection",
    "Request",
    "SamplingRate",
    "ExplicitMarking",
    "mark",
    "marked",
    "read_only",
    "guard_tools",
    "in_shadow_run",
    "Counts",
]


def __getattr__(name: str) -> Any:
    """The names are imported when they are first used: `ajet --help` imports this package for its command."""
    if name in __all__:
        module = "reader" if name == "StoreReader" else "runner"
        return getattr(importlib.import_module(f"ajet_online.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    from ajet_online.algorithms import KTO, Reinforce
    from ajet_online.reader import StoreReader

    return [StoreReader, Reinforce, KTO]


@hookimpl
def ajet_episode_source(where: str) -> EpisodeSource | None:
    from ajet_online.source import open_source

    return open_source(where)
