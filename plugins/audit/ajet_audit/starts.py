"""Where forks and steered episodes begin: what they replay was sampled before, by the episode that they name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ajet_audit.files import Folder
from ajet_audit.journal import Journal, JournalCall, JournalEpisode

Message = Mapping[str, Any]


class Starts:
    """Finds the episodes whose calls others replay: a fork's in its group, a steered episode's in the journal of earlier steps."""

    def __init__(self, folder: Folder, journal: Journal) -> None:
        self._journal = journal
        self._is_steered = bool(folder.setting("rollout.steer"))
        self._read: dict[int, JournalEpisode] = {}
        """The start that was read last, by its place: those of a group follow each other."""
        demonstrations = (folder.setting("rollout.steer") or {}).get("demonstrations")
        self._file = Path(demonstrations) if demonstrations else None
        self._given: Mapping[str, tuple[str, Sequence[Message]]] | None = None
        self.notes: list[str] = []
        """What could not be checked, and why."""

    def unlike(self, episode: JournalEpisode, by_id: Mapping[str, JournalEpisode]) -> str:
        """How what an episode replays is not what its parent sampled up to there; empty if it is, and if it replays nothing."""
        if (fork := episode.line.get("fork")) is None:
            return ""
        if not episode.is_steered:
            parent = by_id.get(fork["parent"])
            if parent is None or parent.group != episode.group:
                return f"it is a fork of episode {fork['parent']}, which its group does not have"
            return _unlike(episode, parent)
        if not self._is_steered:
            return "it begins with calls of an earlier episode, but the job has no rollout.steer"
        name = f"it begins with calls of episode {fork['parent']}, which"
        entry = self._journal.before(fork["parent"], episode.place)
        if entry is None and self._file and fork["parent"].startswith(f"{self._file.name}:"):
            return self._unlike_demonstration(episode, self._file, fork["parent"][len(self._file.name) + 1 :])
        if entry is None:
            return f"{name} the journal does not have before it"
        if entry.phase != "train" or entry.step >= episode.line["step"] or entry.done_again:
            again = " and was done again" if entry.done_again else ""
            return f"{name} is one of {entry.phase} at step {entry.step}{again}"
        if entry.place not in self._read:
            self._read = {entry.place: self._journal.episode(entry)}
        start = self._read[entry.place]
        if start.line["task"] != episode.line["task"]:
            return f"{name} is of task {start.line['task']}"
        if start.line["failure"]:
            return f"{name} failed ({start.line['failure']})"
        return _unlike(episode, start)

    def _unlike_demonstration(self, episode: JournalEpisode, file: Path, name: str) -> str:
        """The same for an episode that begins with the answers of a demonstration."""
        if self._given is None:
            self._given = _demonstrations(file)
            if not self._given:
                self.notes.append(f"answers of demonstrations, as {file} cannot be read")
        if not self._given:
            return ""
        if name not in self._given:
            return f"it begins with the demonstration {name} of {file.name}, which the file does not have"
        task, answers = self._given[name]
        if task != episode.line["task"]:
            return f"it begins with the demonstration {name} of {file.name}, which is of task {task}"
        for call in episode.path:
            if call.replayed and not (call.versions == -1).all():
                return f"call {call.number} is an answer of a demonstration, but has a weight version"
            if call.replayed and _said(_answer(episode, call)) != _said(answers[call.place or 0]):
                return f"call {call.number} is not the answer of the demonstration {name} of {file.name}"
        return ""


def _demonstrations(file: Path) -> dict[str, tuple[str, Sequence[Message]]]:
    """The task and the answers of each demonstration, by what follows the file's name in its id."""
    try:
        if file.suffix == ".json":
            return {
                episode["id"]: (
                    episode["task"]["id"],
                    [
                        call["reply"]["message"]
                        for call in episode.get("calls", ())
                        if call.get("reply") and call["request"].get("messages")
                    ],
                )
                for episode in json.loads(file.read_bytes())["episodes"]
            }
        lines = {
            str(n): json.loads(line)
            for n, line in enumerate(file.read_bytes().split(b"\n"), 1)
            if line.strip()
        }
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return {
        number: (str(line["task"]), [m for m in line["messages"][1:] if m["role"] == "assistant"])
        for number, line in lines.items()
    }


def _answer(episode: JournalEpisode, call: JournalCall) -> Message:
    return episode.chat(call.data["key"], call.data["answer"])[-1]


def _said(message: Message) -> tuple[str, list[tuple[str, Any]]]:
    """The text of an answer without the space around it, and its tool calls."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    called = [call["function"] for call in message.get("tool_calls") or ()]
    return content.strip(), [(f["name"], _read(f.get("arguments"))) for f in called]


def _read(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _unlike(episode: JournalEpisode, parent: JournalEpisode) -> str:
    fork = episode.line["fork"]
    shared = parent.path[: fork["calls"]]
    replayed = [call for call in episode.path if call.replayed]
    for call in replayed:
        others = shared if call.place is None else shared[call.place : call.place + 1]
        if not any(call.checksum == o.checksum and np.array_equal(call.ids, o.ids) for o in others):
            return f"call {call.number}, which is replayed, is not one of its parent"
    if not episode.line["failure"] and len(replayed) != fork["calls"]:
        return f"it replays {len(replayed)} calls of its parent, but left it after {fork['calls']}"
    return ""
