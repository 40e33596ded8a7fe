"""Whether code is in a shadow run, which tools may run there, and where its LLM calls go. Threads that a shadow run starts belong to
it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, thread
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from types import FunctionType, MethodType
from typing import Any, TypeVar, overload

from ajet import ConfigError
from ajet.interfaces.helpers import replaced
from ajet_online.runner.calling import is_async

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__ajet_read_only__"


class Shadow:
    """The shadow run that this context belongs to."""

    def __init__(
        self, explorer: str, key: str, read_only: Collection[str], on_refused: Callable[[], None]
    ) -> None:
        self.explorer, self.key = explorer, key
        """The address of the explorer, without ``/v1``, and a key that names the run."""
        self._read_only = read_only
        self._on_refused = on_refused
        self.refused: list[str] = []
        """Names of the tools whose calls were refused, in order."""

    def refuse(self, name: str, declared: bool) -> str | None:
        """The text that a call of this tool returns; None if the tool may run: its function is declared read-only, or its
        name."""
        if declared or name in self._read_only:
            return None
        self.refused.append(name)
        self._on_refused()
        return f"tool {name!r} is not read-only, so it does not run in a shadow run"


current_shadow: ContextVar[Shadow | None] = ContextVar("ajet_online_shadow", default=None)


def in_shadow_run() -> bool:
    """Whether this code is in a shadow run. For side effects other than tools, such as writing a conversation to a
    database."""
    return current_shadow.get() is not None


@contextmanager
def threads_in_shadow_runs() -> Iterator[None]:
    """A block in which jobs of thread pools, and plain threads, that a shadow run starts run in a copy of its context. Without this,
    a tool that runs in a thread pool would not know. ``loop.run_in_executor`` uses such a pool."""
    submit, start = ThreadPoolExecutor.submit, threading.Thread.start

    def submit_in_shadow(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if in_shadow_run():
            return submit(self, copy_context().run, fn, *args, **kwargs)
        return submit(self, fn, *args, **kwargs)

    def start_in_shadow(self: Any) -> None:
        # The workers of a pool are shared with other requests; each of their jobs has its own context.
        if in_shadow_run() and getattr(self, "_target", None) is not thread._worker:
            run, context = self.run, copy_context()
            self.run = lambda: context.run(run)
        start(self)

    with (
        replaced(ThreadPoolExecutor, submit=submit_in_shadow),
        replaced(threading.Thread, start=start_in_shadow),
    ):
        yield


def read_only(function: F) -> F:
    """Declare that a function, a method or a framework's tool object only reads, so that it may run in shadow runs. A function that
    wraps it, and the same method of another object, are not declared.

    Raises ConfigError for an object that cannot be declared, such as a built-in function.
    """
    owner, name = _place(function)
    try:
        setattr(owner, name, owner)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"@read_only cannot declare {function!r}: put it directly above `def`, or give the tool's name to "
            "Runner(read_only=...)."
        ) from None
    return function


def is_read_only(function: Any) -> bool:
    """Whether a function is declared itself, or, for a method or a `partial`, the function that it calls."""
    if function is None:
        return False
    owner, name = _place(function)
    inner = function.func if isinstance(function, partial) else getattr(function, "__func__", None)
    mark = getattr(owner, name, None)
    # `functools.wraps` takes attributes along. Frameworks copy tool objects.
    is_copy = name == MARK and not isinstance(owner, FunctionType | partial) and type(mark) is type(owner)
    return mark is owner or is_copy or is_read_only(inner)


def _place(function: Any) -> tuple[Any, str]:
    """The object, and its attribute, in which it is written that a function is declared: the object itself if it is."""
    if isinstance(function, MethodType) and not isinstance(function.__self__, type):
        return function.__self__, f"{MARK}{function.__name__}"
    return getattr(function, "__func__", function), MARK


@overload
def guard_tools(tools: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]: ...


@overload
def guard_tools(tools: F) -> F: ...


def guard_tools(tools: Any) -> Any:
    """Functions that in a shadow run return a refusal if they are not declared read-only. Elsewhere they are unchanged.

    For the tools of a loop that you write yourself: a dict of functions by the names that the model uses. As a decorator it
    guards one function, whose tool has the function's name.
    """
    if isinstance(tools, Mapping):
        return {name: _guarded(name, function) for name, function in tools.items()}
    return _guarded(getattr(tools, "__name__", type(tools).__name__), tools)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def refusal() -> str | None:
        shadow = current_shadow.get()
        return shadow.refuse(name, is_read_only(function)) if shadow else None

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return refusal() or function(*args, **kwargs)

    @wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return refusal() or await function(*args, **kwargs)

    guard = call_async if is_async(function) else call
    return read_only(guard) if is_read_only(function) else guard
