"""A reader yields the tasks of a job."""

from __future__ import annotations

import hashlib
import json
import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from ajet.interfaces.base import Plugin
from ajet.types import ConfigError, Task

T = TypeVar("T")
_MOST_AGAIN = 1000
"""Consecutive draws that only repeat earlier tasks."""


class Reader(Plugin):
    """Base of readers: the same configuration always yields the same tasks in the same order."""

    kind = "reader"

    @abstractmethod
    def tasks(self) -> Iterable[Task]:
        """Yield tasks. Raise ConfigError with file and line where the data is bad."""

    def describe_duplicate(self, first: Task, second: Task) -> str:
        """What an error says about two tasks with the same id. Readers that know where a task stands name the
        places."""
        return f"duplicate task id {first.id!r}: {beginning(first)} and {beginning(second)}"


class DrawnReader(Reader):
    """Base of readers that draw random tasks: they implement `draw`. No two tasks are equal, and equal settings draw equal
    tasks."""

    count: int = Field(ge=1, description="How many tasks.")
    seed: int = Field(0, description="A different seed draws different tasks.")
    held_out: bool = Field(False, description="Draw from the tasks that are held out for validation.")

    @abstractmethod
    def draw(self, rng: random.Random) -> Task:
        """A training task, or with ``held_out`` a held-out one; a task's content decides to which of the two it belongs."""

    def tasks(self) -> Iterator[Task]:
        """See `Reader.tasks`. Raises ConfigError if there are not as many different tasks."""
        rng, drawn, again = random.Random(f"{self.seed} {self.held_out}"), dict[str, Task](), 0
        while len(drawn) < self.count:
            task = self.draw(rng)
            again = again + 1 if task.id in drawn else 0
            if again > _MOST_AGAIN:
                raise ConfigError(
                    f"count: there are hardly more than {len(drawn)} different tasks; ask for fewer."
                )
            drawn.setdefault(task.id, task)
        return iter(drawn.values())


class SelectingReader(Reader):
    """Base of readers for sources with more tasks than one job uses: they implement `source`; selection, order and
    repetition work the same for all of them."""

    where: dict[str, Any] = Field(
        {},
        description="Take only tasks whose metadata match: field: value, a list of values, or {min: …, max: …}.",
    )
    drop_duplicates: bool = Field(
        False, description="Drop tasks whose id has occurred before; otherwise they are an error."
    )
    part: Literal["all", "train", "held_out"] = Field(
        "all", description="The part of the tasks to take, if one source serves for training and validation."
    )
    hold_out: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the tasks that is `part: held_out`, chosen by hashes of their ids.",
    )
    shuffle: int | None = Field(
        None, description="Random seed of the order; default: the order of the source."
    )
    limit: int | None = Field(None, ge=1, description="Take only this many tasks, from the beginning.")
    repeat: int = Field(
        1, ge=1, description="Repeat each task this many times; the id of a repeat ends with #2, #3, …"
    )

    @field_validator("where", mode="before")
    @classmethod
    def _paths_with_dots(cls, where: Any) -> Any:
        return dict(_flat(where)) if isinstance(where, Mapping) else where

    @model_validator(mode="after")
    def _parts_need_a_share(self) -> Self:
        if (self.part == "all") != (self.hold_out == 0):
            raise ValueError(
                "`part` and `hold_out` go together: part: train (or held_out) with hold_out: 0.1"
            )
        return self

    @abstractmethod
    def source(self) -> Iterable[Task]:
        """Yield all tasks in the source's order. Raise ConfigError where the data is bad."""

    def group_of(self, task: Task) -> str:
        """Tasks of one group belong to one `part`: override where tasks share content."""
        return task.id

    def tasks(self) -> Iterator[Task]:
        """The chosen tasks. Raises ConfigError if no task has a field that `where` names."""
        chosen = self._matching(self.source())
        if self.drop_duplicates:
            chosen = _first_of_each_id(chosen)
        if self.part != "all":
            wanted = self.part == "held_out"
            chosen = (t for t in chosen if is_held_out(self.group_of(t), self.hold_out) == wanted)
        if self.shuffle is not None:
            order = list(chosen)
            random.Random(self.shuffle).shuffle(order)
            chosen = iter(order)
        for task in islice(chosen, self.limit):
            yield task
            for number in range(2, self.repeat + 1):
                yield replace(task, id=f"{task.id}#{number}")

    def _matching(self, tasks: Iterable[Task]) -> Iterator[Task]:
        unseen = set(self.where)
        fields: Iterable[str] = ()
        for task in tasks:
            fields = fields or task.metadata
            if unseen:
                unseen = {path for path in unseen if value_at(task.metadata, path, _ABSENT) is _ABSENT}
            if all(_fits(value_at(task.metadata, path), wanted) for path, wanted in self.where.items()):
                yield task
        if unseen and fields:
            raise ConfigError(
                f"where.{min(unseen)}: no task of the reader {self.name!r} has this field; the first one has "
                f"{', '.join(map(repr, fields))}."
            )


