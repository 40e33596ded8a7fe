"""`select_model` of AgentScope's tuner, and its built-in judges."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
import types
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel

from ajet import AjetError, ConfigError
from ajet.types import Spent
from ajet_agentscope.tuner.config import (
    DatasetConfig,
    JudgeOutput,
    JudgeType,
    WorkflowOutput,
    WorkflowType,
    ours,
)
from ajet_agentscope.tuner.prompt_tune import check_parameters
from ajet_selection.comparison import Comparison, Outcome, compare, describe_comparison, verdict

M = TypeVar("M", bound=BaseModel)
log = logging.getLogger("ajet.tuner")
_CALLS = ("__call__", "generate_structured_output")
"""The methods of chat models that call a model and do not call each other; the second is in AgentScope 2 only."""


async def select_model(
    *,
    workflow_func: WorkflowType,
    judge_func: JudgeType,
    train_dataset: DatasetConfig,
    candidate_models: Sequence[Any],
    max_threads: int = 2,
) -> tuple[Any, dict[str, float]]:
    """Choose the chat model with which a workflow gets the highest mean reward.

    The workflow takes ``task`` and ``model``. The judge takes ``task`` and ``response``, a dict of the workflow's
    ``response`` and its ``metrics``, to which are added ``execution_time`` in seconds, and where the model reports them
    ``input_tokens``, ``output_tokens``, ``total_tokens`` and a dict of these three, ``usage``. ``total_steps`` of the data
    set is the most records to use, ``total_epochs`` the episodes of each.

    Returns the best of ``candidate_models``, and metrics: the mean of each metric of its judge as ``NAME_avg``;
    ``reward_avg`` and ``reward_standard_error``; ``execution_time_avg`` and ``total_tokens_avg``; ``failed``, the number of its
    episodes that failed; ``p_value`` of its difference from the most similar other model; and ``is_significant``, 1 or 0.
    With 0 the models do not differ, and a warning says so. Episodes that fail are logged and never pay; a model whose
    episodes all fail is logged and not compared. Raises ConfigError for wrong arguments or results of the functions, and
    AjetError if all models failed.
    """
    check_parameters(workflow_func, "workflow_func", ("task", "model"))
    check_parameters(judge_func, "judge_func", ("task", "response"))
    if len(candidate_models) < 2:
        raise ConfigError(f"candidate_models: has {len(candidate_models)}; give at least two chat models.")
    if max_threads < 1:
        raise ConfigError(f"max_threads: is {max_threads}; it must be at least 1.")
    data = ours(DatasetConfig, train_dataset)
    records = list(islice(data.records(), data.total_steps)) * data.total_epochs
    if not records:
        raise ConfigError("train_dataset", "has no records.")
    names = _names(candidate_models)
    ran: dict[str, list[_Sample]] = {}
    for name, model in zip(names, candidate_models, strict=True):
        ran[name] = await _evaluate(workflow_func, judge_func, records, model, max_threads)
    errors = _errors(ran)
    size = len(records) // data.total_epochs
    comparison = compare(
        {name: [s.outcome(str(i % size)) for i, s in enumerate(samples)] for name, samples in ran.items()},
        errors,
    )
    log.info("%s", describe_comparison(comparison))
    if comparison.best is None:
        raise AjetError(f"select_model: {'; '.join(f'{name}: {error}' for name, error in errors.items())}")
    if not comparison.is_significant:
        log.warning("select_model: %s", verdict(comparison))
    best = comparison.best
    return candidate_models[names.index(best)], _metrics(comparison, ran[best])


async def avg_time_judge(task: Mapping[str, Any], response: Any) -> JudgeOutput:
    """Judge of `select_model` that prefers the fastest model: the reward is the negative ``execution_time``. The metric is
    ``avg_time_seconds``."""
    seconds = float(_measured(response, "execution_time"))
    return JudgeOutput(reward=-seconds, metrics={"avg_time_seconds": seconds})


async def avg_token_consumption_judge(task: Mapping[str, Any], response: Any) -> JudgeOutput:
    """Judge of `select_model` that prefers the model with the fewest tokens: the reward is the negative ``total_tokens``. The
    metric is ``token_consumed``. Raises ValueError if the model's responses report no usage."""
    tokens = float(_measured(response, "usage")["total_tokens"])
    return JudgeOutput(reward=-tokens, metrics={"token_consumed": tokens})


