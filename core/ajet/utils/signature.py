"""How to call the functions that a job names: which arguments they take, checked before anything runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Binding(NamedTuple):
    """Names of the values that a function gets, in the order of its parameters."""

    positional: tuple[str, ...]
    named: tuple[str, ...] = ()

    def partial(self, function: Callable[..., Any], values: Mapping[str, Any]) -> functools.partial[Any]:
        """The function with its share of the values as arguments."""
        arguments = [values[name] for name in self.positional]
        return functools.partial(function, *arguments, **{name: values[name] for name in self.named})


def bind(call: Callable[..., Any], offered: Sequence[str], least: int, *, skip: int = 0) -> Binding:
    """How to pass a function those of the values ``offered`` that it accepts.

    Parameters with these names get these values, in any position. Otherwise values are passed by position: at
    least the first ``least``. Further parameters that have defaults are filled only if they have a value's name.
    ``*args`` takes by position the values that no later parameter names. ``skip`` leaves out the first parameters
    (``self``). Raises TypeError, saying which signatures are allowed, for a function that fits neither way.
    """
    try:
        parameters = list(inspect.signature(call).parameters.values())[skip:]
    except ValueError:  # written in C: it has no signature
        return Binding(tuple(offered[:least]))
    required = [p for p in parameters if p.default is p.empty and p.kind in (*_BY_POSITION, *_BY_NAME)]
    named = {p.name for p in parameters if p.kind in _BY_NAME} & set(offered)
    takes_args = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_keywords = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not takes_args and named >= {p.name for p in required} and (named or takes_keywords):
        wanted = set(offered) if takes_keywords else named
        return _in_order(parameters, wanted, offered)
    positional = [p for p in parameters if p.kind in _BY_POSITION]
    by_name = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} & set(offered)
    needed = [p for p in required if p.kind in _BY_POSITION]
    passed = [n for n in offered if n not in by_name] if takes_args else list(offered)
    count = len(passed) if takes_args else max(len(needed), min(least, len(positional)))
    while count < min(len(positional), len(passed)) and positional[count].name == passed[count]:
        count += 1
    unknown = any(p.kind is p.KEYWORD_ONLY and p.name not in offered for p in required)
    enough = max(least, len(needed)) <= count <= len(offered)
    if not enough or unknown or _misplaced(positional, passed, offered):
        allowed = " or ".join(f"({', '.join(offered[:n])})" for n in range(least, len(offered) + 1))
        raise TypeError(f"must take {allowed}, but takes {inspect.signature(call)}")
    return Binding(tuple(passed[:count]), tuple(n for n in offered if n in by_name - set(passed[:count])))


def takes(call: Callable[..., Any], values: Sequence[str]) -> bool:
    """Whether a function can be called with values of these names by position, and no parameter gets the value of another
    one's name."""
    signature = inspect.signature(call)
    try:
        signature.bind(*values)
    except TypeError:
        return False
    positional = [p for p in signature.parameters.values() if p.kind in _BY_POSITION]
    return not _misplaced(positional, values, values)


def _misplaced(
    positional: Sequence[inspect.Parameter], passed: Sequence[str], offered: Sequence[str]
) -> bool:
    """Whether a parameter with the name of a value is passed another one."""
    return any(p.name in offered and p.name not in passed[i : i + 1] for i, p in enumerate(positional))


def _in_order(parameters: Sequence[inspect.Parameter], wanted: set[str], offered: Sequence[str]) -> Binding:
    """The wanted values: the leading ones by position, the rest by name."""
    front: list[str] = []
    for parameter in parameters:
        if parameter.kind not in _BY_POSITION or parameter.name not in wanted:
            break
        front.append(parameter.name)
    return Binding(tuple(front), tuple(name for name in offered if name in wanted and name not in front))
