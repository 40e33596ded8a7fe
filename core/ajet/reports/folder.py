"""Reads a run folder in any state: finished, still growing, or cut off by a kill.

The journal is read as a stream and kept as one small `Entry` per line; an episode's tokens are read from
the file again on demand.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ajet.rollout.episode import Episode, Fork, Plan
from ajet.rollout.journal import episode_from_json
from ajet.rollout.recorder import JOURNAL, METRICS, Place, live, live_lines
from ajet.types import AjetError, ConfigError, Task
from ajet.utils.suggest import nearest

_GROUP = re.compile(r"(\d+)\.(\d+)/")


@dataclass(frozen=True, slots=True)
class EndedEpisode:
    """An episode and its outcome, as every report has it."""

    id: str
    phase: str
    step: int
    task: str
    member: int
    attempt: int
    """0 for the first."""
    failure: str | None
    error: str
    reward: float
    is_success: bool | None
    rewards: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Entry(EndedEpisode):
    """The part of a journal line that is kept in memory. ``offset`` is where the line begins."""

    offset: int
    seconds: float
    calls: int
    sampled: int
    """Tokens that its calls sampled; 0 if a chat model answered."""
    trainable: int
    """Tokens of calls that are trained."""
    counters: Mapping[str, int]
    breaks: Mapping[str, int]
    """Breaks by cause."""
    call_rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards of single calls, by number."""
    fork: Fork | None = None
    trained: Sequence[tuple[str, str]] = ()
    """Agent and target of the calls that are trained, each pair once."""

    @property
    def group(self) -> tuple[str, int, str] | None:
        """The key that episodes of one task in one step share; None if episodes have no group (validation)."""
        group = group_of(self.id)
        return (self.phase, self.step, group) if group else None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The contents of a run folder. ``entries`` are the live ones, in the order of the journal."""

    dir: Path
    job: Mapping[str, Any]
    """The resolved job; empty if the folder has none."""
    entries: Sequence[Entry]
    metrics: Sequence[Mapping[str, Any]]

    def find(self, text: str) -> Entry:
        """The episode with an id, or with a unique part of one. Raises ConfigError, which names similar ids."""
        for fits in (str.__eq__, str.startswith, str.__contains__):
            matching = [entry for entry in self.entries if fits(entry.id, text)]
            if len(matching) == 1:
                return matching[0]
            if matching:
                some = ", ".join(entry.id for entry in matching[:5])
                more = ", …" if len(matching) > 5 else ""
                raise ConfigError(
                    f"{text}: {len(matching)} episodes of {self.dir} have this in their id: {some}{more}. Use a longer part of the id."
                )
        hint = nearest(text, [entry.id for entry in self.entries])
        first = ", ".join(entry.id for entry in self.entries[:3])
        known = f"Ids look like {first}." if first else "No episode has ended yet."
        raise ConfigError(f"{text}: no such episode in {self.dir}{hint}. {known}")

    def members(self, entry: Entry) -> list[Entry]:
        """The episodes of an episode's group, itself included, by member."""
        return sorted((e for e in self.entries if e.group == entry.group), key=lambda e: e.member)

    def together(self, entry: Entry) -> list[Entry]:
        """The episodes of an episode's step and phase, itself included."""
        return [e for e in self.entries if (e.phase, e.step) == (entry.phase, entry.step)]

    def line(self, entry: Entry) -> dict[str, Any]:
        """An episode's line of the journal. Raises AjetError if it has changed."""
        with (self.dir / JOURNAL).open("rb") as file:
            file.seek(entry.offset)
            raw = file.readline()
        try:
            line: dict[str, Any] = json.loads(raw)
        except ValueError:
            line = {}
        if line.get("id") != entry.id:
            raise AjetError(f"{self.dir / JOURNAL} changed while it was being read; try again.")
        return line

    def episode(self, entry: Entry) -> Episode:
        """The whole episode, its messages and tokens rebuilt. Raises AjetError if its line has changed, or was not written by this
        version."""
        line = self.line(entry)
        try:
            return episode_of(line)
        except _FOREIGN as error:
            raise _foreign(f"{self.dir / JOURNAL}: {entry.id}", error) from None


_KIND = re.compile(r"-(check|forecast|eval|debug)(?:-\d+)?$")
_FOREIGN = (AttributeError, LookupError, TypeError, ValueError)
"""What reading a line raises that this version has not written."""


