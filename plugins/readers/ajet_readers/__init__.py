"""Readers: where the tasks of a job come from."""

from __future__ import annotations

from ajet import Plugin, hookimpl
from ajet_readers.environment_tasks import EnvironmentTasks, Gymnasium
from ajet_readers.generated import Generated
from ajet_readers.huggingface import HuggingFace
from ajet_readers.jsonl import JsonLines
from ajet_readers.random_tasks import RandomTasks
from ajet_readers.reasoning import ReasoningGym
from ajet_readers.traces import Traces

__all__ = [
    "EnvironmentTasks",
    "Generated",
    "Gymnasium",
    "HuggingFace",
    "JsonLines",
    "RandomTasks",
    "ReasoningGym",
    "Traces",
]


@hookimpl
def ajet_plugins() -> list[type[Plugin]]:
    return [JsonLines, HuggingFace, EnvironmentTasks, Gymnasium, ReasoningGym, Generated, Traces, RandomTasks]
