"""The parameters of workflow and judge functions, which AgentScope's tuner passes by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ajet import ConfigError
from ajet.interfaces.helpers import nearest

WORKFLOW = ("task", "model")
JUDGE = ("task", "response")
OPTIONAL = ("auxiliary_models", "logger")


class WrongParameters(ConfigError, ValueError):
    """A function has other parameters than the tuner passes. AgentScope's own checks raise ValueError."""


def check_workflow_function(func: Callable[..., Any]) -> None:
    """Raises WrongParameters unless a function takes ``task`` and ``model``, and perhaps ``auxiliary_models`` and
    ``logger``."""
    _check(func, "workflow_func", WORKFLOW)


def check_judge_function(func: Callable[..., Any]) -> None:
    """Raises WrongParameters unless a function takes ``task`` and ``response``, and perhaps ``auxiliary_models`` and
    ``logger``."""
    _check(func, "judge_func", JUDGE)


def fault(func: Callable[..., Any], needed: Sequence[str]) -> str | None:
    """What is wrong with the parameters of a function, in words; None if nothing is. Raises ValueError for one that has no
    signature, as some functions written in C."""
    allowed = (*needed, *OPTIONAL)
    parameters = inspect.signature(func).parameters
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return f"has {parameter}"
        if parameter.kind is parameter.POSITIONAL_ONLY:
            return f"takes {parameter.name!r} by position only"
    unknown = next((name for name in parameters if name not in allowed), None)
    if unknown is not None:
        return f"has the parameter {unknown!r}{nearest(unknown, allowed)}"
    missing = next((name for name in needed if name not in parameters), None)
    return None if missing is None else f"lacks the parameter {missing!r}"


def _check(func: Callable[..., Any], argument: str, needed: Sequence[str]) -> None:
    if not callable(func):
        raise WrongParameters(f"{argument}: is a {type(func).__name__}, which is not callable.")
    wrong = fault(func, needed)
    if wrong:
        name = getattr(func, "__name__", type(func).__name__)
        raise WrongParameters(
            f"{argument}: {name} {wrong}. It must take {' and '.join(needed)}, and may take {' and '.join(OPTIONAL)}."
        )
