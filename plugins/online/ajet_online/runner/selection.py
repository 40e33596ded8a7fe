"""Which requests get shadow runs: strategies, and marks for `ExplicitMarking`."""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet import ConfigError
from ajet_online.runner.shadow import in_shadow_run
from ajet_online.runner.watching import Marks, current_watcher, marks_around, marks_of_request

log = logging.getLogger("ajet.online.runner")


@dataclass(frozen=True, slots=True)
class Selection:
    """A strategy's decision."""

    train: bool
    reason: str = ""
    labels: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):
            raise TypeError(
                f"Selection(labels={self.labels!r}): expected several labels, as in [{self.labels!r}]"
            )


@dataclass(frozen=True, slots=True)
class Request:
    """What a strategy is told of a request, beside its task and the user's answer."""

    agent: str
    """The name of the agent, the graph or the function."""
    task_id: str
    seconds: float
    """How long the answer took."""
    marked: bool
    """By `mark` or `marked`."""
    labels: tuple[str, ...]
    """The labels of its marks."""
    metadata: Mapping[str, Any]


class Strategy(Protocol):
    """Any object with this method is a strategy. A function with these parameters is one too."""

    def select(self, task: Any, response: Any, context: Request) -> Selection:
        """The decision on a request that was answered. It is made before the user gets the answer, so it must be quick. The response
        is what the agent returned; of a stream, the list of its items."""
        ...


Select = Callable[[Any, Any, Request], Selection]


class SamplingRate:
    """Selects each request with probability ``rate``; with a ``seed``, the same ones in each process."""

    def __init__(self, rate: float, seed: int | None = None) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"SamplingRate({rate}): the rate must be between 0 and 1.")
        self.rate = rate
        self._random = random.Random(seed)

    def select(self, task: Any, response: Any, context: Request) -> Selection:
        """See `Strategy.select`."""
        return Selection(self._random.random() < self.rate, "sampled")


class ExplicitMarking:
    """Selects the requests that are marked, by `mark` or `marked`."""

    def select(self, task: Any, response: Any, context: Request) -> Selection:
        """See `Strategy.select`."""
        return Selection(context.marked, "marked")


def mark(*labels: str, **metadata: Any) -> None:
    """Mark the watched call that is in progress, for `ExplicitMarking` and for the reward calculator.

    It works in the agent, and in tasks and threads that have a copy of its context. It does nothing in a shadow run. Outside of a
    watched call it only logs a warning: its thread may serve another user next, whose request the mark must not reach.
    """
    if in_shadow_run():
        return
    if marks := marks_of_request.get():
        marks.add(labels, metadata)
    elif current_watcher():
        log.warning(
            "mark(...) is in no watched call, so it marks nothing: call it in the agent, or put the agent's call into "
            "`with marked(...):`"
        )


@contextmanager
def marked(*labels: str, **metadata: Any) -> Iterator[None]:
    """A block that marks the watched calls in it, also those in tasks and threads that have a copy of its context. Inside a watched
    call it marks that one, as `mark` does."""
    if marks_of_request.get():
        mark(*labels, **metadata)
    before, block = marks_around.get(), Marks()
    block.add(labels, metadata)
    marks_around.set((*before, block))
    try:
        yield
    finally:
        marks_around.set(before)
        block.clear()


def as_function(select: Strategy | Select | Sequence[Strategy | Select]) -> Select:
    """One function for a strategy or several, of which the first that selects wins. Raises ConfigError for anything else."""
    if isinstance(select, list | tuple):
        return _first([as_function(one) for one in select])
    function = getattr(select, "select", select)
    if not callable(function) or isinstance(select, type):
        raise ConfigError(f"select={select!r}: expected a strategy, a function, or a list of them.")
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError as error:
        raise ConfigError(
            f"select={select!r}: cannot be called with a task, a response and a Request ({error}). A strategy is "
            "`def select(task, response, context): return Selection(...)`."
        ) from None
    except ValueError:  # a function in C that does not tell its parameters
        pass
    return _checked(function)


def _first(strategies: Sequence[Select]) -> Select:
    def select(task: Any, response: Any, context: Request) -> Selection:
        decisions = (strategy(task, response, context) for strategy in strategies)
        return next((decision for decision in decisions if decision.train), Selection(False))

    return select


def _checked(function: Callable[..., Any]) -> Select:
    def select(task: Any, response: Any, context: Request) -> Selection:
        decision = function(task, response, context)
        if not isinstance(decision, Selection):
            raise TypeError(f"the strategy {function!r} returned {decision!r} instead of a Selection")
        return decision

    return select
