"""Calls of agents by the user's program: what is noted before one, so that it can be repeated, the marks of its request, and its
answer, of which a started runner is told."""

from __future__ import annotations

import copy
import inspect
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

from ajet.interfaces.helpers import steps_with
from ajet_online.runner.shadow import in_shadow_run


class Marks:
    """The marks of one request. The agent's tasks and threads share it, because copies of a context share its values."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.marked = False
        self._labels: dict[str, None] = {}
        self._metadata: dict[str, Any] = {}

    def add(self, labels: tuple[str, ...], metadata: dict[str, Any]) -> None:
        """Add labels, each once, and metadata, of which the latest value counts."""
        with self._lock:
            self.marked = True
            self._labels.update(dict.fromkeys(labels))
            self._metadata.update(metadata)

    def clear(self) -> None:
        """Remove all of them."""
        with self._lock:
            self.marked = False
            self._labels.clear()
            self._metadata.clear()

    def read(self) -> tuple[bool, tuple[str, ...], dict[str, Any]]:
        """Whether the request is marked, its labels and its metadata."""
        with self._lock:
            return self.marked, tuple(self._labels), dict(self._metadata)


marks_of_request: ContextVar[Marks | None] = ContextVar("ajet_online_marks", default=None)
"""Those of the watched call that is in progress."""
marks_around: ContextVar[tuple[Marks, ...]] = ContextVar("ajet_online_marked", default=())
"""Those of the blocks around it. They are cleared when their block ends, as a task that was started in it may go on."""


def new_marks() -> Marks:
    """The marks of a call that begins: those of the blocks around it."""
    marks = Marks()
    for is_marked, labels, metadata in (block.read() for block in marks_around.get()):
        if is_marked:
            marks.add(labels, metadata)
    return marks


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A call of an agent, as it was before the agent began."""

    agent: str
    """The agent's name."""
    task: Any
    """A copy of its input."""
    begin: Callable[[Any], Callable[[Any], Any]]
    """``begin(response)``, with the answer that the user got, returns a function: the agent with the state that it had before the
    call. A shadow run calls ``begin`` once, and then the function with a copy of the task and with each text of the simulated user.
    The function may be async."""


Describe = Callable[..., Repeatable | None]
"""Given the arguments of a call; None if it cannot be repeated."""


class Watcher(Protocol):
    """What is told of calls. Its methods never raise."""

    def answered(self, call: Repeatable, response: Any, marks: Marks, seconds: float) -> None:
        """The user's program has got an answer."""

    def not_noted(self, error: Exception) -> None:
        """A call could not be noted, so it cannot be repeated."""


watchers: list[Watcher] = []
"""The runners that are started."""

# A forked process has none of the threads of its parent's runners.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchers.clear)


def current_watcher() -> Watcher | None:
    """The runner that is told of the calls of frameworks' agents: the first one. None if no runner is started."""
    return watchers[0] if watchers else None


def watched(
    original: Callable[..., Any],
    describe: Describe,
    watcher: Callable[[], Watcher | None] = current_watcher,
    steps: str = "",
) -> Callable[..., Any]:
    """``original``, of which the watcher is told each answer. A call inside another one, or in a shadow run, is a part of that
    one. Answers may be streams; ``steps`` is the name of the method of the returned object that streams."""

    def noted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _CallInProgress | None:
        if in_shadow_run() or marks_of_request.get() is not None:
            return None
        told = watcher()
        if told is None:
            return None
        try:
            call = describe(*args, **kwargs)
        except Exception as error:
            told.not_noted(error)
            return None
        return _CallInProgress(told, call) if call else None

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        noting = noted(args, kwargs)
        if noting is None:
            return original(*args, **kwargs)
        with noting:
            returned = original(*args, **kwargs)
        return noting.until_answered(returned, steps)

    @wraps(original)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        noting = noted(args, kwargs)
        if noting is None:
            return await original(*args, **kwargs)
        return await noting.awaited(original(*args, **kwargs))

    return call_async if inspect.iscoroutinefunction(original) else call


class _CallInProgress:
    """A call in progress. As a block, marks that are set in it are the call's."""

    def __init__(self, watcher: Watcher, call: Repeatable) -> None:
        self._watcher, self._call = watcher, call
        self._marks = new_marks()
        self._started = time.monotonic()

    def __enter__(self) -> None:
        self._token = marks_of_request.set(self._marks)

    def __exit__(self, *_: object) -> None:
        marks_of_request.reset(self._token)

    def until_answered(self, returned: Any, steps: str) -> Any:
        """What the program gets in place of what the agent has returned."""
        if steps:
            stream = getattr(returned, steps)
            setattr(returned, steps, lambda *args, **kwargs: self._stream(stream(*args, **kwargs), returned))
        elif inspect.isasyncgen(returned):
            return self._stream(returned)
        elif inspect.isgenerator(returned):
            return self._generated(returned)
        elif inspect.isawaitable(returned):
            return self.awaited(returned)
        else:
            self._answered(returned)
        return returned

    async def awaited(self, awaitable: Any) -> Any:
        """The answer of an async agent."""
        with self:
            response = await awaitable
        self._answered(response)
        return response

    async def _stream(self, stream: AsyncGenerator[Any, Any], response: Any = None) -> AsyncGenerator[Any]:
        items = []
        async for item in steps_with(marks_of_request, self._marks, stream):
            items.append(item)
            yield item
        self._answered(items if response is None else response)

    def _generated(self, stream: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        items = []
        try:
            while True:
                with self:
                    item = next(stream)
                items.append(item)
                yield item
        except StopIteration as end:
            self._answered(items)
            return end.value
        finally:
            stream.close()

    def _answered(self, response: Any) -> None:
        self._watcher.answered(self._call, response, self._marks, time.monotonic() - self._started)


def state_of(agent: Any, *kinds: type) -> dict[str, Any]:
    """Copies of those attributes of an agent that are of these classes."""
    return {name: copy.deepcopy(value) for name, value in vars(agent).items() if isinstance(value, kinds)}


def with_state(agent: Any, state: dict[str, Any]) -> Any:
    """A shallow copy of the agent, which has a deep copy of this state."""
    twin = copy.copy(agent)
    # Not by `setattr`: a class may note attributes in an object that both would share.
    vars(twin).update(copy.deepcopy(state))
    return twin
