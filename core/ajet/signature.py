"""How the functions that a job names are called: which arguments they take, found out before anything runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Binding(NamedTuple):
    """Names of the values that a function is given, in the order of its parameters."""

    positional: tuple[str, ...]
    named: tuple[str, ...] = ()

    def partial(self, function: Callable[..., Any], values: Mapping[str, Any]) -> functools.partial[Any]:
        """The function with its share of the values as arguments."""
        arguments = [values[name] for name in self.positional]
        return functools.partial(function, *arguments, **{name: values[name] for name in self.named})


def bind(call: Callable[..., Any], offered: Sequence[str], least: int, *, skip: int = 0) -> Binding:
    """How to give a function what it wants of the values ``offered``.

    Parameters with these names get these values, wherever they stand. Otherwise the values go by position: the
    first ``least`` of them at least, and a parameter with a default only up to there or by its name. ``skip``
    leaves out the first parameters (``self``). Raises TypeError, saying which signatures are allowed, for a
    function that fits neither way.
    """
    try:
        parameters = list(inspect.signature(call).parameters.values())[skip:]
    except ValueError:  # written in C: it cannot be asked
        return Binding(tuple(offered[:least]))
    required = [p for p in parameters if p.default is p.empty and p.kind in (*_BY_POSITION, *_BY_NAME)]
    named = {p.name for p in parameters if p.kind in _BY_NAME} & set(offered)
    takes_args = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_keywords = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if named >= {p.name for p in required} and (named or (takes_keywords and not takes_args)):
        wanted = set(offered) if takes_keywords else named
        return _in_order(parameters, wanted, offered)
    positional = [p for p in parameters if p.kind in _BY_POSITION]
    by_name = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} & set(offered)
    needed = [p for p in required if p.kind in _BY_POSITION]
    count = max(len(needed), min(least, len(positional)))
    if takes_args:
        count = len(offered)
    while count < min(len(positional), len(offered)) and positional[count].name == offered[count]:
        count += 1
    misplaced = any(p.name in offered and p.name not in offered[i : i + 1] for i, p in enumerate(positional))
    unknown = any(p.kind is p.KEYWORD_ONLY and p.name not in offered for p in required)
    if misplaced or unknown or not least <= count <= len(offered):
        allowed = " or ".join(f"({', '.join(offered[:n])})" for n in range(least, len(offered) + 1))
        raise TypeError(f"must take {allowed}, but takes {inspect.signature(call)}")
    return Binding(tuple(offered[:count]), tuple(n for n in offered[count:] if n in by_name))


def _in_order(parameters: Sequence[inspect.Parameter], wanted: set[str], offered: Sequence[str]) -> Binding:
    """The wanted values by position as far as they stand in front, the rest by name."""
    front: list[str] = []
    for parameter in parameters:
        if parameter.kind not in _BY_POSITION or parameter.name not in wanted:
            break
        front.append(parameter.name)
    return Binding(tuple(front), tuple(name for name in offered if name in wanted and name not in front))
