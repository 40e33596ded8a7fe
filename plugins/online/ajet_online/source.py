"""The store as episodes for `ajet studio`: one for each conversation."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ajet import AjetError, Task, WorkflowOutput
from ajet.interfaces.source import EpisodeSource
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.journal import episode_to_json
from ajet.rollout.recorder import JOURNAL, METRICS
from ajet.runs.run_dir import TOKENIZER
from ajet.tracker.record import EpisodeRecord
from ajet.utils.files import writing
from ajet_online.changes import changes, newest
from ajet_online.database import is_store
from ajet_online.overview import bounds_of, moment, tables
from ajet_online.recall import restore
from ajet_online.schema import TraceState
from ajet_online.store import TraceStore
from ajet_online.trace import Trace
from ajet_online.versions import Versions

PHASE = "online"
MOST = 20_000
"""Replies that are read when the studio starts, the newest ones."""
SUMMARY_SECONDS = 10.0
"""Seconds between two looks at the ratings of all versions, which read an index of all traces."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def open_source(where: str) -> StoreSource | None:
    """The store at a URL, or in a file of SQLite. None if it is neither. Raises AjetError if it cannot be opened."""
    if "://" not in where:
        try:
            if not is_store(Path(where).expanduser()):
                return None
        except (OSError, sqlite3.Error):
            return None
    return StoreSource(TraceStore.open(where, "write"))


class StoreSource(EpisodeSource):
    """See `EpisodeSource`. ``step`` of an episode is the newest version that sampled its replies."""

    def __init__(self, store: TraceStore) -> None:
        self._store, self._versions = store, Versions(store)
        self.name = store.name
        self._guard = threading.Lock()
        self._mark = newest(store, MOST)
        self._recent: dict[str, list[tuple[object, ...]]] = {}
        """Conversations of the last update, as they were written."""
        self._summed = self._tabled = -SUMMARY_SECONDS
        self._tables: Mapping[str, Sequence[Mapping[str, Any]]] = {}

    def update(self, folder: Path) -> bool:
        """See `EpisodeSource`."""
        with self._guard, writing(folder):
            if time.monotonic() - self._summed >= SUMMARY_SECONDS:
                self._summarise(folder)
                self._summed = time.monotonic()
            latest = changes(self._store, self._mark)
            written = {}
            lines = []
            for name, own in self._store.conversations(latest.conversations).items():
                written[name] = [_state(trace) for trace in own]
                if self._recent.get(name) != written[name]:
                    lines.append(_line(name, own))
            if lines:
                replaced = {"type": "replaced", "ids": [line["id"] for line in lines]}
                with (folder / JOURNAL).open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(line) + "\n" for line in (replaced, *lines))
            self._mark, self._recent = latest.mark, written
            return latest.more

    def ratings(self, episode: str) -> Sequence[Mapping[str, Any]]:
        """See `EpisodeSource`."""
        bounds = bounds_of(self._store)
        return [
            {
                "rating": None if trace.reward is None else _rating(trace.reward, bounds),
                "comment": trace.comment or "",
                "correction": trace.correction or "",
                "time": moment(trace.rated_at or trace.at),
            }
            for trace in sorted(self._store.conversation(episode), key=lambda trace: trace.rated_at or 0.0)
            if trace.state != TraceState.RECORDED
        ]

    def rate(self, episode: str, rating: float | None, comment: str, correction: str) -> None:
        """See `EpisodeSource`. The rating is of all replies of the conversation, comment and correction are of the last one."""
        own = [trace.id for trace in self._store.conversation(episode)]
        if not own:
            raise AjetError(f"{episode}: no such conversation in {self.name}; it was pruned")
        low, high = bounds_of(self._store)
        reward = None if rating is None else low + (high - low) * (rating + 1) / 2
        last, before = own[-1:], own[:-1]
        rated = self._store.rate(
            last, reward, episode, "0", comment=comment or None, correction=correction or None
        )
        if not rated.new:
            raise AjetError(f"{episode}: the last reply has feedback already, and only the first one counts")
        if reward is not None and before:
            self._store.rate(before, reward, episode, "0")

    def tables(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """See `EpisodeSource`."""
        with self._guard:
            if time.monotonic() - self._tabled >= SUMMARY_SECONDS:
                self._tables, self._tabled = tables(self._store), time.monotonic()
            return self._tables

    def close(self) -> None:
        """See `EpisodeSource`."""
        self._store.close()

    def _summarise(self, folder: Path) -> None:
        """Write what is not in the journal: the model, its tokenizer, and the rewards of its versions."""
        versions = self._versions.all()
        job = {
            "model": versions[0].path if versions else None,
            "backbone": "online",
            "online": {"store": self.name},
        }
        _write_if_new(folder / "job.yaml", yaml.safe_dump(job))
        ratings = self._store.status().ratings
        lines: list[dict[str, Any]] = [
            {"type": PHASE, "step": version, "reward": mean, "rated": count}
            for version, (count, mean) in ratings.items()
        ]
        lines += [
            {"type": "validation", "step": version.number, "reward": version.reward}
            for version in versions
            if version.reward is not None
        ]
        _write_if_new(folder / METRICS, "".join(json.dumps(line) + "\n" for line in lines))
        own = folder / TOKENIZER
        if not own.exists():
            paths = (Path(version.path) for version in reversed(versions))
            if origin := next((path for path in paths if (path / _TOKENIZER_FILES[0]).is_file()), None):
                own.mkdir()
                for name in _TOKENIZER_FILES:
                    if (origin / name).is_file():
                        shutil.copyfile(origin / name, own / name)


def _line(name: str, own: Sequence[Trace]) -> dict[str, Any]:
    """A conversation as a line of a journal. How long a reply took is not recorded, so one reply has no time."""
    line = episode_to_json(_episode(name, own), phase=PHASE, step=_version(own))
    return line if len(own) > 1 else {**line, "seconds": None}


def _episode(name: str, own: Sequence[Trace]) -> Episode:
    """A conversation as an episode."""
    record = EpisodeRecord()
    # Replies to plain text have no chat to go on from; here they are shown like the others.
    # `Trace.trained` says that a reply may be trained; here it says that it was.
    shown = [replace(t, chat=t.chat or name, trained=t.state == TraceState.TRAINED) for t in own]
    restore(record, shown, 0, {})
    task = next((trace.task_id for trace in own if trace.task_id), name)
    said = own[-1].answer.get("content")
    episode = Episode(Plan(name, "", Task(task), 0, 0), 0, WorkflowOutput(response=said), record)
    rewards = [trace.reward for trace in own if trace.reward is not None]
    episode.reward = sum(rewards) / len(rewards) if rewards else None  # type: ignore[assignment]
    counts = {"rated": len(rewards), "trained": sum(trace.state == TraceState.TRAINED for trace in own)}
    episode.metrics = {"replies": len(own), **counts}
    episode.started, episode.seconds = own[0].at, own[-1].at - own[0].at
    return episode


def _version(own: Iterable[Trace]) -> int:
    return max((int(trace.versions.max()) for trace in own if len(trace.versions)), default=0)


def _state(trace: Trace) -> tuple[object, ...]:
    return trace.id, trace.state, trace.reward


def _rating(reward: float, bounds: tuple[float, float]) -> float:
    """Good (1), neither (0) and bad (-1), as the page has them, of a reward within bounds."""
    low, high = bounds
    return max(-1.0, min(1.0, 2 * (reward - low) / (high - low) - 1))


def _write_if_new(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
