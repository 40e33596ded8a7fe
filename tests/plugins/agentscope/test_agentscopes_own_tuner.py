"""What AgentScope 1's own tuner has: ours has it too, and code that is written for it runs."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from ajet import EpisodeView, Task, WorkflowOutput

from ..programs import require

require("agentscope")
if not importlib.metadata.version("agentscope").startswith("1."):
    pytest.skip("AgentScope 1 is not installed: make test-matrix", allow_module_level=True)

from agentscope.evaluate import MetricBase, MetricResult, MetricType

from ajet_agentscope import tuner as ours
from ajet_agentscope.tuner.functions import TunerJudge

MORE_PARAMETERS = {"backbone", "resume", "progress"}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """AgentScope's tuner. Its tuning of prompts imports DSPy, which it does not install, and which nothing here calls."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("dspy", "dspy.predict", "dspy.predict.predict"):
            stand_in = ModuleType(name)
            stand_in.Module = stand_in.Prediction = stand_in.Predict = object  # type: ignore[attr-defined]
            patch.setitem(sys.modules, name, stand_in)
        from agentscope import tuner
    return tuner


def test_its_names_are_here(theirs: Any) -> None:
    assert "WorkflowOutput" in theirs.__all__ and len(theirs.__all__) > 8
    assert [name for name in theirs.__all__ if not hasattr(ours, name)] == []


def test_parameters_fields_and_defaults_are_the_same(theirs: Any) -> None:
    classes, functions = set(), set()
    for name in theirs.__all__:
        its, own = getattr(theirs, name), getattr(ours, name)
        if inspect.isclass(its) and issubclass(its, BaseModel):
            classes.add(name)
            assert defaults(own) == defaults(its), name
        elif inspect.isfunction(its):
            functions.add(name)
            asked, taken = inspect.signature(its).parameters, inspect.signature(own).parameters
            assert {k: p.default for k, p in taken.items() if k not in MORE_PARAMETERS} == {
                k: p.default for k, p in asked.items()
            }, name
    assert len(classes) >= 7 and "tune" in functions


def defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Field -> its default, whose class may be another one with the same fields."""
    found = {name: field.get_default(call_default_factory=True) for name, field in model.model_fields.items()}
    return {
        name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in found.items()
    }


class RightNumber(MetricBase):
    """The last word is the answer."""

    def __init__(self) -> None:
        super().__init__("right number", MetricType.NUMERICAL)

    async def __call__(self, answer: str, response: str) -> MetricResult:
        return MetricResult(name=self.name, result=float(response.split()[-1] == answer))


def test_a_judge_may_use_its_metrics() -> None:
    metric = RightNumber()

    async def judge(task: dict[str, Any], response: Any) -> ours.JudgeOutput:
        found = await metric(task["answer"], response)
        return ours.JudgeOutput(reward=found.result, metrics={found.name: found.result})

    task, episode = Task("t", "What is 2 + 5?", metadata={"answer": "7"}), EpisodeView("e", "t", 0, 0)
    for response, reward in (("It is 7", 1.0), ("It is 8", 0.0)):
        output = WorkflowOutput(response=response)
        verdict = asyncio.run(TunerJudge(function=judge).judge(task, output, episode))
        assert (verdict.reward, verdict.metrics) == (reward, {"right number": reward})