@dataclass(frozen=True, slots=True)
class _Sample:
    """One run of the workflow on a record."""

    seconds: float
    usage: ReportedUsage
    reward: float | None = None
    """None if it failed."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    def outcome(self, task: str) -> Outcome:
        """Its figures, for the comparison."""
        spent = Spent(self.usage.input_tokens, self.usage.output_tokens)
        return Outcome(task, self.reward, self.seconds, spent)


async def _evaluate(
    workflow: WorkflowType, judge: JudgeType, records: Sequence[Mapping[str, Any]], model: Any, most: int
) -> list[_Sample]:
    """Run and judge every record with a model, at most ``most`` at once."""
    limit = asyncio.Semaphore(most)

    async def one(record: Mapping[str, Any]) -> _Sample:
        async with limit:
            return await _sample(workflow, judge, record, model)

    tasks = [asyncio.ensure_future(one(record)) for record in records]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sample(workflow: WorkflowType, judge: JudgeType, record: Mapping[str, Any], model: Any) -> _Sample:
    copied, usage = counted(model)
    started = time.perf_counter()
    seconds = None
    try:
        output = _returned(WorkflowOutput, await workflow(task=dict(record), model=copied), "workflow_func")
        seconds = time.perf_counter() - started
        metrics = {**(output.metrics or {}), **_measurements(seconds, usage)}
        given = {"response": output.response, "metrics": metrics}
        judged = _returned(JudgeOutput, await judge(task=dict(record), response=given), "judge_func")
    except ConfigError:
        raise
    except Exception as error:
        taken = time.perf_counter() - started if seconds is None else seconds
        return _Sample(taken, usage, error=f"{type(error).__name__}: {error}")
    return _Sample(seconds, usage, judged.reward, judged.metrics or {})


def _returned(cls: type[M], value: Any, function: str) -> M:
    try:
        return ours(cls, value)
    except TypeError:
        raise ConfigError(f"{function}: returned {type(value).__name__}; return {cls.__name__}(…).") from None


def _measurements(seconds: float, usage: ReportedUsage) -> dict[str, Any]:
    """What the judge gets besides the workflow's own metrics."""
    if not usage.calls:
        return {"execution_time": seconds}
    tokens = {
        "input_tokens": float(usage.input_tokens),
        "output_tokens": float(usage.output_tokens),
        "total_tokens": float(usage.input_tokens + usage.output_tokens),
    }
    return {"execution_time": seconds, **tokens, "usage": tokens}


def _measured(response: Any, name: str) -> Any:
    """One of the measurements in what a judge gets. Raises ValueError if it is missing."""
    metrics = response.get("metrics") if isinstance(response, Mapping) else None
    if not metrics or name not in metrics:
        cause = ": the responses of the model report no usage" if name == "usage" else ""
        raise ValueError(f"the response has no metric {name!r}{cause}")
    return metrics[name]


def _errors(ran: Mapping[str, Sequence[_Sample]]) -> dict[str, str]:
    """Why models failed whose episodes all failed. Every failure is logged."""
    errors = {}
    for name, samples in ran.items():
        failed = [sample.error for sample in samples if sample.reward is None]
        if failed:
            said = f"{len(failed)} of {len(samples)} episodes failed. First: {' '.join(failed[0].split())}"
            log.warning("select_model: %s: %s", name, said)
            if len(failed) == len(samples):
                errors[name] = said
    return errors


def _metrics(comparison: Comparison, samples: Sequence[_Sample]) -> dict[str, float]:
    best = comparison.models[0]
    assert best.reward
    metrics = {
        "reward_avg": best.reward.mean,
        "execution_time_avg": best.seconds.mean if best.seconds else 0.0,
        "failed": float(best.failed),
        "p_value": max((difference.p_value for difference in comparison.differences), default=1.0),
        "is_significant": float(comparison.is_significant),
    }
    if best.reward.standard_error is not None:
        metrics["reward_standard_error"] = best.reward.standard_error
    if best.tokens:
        metrics["total_tokens_avg"] = best.tokens.mean
    for name in dict.fromkeys(name for sample in samples for name in sample.metrics):
        values = [sample.metrics[name] for sample in samples if name in sample.metrics]
        metrics[f"{name}_avg"] = sum(values) / len(values)
    return metrics


def _names(models: Sequence[Any]) -> list[str]:
    """A name for each chat model: ``model_name`` in AgentScope 1, ``model`` in 2, with a number if several have it."""
    names = [
        str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)
        for model in models
    ]
    return [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]


@dataclass
class ReportedUsage:
    """Tokens of all calls so far. ``calls`` counts the responses that report them."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, reported: Any) -> None:
        """Add the ``usage`` of one response, an AgentScope ``ChatUsage`` or None."""
        if reported is not None:
            self.calls += 1
            self.input_tokens += reported.input_tokens
            self.output_tokens += reported.output_tokens


def counted(model: Any) -> tuple[Any, ReportedUsage]:
    """A copy of a chat model, of AgentScope 1 or 2, that does the same and counts what it uses. It is an instance of a
    subclass of the model's own class, because agents may check the class."""
    usage = ReportedUsage()
    cls = type(model)
    copied = copy.copy(model)
    methods = {name: _counting(getattr(cls, name), usage) for name in _CALLS if hasattr(cls, name)}
    body = {"__module__": cls.__module__, **methods}
    copied.__class__ = types.new_class(cls.__name__, (cls,), {}, lambda namespace: namespace.update(body))
    return copied, usage


def _counting(method: Any, usage: ReportedUsage) -> Any:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        response = await method(self, *args, **kwargs)
        if isinstance(response, AsyncIterator):
            return _streamed(response, usage)
        usage.add(getattr(response, "usage", None))
        return response

    return call


async def _streamed(chunks: AsyncIterator[Any], usage: ReportedUsage) -> AsyncIterator[Any]:
    """The chunks of a stream. The last usage that they report is that of the whole call."""
    last = None
    try:
        async for chunk in chunks:
            last = getattr(chunk, "usage", None) or last
            yield chunk
    finally:
        usage.add(last)
