"""Episodes that a run has taken over from the run whose wrong judge it corrects: are they what that run recorded, with the new
verdicts?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ajet import AjetError
from ajet_audit.files import Folder
from ajet_audit.journal import JOURNAL, JournalEpisode

PARENT = "parent.json"
_CREDIT = ("reward", "rewards", "call_rewards")
_VERDICT = (*_CREDIT, "is_success")
_ANEW = {*_VERDICT, "failure", "error", "feedback", "parent", "calls"}
"""What a line need not have in common with that of the parent's journal; calls are compared one by one."""


class ParentRun:
    """The run that ``parent.json`` names."""

    def __init__(self, folder: Folder, names: Iterable[str]) -> None:
        """``names`` are the ids of the episodes that were taken over."""
        self.missing = ""
        """Why nothing can be compared."""
        self._after, self._shared = 0, -1
        self._verdicts: Mapping[str, Any] = {}
        self._lines: dict[str, JournalEpisode] = {}
        wanted = set(names)
        if not wanted:
            return
        try:
            told = json.loads(folder.read(PARENT))
            self._verdicts, journal = {**told["verdicts"]}, Path(told["run"]) / JOURNAL
            self._after, self._shared = int(told["after_step"]), int(told["shared_version"])
            if not journal.is_file():
                self.missing = f"the journal of {journal.parent} is not there"
                return
            with journal.open("rb") as file:
                for raw in file:
                    line = json.loads(raw) if raw.endswith(b"\n") else {}
                    if line.get("type") == "episode" and line["id"] in wanted:
                        self._lines[line["id"]] = JournalEpisode(line)
        except (AjetError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            folder.faults.append(f"{PARENT}: it does not say which run episodes were taken from ({error})")
            self.missing = "it is not known"

    def fault(self, episode: JournalEpisode, step: int, version: float) -> str:
        """How an episode of a step, which ended with this weight version, differs from what it should be; empty if it does not."""
        is_shared = step > self._after and version <= self._shared
        if "parent" not in episode.line:
            return "it is new, but its update counts as one of the parent's" if is_shared else ""
        if self.missing:
            return ""
        verdict, own = self._verdicts.get(episode.id), _verdict(episode.line)
        if verdict is None:
            return "it is marked as one of the parent's, but was not taken over"
        if own != _verdict(verdict):
            return f"its verdict is {own}, but judged anew it was {_verdict(verdict)}"
        if (parent := self._lines.get(episode.id)) is None:
            return "it is not in the journal of the parent"
        if is_shared and _verdict(parent.line, _CREDIT) != _verdict(verdict, _CREDIT):
            return "its verdict has changed, but its update counts as one of the parent's"
        try:
            is_same = _apart(episode.line) == _apart(parent.line) and len(parent.calls) == len(episode.calls)
            for number, call in episode.calls.items():
                other = parent.calls[number]
                is_same &= _apart(call.data["tokens"]) == _apart(other.data["tokens"])
                is_same &= {**call.data, "tokens": 0} == {**other.data, "tokens": 0}
                # As many versions before the last one that both runs have as the parent's are after it.
                behind = np.where(
                    other.versions > self._shared, 2 * self._shared - other.versions, other.versions
                )
                if not np.array_equal(call.versions, behind):
                    return f"call {number}: its weight versions are not those that the parent's give"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return f"it cannot be compared with the parent's ({error!r})"
        return "" if is_same else "it is not what the parent recorded"


def _verdict(line: Mapping[str, Any], names: Iterable[str] = _VERDICT) -> dict[str, Any]:
    """The verdict of a line, without what is empty."""
    return {name: line[name] for name in names if line.get(name) not in (None, {})}


def _apart(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in _ANEW and name != "versions"}
