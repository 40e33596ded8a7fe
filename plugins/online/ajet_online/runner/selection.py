"""Which requests are run again: at random, by marks, or as the user decides."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Selection:
    """What a strategy says of a request."""

    train: bool
    """Whether it is run again."""
    reason: str = ""
    labels: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Context:
    """What was noted while a request was answered."""

    labels: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


class Strategy(Protocol):
    """Decides which requests are run again."""

    def select(self, task: Any, response: Any, context: Context) -> Selection:
        """Called after a request was answered; it may be called from several threads at the same time."""
        ...


class SamplingRate:
    """Selects this share of all requests, at random."""

    def __init__(self, rate: float, seed: int | None = None) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"rate must be from 0 to 1, not {rate}")
        self._rate, self._draw, self._drawing = rate, random.Random(seed), threading.Lock()

    def select(self, task: Any, response: Any, context: Context) -> Selection:
        """See `Strategy.select`."""
        with self._drawing:
            chosen = self._draw.random() < self._rate
        return Selection(chosen, f"{self._rate:.0%} of all requests")


class ExplicitMarking:
    """Selects the requests in which `mark` was called."""

    def select(self, task: Any, response: Any, context: Context) -> Selection:
        """See `Strategy.select`."""
        return Selection(bool(context.labels), "marked", tuple(context.labels), dict(context.metadata))


class FirstOf:
    """Selects what any of these strategies selects; the first that does gives the reason."""

    def __init__(self, strategies: Sequence[Strategy]) -> None:
        self._strategies = tuple(strategies)

    def select(self, task: Any, response: Any, context: Context) -> Selection:
        """See `Strategy.select`."""
        for strategy in self._strategies:
            found = strategy.select(task, response, context)
            if found.train:
                return found
        return Selection(False)


_current: ContextVar[Context | None] = ContextVar("ajet_online_context", default=None)


def mark(*labels: str, **metadata: Any) -> None:
    """Mark the request that is being answered, so that `ExplicitMarking` selects it. Does nothing outside `Runner.run`. Works in
    tasks and in threads that have a copy of the request's context, as asyncio's have."""
    context = _current.get()
    if context is not None:
        context.labels += labels or ("marked",)
        context.metadata |= metadata


@contextmanager
def marking() -> Iterator[Context]:
    """A block in which `mark` notes things in a context of its own."""
    context = Context()
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
