"""Reads `rollout.steer.demonstrations`: transcripts, or a recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet.capture.demonstrated import Demonstration
from ajet.learning.sft import checked_transcript, messages_of, read_lines
from ajet.rollout.recording import Recording
from ajet.types import ConfigError, Task


def read_demonstrations(path: Path) -> list[Demonstration]:
    """The demonstrations of a file with at least two answers, as a group begins with all but the last: successful episodes of a
    recording (``.json``), else transcripts in JSON lines with the id of their ``task``. Raises ConfigError."""
    read = _recorded(path) if path.suffix == ".json" else read_lines(path, "demonstration", _transcript)
    usable = [demonstration for demonstration in read if len(demonstration.answers) > 1]
    if not usable:
        raise ConfigError(
            "rollout.steer.demonstrations",
            f"{path}: none of its {len(read)} demonstrations has two answers, of which the first could be given to the agent.",
        )
    return usable


def demonstrations_of(tasks: Sequence[Task], path: Path | None) -> list[Demonstration]:
    """Those of some tasks in a file, if there is one. Raises ConfigError if it has none of them."""
    if path is None:
        return []
    read, known = read_demonstrations(path), {task.id for task in tasks}
    if not (own := [demonstration for demonstration in read if demonstration.task in known]):
        raise ConfigError(
            "rollout.steer.demonstrations",
            f"{path}: none of its {len(read)} demonstrations is of a task of the job. The first is of {read[0].task!r}; the job's "
            f"tasks are {', '.join(repr(task.id) for task in tasks[:3])}…",
        )
    return own


def _recorded(path: Path) -> list[Demonstration]:
    return [
        Demonstration(
            f"{path.name}:{episode.id}",
            episode.task.id,
            [(c.request.messages, c.reply.message) for c in episode.calls if c.reply and c.request.messages],
        )
        for episode in Recording.read(path).episodes
        if (verdict := episode.verdict)
        and (verdict.reward >= 0.5 if verdict.is_success is None else verdict.is_success)
    ]


def _transcript(data: Mapping[str, Any], where: str) -> Demonstration:
    task = data.get("task")
    if not isinstance(task, str | int):
        raise ConfigError(where, "needs `task`, the id of the task that it demonstrates.")
    messages = messages_of(data.get("messages"), "messages", where)
    checked_transcript(messages, data.get("tools") or (), where)
    return Demonstration(Path(where).name, str(task), list(_answers(messages)))


def _answers(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Sequence[Mapping[str, Any]], Any]]:
    for index, message in enumerate(messages):
        if index and message["role"] == "assistant":
            yield messages[:index], message