def _foreign(where: str, error: Exception) -> AjetError:
    return AjetError(
        f"{where}: not a line of this version's journal ({type(error).__name__}: {error}). Read it with the version in "
        "versions.json."
    )


def group_of(episode_id: str) -> str | None:
    """What the ids of a group's episodes have in common; None if an episode has no group."""
    match = _GROUP.match(episode_id)
    return match[0] if match else None


def episode_of(line: Mapping[str, Any]) -> Episode:
    """The whole episode of a journal line, its task, messages and tokens rebuilt."""
    match, given = _GROUP.match(line["id"]), line.get("given", {})
    messages = tuple(given.get("messages", ()))
    task = Task(line["task"], given.get("query", ""), messages, given.get("metadata", {}))
    return episode_from_json(line, Plan(line["id"], "", task, line["member"], int(match[2]) if match else 0))


def find_run(path: Path) -> Path:
    """A run folder, or the newest one in a folder of runs; one that trained, if any did. Raises ConfigError if there is none."""
    if (path / JOURNAL).is_file():
        return path
    if not path.is_dir():
        raise ConfigError(
            f"{path}: no such folder. Name the folder of a run, such as runs/20250131-120000, or of runs."
        )
    runs = [folder for folder in path.iterdir() if (folder / JOURNAL).is_file()]
    if not runs:
        raise ConfigError(
            f"{path}: not a run folder or a folder of runs: neither it nor a folder in it has an {JOURNAL}."
        )
    return max(runs, key=lambda run: (not untrained_kind(run.name), *_started(run)))


def untrained_kind(name: str) -> str:
    """What a run did in place of training, which ends its folder's name: check, forecast, eval or debug; empty if it trained."""
    match = _KIND.search(name)
    return match[1] if match else ""


def read_run(run_dir: Path) -> RecordedRun:
    """Read a run folder. Raises AjetError, which names file and line, if a line before the last is damaged."""
    return RecordedRun(run_dir, read_job(run_dir), _live(run_dir / JOURNAL), live_lines(run_dir / METRICS))


def _started(run_dir: Path) -> tuple[float, str]:
    first = run_dir / "job.yaml"
    return (first if first.is_file() else run_dir / JOURNAL).stat().st_mtime, run_dir.name


def read_job(run_dir: Path) -> Mapping[str, Any]:
    """The resolved job of a run folder, empty if it has none. Raises ConfigError if it cannot be read."""
    from ajet.job.config import read_job_file

    path = run_dir / "job.yaml"
    return read_job_file(path) if path.is_file() else {}


OUTCOME = tuple(field.name for field in fields(EndedEpisode))


def _live(path: Path) -> list[Entry]:
    """The live lines of a journal, as entries."""

    def entry(place: Place, line: Mapping[str, Any]) -> Entry:
        try:
            return _entry(line, place.byte)
        except _FOREIGN as error:
            raise _foreign(f"{path}:{place.line}", error) from None

    return live(path, entry)


_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("id", "phase", "task"), str),
    **dict.fromkeys(("step", "member"), int),
    **{"reward": int | float, "rewards": dict},
}
"""What a line's fields are, of which a report would notice only late that they are not."""


def _entry(line: Mapping[str, Any], offset: int) -> Entry:
    for name, kind in _KINDS.items():
        if not isinstance(line[name], kind):
            raise TypeError(f"{name} is {line[name]!r}")
    tokens = [call["tokens"] for call in line["calls"] if "tokens" in call]
    trained = {(c["agent"], c["target"]) for c in line["calls"] if c.get("tokens", {}).get("trained")}
    return Entry(
        offset=offset,
        calls=len(line["calls"]),
        sampled=sum(_count(t["logprobs"]) for t in tokens),
        trainable=sum(_count(t["logprobs"]) for t in tokens if t["trained"]),
        breaks=Counter(b["cause"] for b in line["breaks"]),
        call_rewards=line.get("call_rewards", {}),
        fork=Fork(**line["fork"]) if "fork" in line else None,
        trained=sorted(trained),
        **{name: line[name] for name in (*OUTCOME, "seconds", "counters")},
    )


def _count(packed: str) -> int:
    """How many four-byte numbers a base64 text encodes."""
    return (len(packed) * 3 // 4 - packed[-2:].count("=")) // 4
