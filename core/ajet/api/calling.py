"""Calling what blocks and runs an event loop of its own: from plain code, from code in an event loop, and awaited."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from ajet.job.config import all_keys
from ajet.types import AjetError, ConfigError
from ajet.utils.asyncrun import interrupt
from ajet.utils.suggest import nearest, nearest_name

P = ParamSpec("P")
T = TypeVar("T")


def anywhere(function: Callable[P, T]) -> Callable[P, T]:
    """The function, callable also where an event loop is running, as in a notebook: then in a thread of its own. Ctrl-C
    ends it either way."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            check_arguments(function, args, kwargs)
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return function(*args, **kwargs)
            return _CallingThread(functools.partial(function, *args, **kwargs)).wait()
        except ConfigError as error:  # its text says all, so its traceback need not lead through our frames
            raise error.with_traceback(None) from error.__cause__
        except KeyboardInterrupt as error:
            _in_one_line(error)
            raise

    return call


def awaitable(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """The function as one to be awaited, run in a thread of its own. Cancelling the caller ends it as Ctrl-C does."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(function, args, kwargs)
        return await _CallingThread(functools.partial(function, *args, **kwargs)).awaited()

    call.__name__ = call.__qualname__ = f"a{function.__name__}"
    return call


def check_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ConfigError for arguments that a function does not take, with the key of the job that one of them may mean."""
    parameters = inspect.signature(function).parameters
    for name in kwargs.keys() - parameters.keys():
        last_parts = {key.key.rpartition(".")[2]: key.key for key in reversed([*all_keys()])}
        near, key = nearest(name, parameters), last_parts.get(nearest_name(name, last_parts))
        hint = near or (f"; did you mean set={{{key!r}: …}}" if key else "")
        raise ConfigError(f"{name}=", f"ajet.{function.__name__} has no such argument{hint}.")
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"ajet.{function.__name__}: {error}.") from None


def _in_one_line(error: KeyboardInterrupt) -> None:
    """If an interruption ends the program, its text is printed in place of a traceback."""
    otherwise = sys.excepthook

    def hook(kind: type[BaseException], raised: BaseException, traceback: TracebackType | None) -> None:
        if raised is error:
            print(str(error) or "interrupted", file=sys.stderr)
        else:
            otherwise(kind, raised, traceback)

    sys.excepthook = hook


class _CallingThread(Generic[T]):
    """A call in a thread of its own, in a copy of the caller's context."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: list[T] = []
        self._error: BaseException | None = None
        # Joining a thread twice does not wait if the first time is interrupted.
        self._ended = threading.Event()
        self._tell: Callable[[], None] = lambda: None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._work), name="ajet-call")

    def wait(self) -> T:
        """What the call returns. Ctrl-C interrupts it; a second one leaves it behind."""
        self._thread.start()
        try:
            self._ended.wait()
        except KeyboardInterrupt:
            interrupt(self._thread)
            self._ended.wait()
            # It says which service died, or where to resume.
            if isinstance(self._error, AjetError | KeyboardInterrupt):
                raise self._error from None
            raise
        return self._outcome()

    async def awaited(self) -> T:
        """What the call returns, once it has ended. Being cancelled interrupts it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(ended.set)

        self._tell = told
        self._thread.start()
        try:
            await ended.wait()
        except asyncio.CancelledError:
            interrupt(self._thread)
            await ended.wait()
            if isinstance(self._error, AjetError):
                raise self._error from None
            raise
        return self._outcome()

    def _work(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()
            self._tell()

    def _outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]
