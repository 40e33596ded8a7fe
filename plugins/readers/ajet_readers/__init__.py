"""Readers: where the tasks of a job come from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ajet import hookimpl

if TYPE_CHECKING:
    from ajet import Plugin
    from ajet_readers.environment_tasks import EnvironmentTasks as EnvironmentTasks
    from ajet_readers.environment_tasks import Gymnasium as Gymnasium
    from ajet_readers.generated import Generated as Generated
    from ajet_readers.huggingface import HuggingFace as HuggingFace
    from ajet_readers.jsonl import JsonLines as JsonLines
    from ajet_readers.random_tasks import RandomTasks as RandomTasks
    from ajet_readers.reasoning import ReasoningGym as ReasoningGym
    from ajet_readers.traces import Traces as Traces

_WHERE = {
    "EnvironmentTasks": "environment_tasks",
    "Generated": "generated",
    "Gymnasium": "environment_tasks",
    "HuggingFace": "huggingface",
    "JsonLines": "jsonl",
    "RandomTasks": "random_tasks",
    "ReasoningGym": "reasoning",
    "Traces": "traces",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Each is imported when it is first used: `ajet --help` imports this package for its command."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


@hookimpl
def ajet_plugins() -> list[type[Plugin]]:
    return [__getattr__(name) for name in _WHERE]
