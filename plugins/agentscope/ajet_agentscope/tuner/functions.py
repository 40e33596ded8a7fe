"""Functions of AgentScope's tuner as workflows and judges: ``run(task, model[, auxiliary_models][, logger])`` and
``judge(task, response[, auxiliary_models][, logger])``."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ajet import ConfigError, ContractBroken, EpisodeView, Judge, Task, Tuner, WorkflowOutput
from ajet import JudgeOutput as Verdict
from ajet.interfaces.helpers import called, nearest
from ajet.interfaces.workflow import LoadedWorkflow, coerce_output
from ajet_agentscope.tuner.config import JudgeOutput, ours

WORKFLOW = ("task", "model")
JUDGE = ("task", "response")
OPTIONAL = ("auxiliary_models", "logger")


def tuner_workflow(workflow: Any) -> LoadedWorkflow | None:
    """The workflow of such a function, or of an instance whose `execute` is one; None for anything else."""
    function = workflow if callable(workflow) else getattr(workflow, "execute", None)
    if not callable(function) or inspect.isclass(function):
        return None
    try:
        if fault(function, WORKFLOW):
            return None
    except ValueError:  # a function written in C may have no signature
        return None
    return LoadedWorkflow("", _run(function), True, 2)


def _run(function: Callable[..., Any]) -> Callable[[Task, Tuner], Any]:
    """``run(task, tuner)``: calls the function with a dict and AgentScope models, which do not stream unless the program sets
    ``model.stream``, as those of AgentScope's tuner. It may return any object with ``reward``, ``response`` and ``metrics``."""
    wanted = inspect.signature(function).parameters

    async def run(task: Task, tuner: Tuner) -> WorkflowOutput:
        given: dict[str, Any] = {"task": record_of(task), "model": tuner.as_agentscope_model(stream=False)}
        if "auxiliary_models" in wanted:
            given["auxiliary_models"] = {
                name: tuner.as_agentscope_model(target=name, stream=False) for name in tuner.auxiliary
            }
        if "logger" in wanted:
            given["logger"] = _logger("ajet.workflow")
        returned = function(**given)
        if inspect.isawaitable(returned):
            returned = await returned
        if isinstance(returned, float):  # a reward, as functions of AgentScope 1.0.7 to 1.0.11 return
            return WorkflowOutput(reward=returned)
        if isinstance(returned, WorkflowOutput) or not hasattr(returned, "response"):
            return coerce_output(returned)
        return WorkflowOutput(
            reward=getattr(returned, "reward", None),
            response=returned.response,
            metrics=dict(getattr(returned, "metrics", None) or {}),
        )

    return run


class TunerJudge(Judge):
    """A judge function of AgentScope's tuner."""

    name = "judge_func"
    function: Callable[..., Any]
    models: Mapping[str, Mapping[str, str]] = {}
    """The auxiliary models: for each name ``base_url``, ``model``, and ``api_key_env``, the variable with the key."""

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> Verdict:
        """See `Judge.judge`. Raises ContractBroken if the function returns something else than a JudgeOutput."""
        wanted = inspect.signature(self.function).parameters
        given: dict[str, Any] = {"task": record_of(task), "response": output.response}
        if "auxiliary_models" in wanted:
            given["auxiliary_models"] = {name: _model(where) for name, where in self.models.items()}
        if "logger" in wanted:
            given["logger"] = _logger("ajet.judge")
        call = functools.partial(self.function, **given)
        returned = await called(call, name=f"the judge of {episode.id}")
        if isinstance(returned, Verdict):
            return returned
        try:
            verdict = ours(JudgeOutput, returned)
        except TypeError:
            raise ContractBroken(
                f"judge_func: returned a {type(returned).__name__}; return JudgeOutput(reward=…)."
            ) from None
        return Verdict(verdict.reward, metrics=verdict.metrics or {})


class _Printing(logging.Handler):
    """Prints messages, so they are kept with the episode as what the function prints itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        print(self.format(record))


def _logger(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.addHandler(_Printing())
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger


def _model(where: Mapping[str, str]) -> Any:
    from ajet_agentscope import chat_model

    key = os.environ.get(where["api_key_env"]) or "unset"
    return chat_model(where["base_url"], key, where["model"], {}, stream=False)


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


class NoSuchColumn(ContractBroken, KeyError):
    """A function asks for a column that the data set does not have. As every record lacks it, this ends the run."""


class Record(dict[str, Any]):
    """A record of a data set. A column that it does not have is an error that names those that it has."""

    def __missing__(self, column: str) -> NoReturn:
        raise NoSuchColumn(
            f"task[{column!r}]: the data set has no such column; it has {', '.join(map(repr, self)) or 'none'}. "
            "Name one of these in the workflow or the judge, or rename the column."
        )


def record_of(task: Task) -> Record:
    """The record that a task was read from. Of tasks that were not read by `DatasetConfig` it has what the reader has made of
    it, too: ``id``, ``query`` and ``messages``."""
    known: dict[str, Any] = {"query": task.query, "messages": list(task.messages)}
    named = {name: value for name, value in known.items() if value}
    return Record({**({"id": task.id, **named} if named else {}), **task.metadata})
