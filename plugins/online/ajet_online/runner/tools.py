"""Which tools are read-only, and guards for tools that are plain functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar, overload

from ajet.types import ConfigError
from ajet_online.runner.calling import is_async
from ajet_online.runner.shadow import current_shadow

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__ajet_read_only__"


def read_only(function: F) -> F:
    """Declare that a function, a method or a framework's tool object only reads, so that it may run in shadow runs.

    Raises ConfigError for an object that cannot be declared, such as a built-in function.
    """
    try:
        setattr(getattr(function, "__func__", function), MARK, True)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"@read_only cannot declare {function!r}: put it directly above `def`, or give the tool's name to "
            "Runner(read_only=...)."
        ) from None
    return function


def is_read_only(function: Any) -> bool:
    """Whether a function is declared, or a function that it wraps."""
    while function is not None:
        if getattr(function, MARK, None) is True:
            return True
        if isinstance(function, partial):
            function = function.func
        else:
            function = getattr(function, "__func__", None) or getattr(function, "__wrapped__", None)
    return False


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

    return call_async if is_async(function) else call
