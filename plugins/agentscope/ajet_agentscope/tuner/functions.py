"""Workflow functions of AgentScope's tuner, ``run(task, model[, auxiliary_models][, logger])``, as workflows."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from ajet import Task, Tuner, WorkflowOutput
from ajet.interfaces.workflow import Workflow, coerce_output

PARAMETERS = ("task", "model", "auxiliary_models", "logger")
"""Parameters that such a function may have; the first two are required."""


def tuner_workflow(workflow: Any) -> Workflow | None:
    """The workflow of such a function, or of an instance whose `execute` is one; None for anything else."""
    function = workflow if callable(workflow) else getattr(workflow, "execute", None)
    if not callable(function) or inspect.isclass(function):
        return None
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a function written in C may have no signature
        return None
    by_position = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in [*parameters.values()][:2])
    if not by_position or (*parameters,)[:2] != PARAMETERS[:2] or not set(parameters) <= set(PARAMETERS):
        return None
    return Workflow("", _run(function, set(parameters)), True, 2)


def _run(function: Callable[..., Any], wanted: set[str]) -> Callable[[Task, Tuner], Any]:
    """``run(task, tuner)``: calls the function with a dict and AgentScope models. It may return any object with
    ``reward``, ``response`` and ``metrics``."""

    async def run(task: Task, tuner: Tuner) -> WorkflowOutput:
        further: dict[str, Any] = {}
        if "auxiliary_models" in wanted:
            further["auxiliary_models"] = {
                name: tuner.as_agentscope_model(target=name) for name in tuner.auxiliary
            }
        if "logger" in wanted:
            further["logger"] = logging.getLogger("ajet.workflow")
        returned = function(_as_dict(task), tuner.as_agentscope_model(), **further)
        if inspect.isawaitable(returned):
            returned = await returned
        if isinstance(returned, WorkflowOutput) or not hasattr(returned, "response"):
            return coerce_output(returned)
        return WorkflowOutput(
            reward=getattr(returned, "reward", None),
            response=returned.response,
            metrics=dict(getattr(returned, "metrics", None) or {}),
        )

    return run


def _as_dict(task: Task) -> dict[str, Any]:
    """The record that the task was read from, as AgentScope's tuner passes it."""
    known: dict[str, Any] = {"id": task.id, "query": task.query, "messages": list(task.messages)}
    return {**{k: v for k, v in known.items() if v}, **task.metadata}