_ABSENT = object()


def value_at(record: Any, path: str, default: Any = None) -> Any:
    """The value of a field of that name, else of a path with dots: ``extra.answers.0``."""
    if isinstance(record, Mapping) and path in record:
        return record[path]
    for step in path.split("."):
        if isinstance(record, Mapping) and step in record:
            record = record[step]
        elif isinstance(record, Sequence) and not isinstance(record, str) and step.isdecimal():
            if int(step) >= len(record):
                return default
            record = record[int(step)]
        else:
            return default
    return record


def is_held_out(group: str, share: float) -> bool:
    """Whether a group of tasks belongs to the held-out share: a function of its name alone, so that the two
    parts stay disjoint when tasks are added."""
    return int(_digest(group)[:8], 16) < share * 2**32


def beginning(task: Task) -> str:
    """The beginning of what a task asks, in quotation marks, for errors."""
    text = task.query or str((task.messages or [{}])[-1].get("content", ""))
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def content_id(record: Mapping[str, Any]) -> str:
    """A stable id for a record that has none: 12 hex digits over its canonical JSON."""
    text = json.dumps(record, sort_keys=True, ensure_ascii=False, default=str)
    return _digest(text)[:12]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()  # traces may hold half a pair


class NoTasks(ConfigError):
    """A reader yielded nothing."""


def read_all(reader: Reader, where: str) -> list[Task]:
    """All tasks of a reader. Raises ConfigError on a duplicate id, and NoTasks when there is no task."""
    tasks: list[Task] = []
    seen: dict[str, Task] = {}
    for task in reader.tasks():
        first = seen.setdefault(task.id, task)
        if first is not task:
            drops = isinstance(reader, SelectingReader)
            remedy = f", or set {where}.drop_duplicates: true, which keeps the first" if drops else ""
            raise ConfigError(
                where, f"{reader.describe_duplicate(first, task)}. Rename or remove one{remedy}."
            )
        tasks.append(task)
    if not tasks:
        raise NoTasks(where, f"the reader {reader.name!r} yielded no task. Check its path and filters.")
    return tasks


def tasks_of_step(tasks: Sequence[T], step: int, batch_size: int, seed: int) -> list[T]:
    """The tasks, or samples, of a step counted from 0, a pure function of its number, so that resuming needs no other state.

    Every epoch is a permutation of its own, seeded by (seed, epoch).
    """
    chosen: list[T] = []
    while len(chosen) < batch_size:
        epoch, offset = divmod(step * batch_size + len(chosen), len(tasks))
        order = list(range(len(tasks)))
        random.Random(f"{seed}:{epoch}").shuffle(order)
        chosen += [tasks[i] for i in order[offset : offset + batch_size - len(chosen)]]
    return chosen


def _flat(where: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``where`` with nested fields as paths, as a job file turns ``a.b: 1`` into ``a: {b: 1}``."""
    for key, wanted in where.items():
        if not isinstance(wanted, Mapping):
            yield f"{prefix}{key}", wanted
        elif set(wanted) & {"min", "max"} or not wanted:
            if not (wanted and set(wanted) <= {"min", "max"}):
                raise ValueError(f"{prefix}{key}: a range has `min`, `max` or both")
            yield f"{prefix}{key}", wanted
        else:
            yield from _flat(wanted, f"{prefix}{key}.")


def _first_of_each_id(tasks: Iterable[Task]) -> Iterator[Task]:
    seen: set[str] = set()
    for task in tasks:
        if task.id not in seen:
            seen.add(task.id)
            yield task


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return value in wanted
    if isinstance(wanted, Mapping):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low, high = wanted.get("min", value), wanted.get("max", value)
        return bool(low <= value <= high)
    return bool(value == wanted)


def is_trajectory(record: Any) -> bool:
    """Whether a value from a JSON file is a trajectory in ATIF, the format of Harbor's agents."""
    return isinstance(record, Mapping) and str(record.get("schema_version")).startswith("ATIF")
