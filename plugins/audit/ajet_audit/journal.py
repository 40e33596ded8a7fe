"""The journal: every episode that the run recorded, and its calls with their tokens.

An episode's line stores tokens as branches (parent, length at which it is left, tokens) and chats as (message before,
message). A call names two positions (branch, length): the ends of its prompt and of its answer.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ajet_audit.files import Folder

JOURNAL = "episodes.jsonl"
ROUNDING = 1e-4
"""How far a logprob may be above 0, because floating point rounds."""


@dataclass(slots=True)
class JournalEntry:
    """Where an episode's line is, and what became of it."""

    id: str
    phase: str
    step: int
    place: int
    length: int
    done_again: bool = False
    """Whether a resumed run superseded it."""
    is_latest: bool = True
    """Whether no later line has its id."""
    is_taken: bool = False
    """Whether it is one of the run whose judge this one corrects."""


@dataclass(frozen=True)
class JournalCall:
    """One call that an engine answered."""

    data: Mapping[str, Any]
    episode: JournalEpisode = field(repr=False)

    @property
    def number(self) -> int:
        return int(self.data["number"])

    @property
    def start(self) -> int:
        """The length of its prompt."""
        return int(self.data["tokens"]["prompt"][1])

    @property
    def end(self) -> int:
        """The length of prompt and answer."""
        return int(self.data["tokens"]["end"][1])

    @cached_property
    def ids(self) -> Any:
        """int32: its prompt and its answer."""
        return self.episode.sequence(self.data["key"], *self.data["tokens"]["end"])

    @property
    def trained(self) -> bool:
        return bool(self.data["tokens"]["trained"])

    @property
    def side(self) -> bool:
        return bool(self.data["tokens"].get("side"))

    @property
    def replayed(self) -> bool:
        """Whether a fork got the answer from its parent, which sampled it."""
        return bool(self.data["tokens"].get("replayed"))

    @property
    def place(self) -> int | None:
        """Where the call that it replays is on its parent's path; None if unknown."""
        place = self.data["tokens"].get("place")
        return None if place is None else int(place)

    @cached_property
    def versions(self) -> Any:
        """int32: the weight version that sampled each token."""
        return np.frombuffer(base64.b64decode(self.data["tokens"]["versions"]), "<i4")

    @cached_property
    def logprobs(self) -> Any:
        """float32: those of its tokens when they were sampled."""
        return np.frombuffer(base64.b64decode(self.data["tokens"]["logprobs"]), "<f4")

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of its logprobs."""
        return zlib.crc32(self.logprobs.tobytes())

    def fault(self) -> str:
        """Whether its own numbers contradict each other; empty if not."""
        count, logprobs = self.end - self.start, len(self.logprobs)
        if not count == logprobs == len(self.versions):
            return f"it has {count} tokens, {logprobs} logprobs and {len(self.versions)} weight versions"
        good = (self.logprobs > -np.inf) & (self.logprobs <= ROUNDING)  # NaN is neither
        if not good.all():
            return f"the logprob of a token is {self.logprobs[good.argmin()]:g}"
        if self.replayed and "fork" not in self.episode.line:
            return "it is marked as replayed, but its episode is not a fork"
        if len(self.ids) != self.end:
            return f"{len(self.ids)} of its {self.end} tokens are there"
        prompt = self.episode.sequence(self.data["key"], *self.data["tokens"]["prompt"])
        return "" if np.array_equal(prompt, self.ids[: self.start]) else "its prompt is not what it continues"


class JournalEpisode:
    """An episode's line."""

    def __init__(self, line: Mapping[str, Any], place: int = 0) -> None:
        self.line = line
        self.place = place
        """The byte at which it begins."""
        self.id: str = line["id"]
        self.calls = {c["number"]: JournalCall(c, self) for c in line["calls"] if "tokens" in c}
        self.others = [c for c in line["calls"] if "tokens" not in c]
        """Calls that a chat model answered, whose tokens are unknown."""

    @property
    def path(self) -> list[JournalCall]:
        """Its calls as forks count them: those that it replays, in its parent's order, then its own."""
        calls = self.calls.values()
        return sorted(
            calls, key=lambda c: (not c.replayed, c.place if c.replayed and c.place else 0, c.number)
        )

    def sequence(self, key: str, branch: int, length: int) -> Any:
        """int32: the tokens from the root to a position of a tree."""
        rows, parts = self.line["trees"][key], []
        while branch >= 0:
            parent, start, data = rows[branch]
            parts.append(np.frombuffer(base64.b64decode(data), "<i4")[: max(length - start, 0)])
            branch, length = parent, min(length, start)
        return np.concatenate(parts[::-1])

    def chat(self, key: str, end: int) -> list[dict[str, Any]]:
        """The messages up to one of them."""
        rows, messages = self.line["chats"][key], []
        while end >= 0:
            end, message = rows[end]
            messages.append(message)
        return messages[::-1]

    @property
    def is_steered(self) -> bool:
        """Whether it begins, as its whole group, with calls of an episode of an earlier step."""
        return bool(self.line.get("fork", {}).get("steered"))

    @property
    def group(self) -> str:
        """The name of its group: its id without its number there."""
        return self.id.rsplit("/", 1)[0]

    def sampled(self) -> int:
        """The number of tokens that its recorded calls sampled."""
        return sum(c.end - c.start for c in self.calls.values() if not c.replayed)

    def to_train(self) -> int:
        """How many of them were sampled for training."""
        return sum(c.end - c.start for c in self.calls.values() if c.trained)

    def unrecorded(self) -> int:
        """Tokens that its calls sampled beside the recorded ones: those of attempts before the last one, and answers that no
        client got. 0 where they cannot be told apart from another model's."""
        spent = self.line.get("spent", {}).get("completion_tokens", 0)
        return 0 if self.others else max(spent - self.sampled(), 0)


class Journal:
    """All episodes of a run; their lines are read when they are needed."""

    def __init__(self, folder: Folder) -> None:
        self._path = folder.path / JOURNAL
        self.entries: list[JournalEntry] = []
        self._by_id: dict[str, list[JournalEntry]] = {}
        latest: dict[str, JournalEntry] = {}
        for place, raw in folder.lines(JOURNAL):
            try:
                line = json.loads(raw)
            except ValueError:
                folder.faults.append(f"{JOURNAL}, byte {place}: the line is not JSON")
                continue
            if line["type"] == "superseded":
                again = line["from_step"] in folder.resumed_from or line.get("validation")
                for entry in self.entries if again and not line.get("unused") else ():
                    inside = line["from_step"] <= entry.step <= line.get("to_step", entry.step)
                    entry.done_again |= inside and entry.id not in line["keep"]
            elif line["type"] == "episode":
                entry = JournalEntry(line["id"], line["phase"], line["step"], place, len(raw))
                entry.is_taken = "parent" in line
                if entry.id in latest:
                    if not latest[entry.id].done_again:
                        folder.faults.append(
                            f"{JOURNAL}: episode {entry.id} is there twice, and no resume explains it"
                        )
                    latest[entry.id].is_latest = False
                latest[entry.id] = entry
                self.entries.append(entry)
                self._by_id.setdefault(entry.id, []).append(entry)

    def episode(self, entry: JournalEntry) -> JournalEpisode:
        """The episode of an entry."""
        with self._path.open("rb") as file:
            file.seek(entry.place)
            return JournalEpisode(json.loads(file.read(entry.length)), entry.place)

    def before(self, id: str, place: int) -> JournalEntry | None:
        """The last entry of an episode before a place; None if there is none."""
        return next((e for e in reversed(self._by_id.get(id, ())) if e.place < place), None)
