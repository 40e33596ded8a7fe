"""Where forks and steered episodes begin: what they replay was sampled before, by the episode that they name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ajet_audit.files import Folder
from ajet_audit.journal import Journal, JournalEpisode


class Parents:
    """Finds the episodes whose calls others replay: a fork's in its group, a steered episode's in the journal of earlier steps."""

    def __init__(self, folder: Folder, journal: Journal) -> None:
        self._journal = journal
        self._is_steered = bool(folder.setting("rollout.steer"))
        self._read: dict[int, JournalEpisode] = {}
        """The start that was read last, by its place: those of a group follow each other."""

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
