"""Tools in shadow runs: only those that are declared read-only run; the model gets an error for any other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, overload

Function = TypeVar("Function", bound=Callable[..., Any])
_MARK = "__ajet_read_only__"


@dataclass(slots=True)
class Shadow:
    """A shadow run: which tools it may use, and which were refused."""

    read_only: Collection[str]
    """Names."""
    refused: list[str] = field(default_factory=list)

    def refusal(self, name: str, *functions: Any) -> str | None:
        """Why a tool does not run, which is noted; None if it may. ``functions`` are what may be marked as read-only."""
        if name in self.read_only or any(getattr(function, _MARK, False) for function in functions):
            return None
        self.refused.append(name)
        return f"tool {name!r} is not read-only, so it does not run in a shadow run"


_shadow: ContextVar[Shadow | None] = ContextVar("ajet_online_shadow", default=None)


def current_shadow() -> Shadow | None:
    """The shadow run that this code is part of."""
    return _shadow.get()


@contextmanager
def in_shadow(shadow: Shadow) -> Iterator[None]:
    """A block that is part of a shadow run."""
    token = _shadow.set(shadow)
    try:
        yield
    finally:
        _shadow.reset(token)


def read_only(function: Function) -> Function:
    """Declare that a function changes nothing, so it may run as a tool in shadow runs. Put it closest to the function, below the
    decorators of frameworks."""
    setattr(function, _MARK, True)
    return function


@overload
def guard_tools(tools: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]: ...
@overload
def guard_tools(tools: Function) -> Function: ...


def guard_tools(tools: Any) -> Any:
    """Plain functions that an agent's own code calls as tools, by name: in a shadow run those that are not read-only return the
    refusal in place of a result. For one function it is also a decorator."""
    if isinstance(tools, Mapping):
        return {name: _guarded(name, function) for name, function in tools.items()}
    return _guarded(tools.__name__, tools)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def refusal() -> str | None:
        shadow = current_shadow()
        return shadow.refusal(name, function) if shadow else None

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            return refusal() or await function(*args, **kwargs)

        return asynchronous

    @wraps(function)
    def synchronous(*args: Any, **kwargs: Any) -> Any:
        return refusal() or function(*args, **kwargs)

    return synchronous
