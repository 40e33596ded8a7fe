"""A run that is open in the page: its files, read when they have changed, and a few view episodes."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from ajet import AjetError, Task
from ajet.interfaces.base import by_type
from ajet.interfaces.helpers import read_yaml
from ajet.interfaces.source import EpisodeSource
from ajet.plugins import load_plugins
from ajet.reports.credit import RunCredit, run_credit
from ajet.reports.folder import Entry, RecordedRun, episode_of
from ajet.reports.recording import record
from ajet.reports.token_text import TokenText
from ajet.reports.verdict import RunVerdict, validated_steps, verdict_of
from ajet.reports.view import View
from ajet.rollout.batch_record import batch_file, trained_advantages
from ajet.rollout.recorder import JOURNAL, METRICS
from ajet.runs.run_dir import TOKENIZER
from ajet_studio.answers import RefusedView, is_number, missing
from ajet_studio.feedback import FeedbackFile
from ajet_studio.index import Index
from ajet_studio.lines import NotALine, parse_whole
from ajet_studio.run_files import Metrics, Span, read_metrics, read_tasks, span_of

Read = TypeVar("Read")
JOB = "job.yaml"
REJUDGED = "rejudged.jsonl"
"""The verdicts of `ajet rejudge`, beside the journal."""
_LONGEST_JOB = 1 << 20
"""Bytes of a job: a list of runs reads many."""
_PATIENCE = 10.0
"""Seconds that an address of an episode waits for the index to reach it."""
_TOKENIZER_GROWS = 8
"""A tokenizer takes about so many times the bytes of its file."""
_RECORD_GROWS = 4
"""The same of a record of a batch."""
_FIELDS = frozenset(field.name for field in fields(Entry))
Value = TypeVar("Value")


class OpenRun:
    """A run folder. Its methods may be called in any thread, and raise Refused with one line for the page."""

    def __init__(
        self,
        id: str,
        folder: Path,
        index: Path,
        recent: Recent,
        feedback: FeedbackFile | EpisodeSource,
        problem: Callable[[], str],
    ) -> None:
        self.id, self.dir, self.feedback = id, folder, feedback
        self.source = feedback if isinstance(feedback, EpisodeSource) else None
        """Where the episodes come from if the folder only mirrors it."""
        self.problem = problem
        """Returns why the folder is not brought up to date; empty if it is."""
        self.index = Index(folder / JOURNAL, index)
        self._recent = recent
        self._files: dict[str, tuple[object, Any]] = {}

    def close(self) -> None:
        """Stop reading the journal."""
        self.index.close()

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.dir.resolve().name

    @property
    def title(self) -> str:
        """What people call the run: the name that its job gives it, else that of the folder, with those above it in which the runs of
        an experiment are."""
        about = self.job()[0].get("run")
        name = about.get("name") if isinstance(about, Mapping) else None
        if name and isinstance(name, str):
            return name
        return self.id if "/" in self.id else self.name

    # ----------------------------------------------------------------- files

    def job(self) -> tuple[Mapping[str, Any], str]:
        """The resolved job, and why it cannot be read; empty if there is none."""
        return self._kept(JOB, _read_job) or ({}, "")

    def metrics(self) -> Metrics:
        """The metrics. What cannot be read is reported in their problems."""
        state = self._state(METRICS)
        if state is None:
            return Metrics((), ())
        return self._recent.get(
            (self.dir, METRICS, state), 4 * state[0], lambda: read_metrics(self.dir / METRICS)
        )

    def span(self) -> Span:
        """When the first recorded episode began and the last one ended, in seconds since 1970; zeros if unknown."""
        return self._kept(JOURNAL, span_of) or (0.0, 0.0)

    def digest(self, make: Callable[[Metrics], Read]) -> Read:
        """What ``make`` returns of the metrics; kept without them, for lists of many runs."""
        return self._kept(f"digest of {METRICS}", lambda path: make(read_metrics(path)), METRICS) or make(
            Metrics((), ())
        )

    @property
    def text_of(self) -> TokenText:
        """The text of tokens."""
        state = self._state(f"{TOKENIZER}/tokenizer.json") or (0, 0)
        return self._recent.get(
            (self.dir, TOKENIZER, state), _TOKENIZER_GROWS * state[0], lambda: TokenText(self.dir)
        )

    def credit(self) -> RunCredit:
        """The algorithm and filters of the job, as far as installed plugins have them: code that a run folder names is
        never loaded."""

        def read(path: Path) -> RunCredit:
            job, own = _without_own_code(self.job()[0])
            credit = run_credit(RecordedRun(self.dir, job, (), ()))
            return replace(credit, notes=(*credit.notes, *own))

        return self._kept(f"credit of {JOB}", read, JOB) or read(self.dir / JOB)

    def tasks(self) -> Mapping[str, Task]:
        """The tasks that the job's files hold, by id."""
        return self._kept(f"tasks of {JOB}", lambda path: read_tasks(self.dir, self.job()[0]), JOB) or {}

    def _kept(self, key: str, read: Callable[[Path], Read], name: str = "") -> Read | None:
        """What ``read`` returns for a file, read again if the file has changed; None if there is none."""
        state = self._state(name or key)
        if state is None:
            return None
        kept = self._files.get(key)
        if kept is None or kept[0] != state:
            kept = self._files[key] = (state, read(self.dir / (name or key)))
        result: Read = kept[1]
        return result

    def _state(self, name: str) -> tuple[int, int] | None:
        """Size and time of a file; None if there is none."""
        try:
            status = (self.dir / name).stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns

    # ----------------------------------------------------------------- episodes

    def row(self, id: str) -> dict[str, Any]:
        """The index's row of an episode. Raises RefusedView (404) if there is none."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            complete = self.index.update()
            with self.index.reading() as db:
                row = db.execute("SELECT * FROM episodes WHERE id = ? ORDER BY line DESC", (id,)).fetchone()
            if row or complete or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if row is None:
            done = self.index.progress()
            hint = f"; {done:.0%} of the journal has been read" if done < 1 else ""
            raise missing(f"{id}: no such episode in {self.name}{hint}")
        return dict(row)

    def step(self, phase: str, step: int) -> list[Entry]:
        """The episodes of a step that have a reward."""
        with self.index.reading() as db:
            rows = db.execute(
                "SELECT * FROM episodes WHERE phase = ? AND step = ? ORDER BY line", (phase, step)
            ).fetchall()
        return [_entry(row) for row in rows if row["reward"] is not None]

    def verdict(self) -> RunVerdict | None:
        """What training has changed beyond chance, its alarms, and what to try next. None if nothing was trained, or if the files
        do not say it. The index must be complete."""

        def read(path: Path) -> RunVerdict | None:
            lines = [
                {k: v for k, v in line.items() if k == "type" or is_number(v)}
                for line in self.metrics().lines
            ]
            with self.index.reading() as db:
                rows = db.execute(
                    "SELECT * FROM episodes WHERE phase = 'validation' AND (reward IS NOT NULL OR failure IS NOT NULL) AND step IN "
                    "(SELECT value FROM json_each(?))",
                    (json.dumps(validated_steps(lines)),),
                ).fetchall()
            try:
                return verdict_of(RecordedRun(self.dir, self.job()[0], [_entry(row) for row in rows], lines))
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                return None  # a job or metrics that this version has not written

        return self._kept(f"verdict of {METRICS}", read, METRICS)

    def trained(self, phase: str, step: int) -> Mapping[tuple[str, int], float] | None:
        """The advantages with which calls of a step were trained, by episode and number; None if there is no record of them."""
        name = str(batch_file(self.dir, step).relative_to(self.dir))
        state = self._state(name)
        if phase != "train" or state is None or self.credit().has_critic:
            return None
        return self._recent.get(
            (self.dir, name, state), _RECORD_GROWS * state[0], lambda: trained_advantages(self.dir, step)
        )

    def view(self, row: Mapping[str, Any]) -> View:
        """The whole episode of a row. Raises RefusedView if its line is not one of this version's journal."""
        key = self.dir, row["id"], row["offset"], row["length"]
        return self._recent.get(key, row["length"], lambda: self._view(row))

    def recording(self, row: Mapping[str, Any]) -> str:
        """The text of a file with which `ajet run --replay` repeats an episode. Raises RefusedView like `view`, and if the journal
        lacks the task."""
        with _refusing(row):
            return record(self.dir, [self._line(row)]).text()

    def _view(self, row: Mapping[str, Any]) -> View:
        with _refusing(row):
            line = self._line(row)
            entry = replace(_entry(row), error=str(line["error"]))
            # The row has the failure; other versions may have kinds of their own.
            episode = episode_of({**line, "id": entry.id, "task": entry.task, "failure": None})
            step, recorded = self.step(entry.phase, entry.step), self.trained(entry.phase, entry.step)
            return View.of(entry, episode, self.credit(), step, recorded)

    def _line(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The journal's line of a row."""
        line: Mapping[str, Any] = parse_whole(self.index.line(row["offset"], row["length"]))
        if line["id"] != row["id"] and "\ufffd" not in row["id"] and "?" not in row["id"]:
            raise RefusedView(409, f"{_place(row)}: the journal has changed; load the page again")
        return line


@contextmanager
def _refusing(row: Mapping[str, Any]) -> Iterator[None]:
    """A block that reads the journal's line of a row; what is wrong with it becomes one line for the page."""
    place = _place(row)
    try:
        yield
    except OSError as error:
        raise missing(f"{place}: {error.strerror}; the run folder was deleted") from None
    except (NotALine, AjetError) as error:
        raise RefusedView(422, f"{place}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise RefusedView(
            422,
            f"{place}: not an episode of this version's journal ({type(error).__name__}: {error}). "
            "Read it with the version in versions.json.",
        ) from None


def _place(row: Mapping[str, Any]) -> str:
    return f"{JOURNAL}: line {row['line']}"


def _entry(row: Mapping[str, Any] | sqlite3.Row) -> Entry:
    """A row of the index as the reports of the core know it."""
    same = {name: value for name, value in dict(row).items() if name in _FIELDS}
    same |= {"rewards": json.loads(row["rewards"]), "trainable": row["trained_tokens"]}
    same |= {"is_success": None if row["is_success"] is None else bool(row["is_success"])}
    return Entry(**{**same, "error": "", "counters": {}, "breaks": {}})


def _read_job(path: Path) -> tuple[Mapping[str, Any], str]:
    try:
        if path.stat().st_size > _LONGEST_JOB:
            return {}, f"{path.name}: longer than {_LONGEST_JOB >> 20} MiB"
        values = read_yaml(path)
    except (OSError, AjetError) as error:
        return {}, f"{path.name}: {str(error).removeprefix(str(path)).lstrip(': ')[:300]}"
    if not isinstance(values, dict):
        return {}, f"{path.name}: not a mapping of keys"
    return values, ""


def _without_own_code(job: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The job without an algorithm or filters that are not installed plugins, and notes on those."""
    train = dict(job.get("train") or {})
    notes = []
    known = load_plugins().classes

    def is_known(kind: str, spec: Any) -> bool:
        spec = by_type(spec)
        name = spec.get("type") if isinstance(spec, Mapping) else None
        if isinstance(name, str) and (kind, name) not in known:
            notes.append(f"{kind} {name}: not an installed plugin, so its effect is unknown")
            return False
        return True

    if not is_known("algorithm", train.get("algorithm")):
        train["algorithm"] = None
    train["filters"] = [spec for spec in train.get("filters") or () if is_known("filter", spec)]
    return ({**job, "train": train} if job else job), notes


class Recent:
    """Values by key. The least recently used ones are forgotten once all are larger than ``most_bytes``; the last one is
    kept whatever its size. May be used in any thread; one value is made at a time, which bounds memory."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._guard = threading.RLock()
        self._values: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()

    def get(self, key: Hashable, size: int, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not here; ``size`` is about how many bytes it takes."""
        with self._guard:
            if key in self._values:
                self._values.move_to_end(key)
            else:
                self._values[key] = size, make()
                total = sum(size for size, _ in self._values.values())
                while total > self._most_bytes and len(self._values) > 1:
                    total -= self._values.popitem(last=False)[1][0]
            value: Value = self._values[key][1]
            return value
