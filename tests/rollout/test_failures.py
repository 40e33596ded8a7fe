"""Whose fault it is when a judge raises, and where."""

from __future__ import annotations

import asyncio
import functools
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.interfaces.judge import FunctionJudge, RewardFromWorkflow
from ajet.rollout.failures import Failure, describe_exception, judge_failure
from ajet.rollout.scheduler import _reward, _truth
from ajet.types import EpisodeView, Task, WorkflowOutput


def raised(call: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("output", "judge", "cause"),
    [
        (WorkflowOutput(), lambda: None.strip(), "workflow:returned_none"),
        (WorkflowOutput(), lambda: float(None), "workflow:returned_none"),
        (WorkflowOutput(), lambda: int("None"), "workflow:returned_none"),
        (WorkflowOutput(metadata={"score": 1.0}), lambda: len(None), "workflow:returned_none"),
        (WorkflowOutput(), lambda: {}["key"], "judge:KeyError"),
        (WorkflowOutput(response="text"), lambda: len(None), "judge:TypeError"),
        (WorkflowOutput(metadata={"steps": 3}), lambda: len(None), "judge:TypeError"),
    ],
)
def test_none_is_the_workflows_fault_where_the_judge_failed_because_of_it(
    output: WorkflowOutput, judge: Any, cause: str
) -> None:
    def mine(task: Task, output: WorkflowOutput) -> float:
        return 0.0

    failed = judge_failure(FunctionJudge(function=mine), output, raised(judge))
    message = failed.text
    assert failed.cause == cause and ".mine: " in message and "test_failures.py:" in message
    assert ("the workflow returned None" in message) == (
        output.response is None and "steps" not in output.metadata
    )


def without_source(lines: str) -> Any:
    """A function of a task and an output, as of an agent that was generated."""
    made: dict[str, Any] = {"np": np}
    exec(f"def asked(task, output):\n {lines}", made)
    return made["asked"]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (without_source("data = task.metadata; data['expected']"), "; its metadata has answer"),
        (without_source("(task.metadata['answer'], {}['answer'])"), ""),
        (without_source("raise KeyError(np.arange(len(task.metadata) + 1))"), "; its metadata has answer"),
        (
            lambda task, output: task.metadata["expected"],
            "Task has id, query, messages, metadata; its metadata has answer",
        ),
        (lambda task, output: task.answer, "Task has id, query, messages, metadata; its metadata has answer"),
        (
            lambda task, output: task["answer"],
            "Task has id, query, messages, metadata; its metadata has answer",
        ),
        (lambda task, output: "4" in output, "WorkflowOutput has reward, response, is_success, metadata"),
        (lambda task, output: "4" in 4, ""),
        (lambda task, output: output.text, "WorkflowOutput has reward, response, is_success, metadata"),
        (lambda task, output: {}["metadata"], ""),
        (lambda task, output: task.query.answer, ""),
        (lambda task, output: {}["expected"], ""),
    ],
)
def test_what_a_task_or_an_output_has_is_told_to_who_asks_for_something_else(ask: Any, said: str) -> None:
    task, output = Task("t", metadata={"answer": "4"}), WorkflowOutput(response="4")
    told = describe_exception(raised(lambda: ask(task, output)))
    assert (said in told) if said else " has id" not in told, told


def test_a_text_without_a_judge_is_called_text_whatever_its_class() -> None:
    class TextAccessor(str):
        """As LangChain's."""

    output, episode = WorkflowOutput(response=TextAccessor("4")), EpisodeView("1.0/t/0", "t", 0, 0)
    failed = raised(lambda: asyncio.run(RewardFromWorkflow().judge(Task("t"), output, episode)))
    assert "the workflow returned text, no reward, and the job names no judge" in str(failed)


def test_the_line_is_the_users_and_never_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ajet_judges.text import expected_text

    (tmp_path / "users_judge.py").write_text("def judge(ask):\n    return ask()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    judge = importlib.import_module("users_judge").judge
    ask = functools.partial(expected_text, Task("t"))
    assert describe_exception(raised(lambda: judge(ask))).endswith(f"({tmp_path / 'users_judge.py'}:2)")


@pytest.mark.parametrize(
    "cause", ["timeout", "judge:timeout", "workflow:KeyError", "nothing_captured", "engine"]
)
def test_a_failure_is_read_back_from_its_cause(cause: str) -> None:
    failed = Failure.parse(cause, "text")
    assert (failed.cause, failed.text) == (cause, "text")
    assert failed.remedy != Failure.parse("workflow:returned_none", "").remedy


@pytest.mark.parametrize(
    ("given", "reward", "success"),
    [(np.bool_(True), 1.0, True), (np.float32(0.5), 0.5, None), (np.int64(2), 2.0, None), (True, 1.0, True)],
)
def test_a_judge_may_return_numbers_and_bools_of_numpy(
    given: Any, reward: float, success: bool | None
) -> None:
    judge = FunctionJudge(function=lambda task, output: given)
    verdict = asyncio.run(judge.judge(Task("t"), WorkflowOutput(), EpisodeView("e", "t", 0, 0)))
    assert (verdict.reward, verdict.is_success) == (reward, success) and type(verdict.reward) is float


def test_rewards_that_differ_only_by_rounding_are_kept_as_one() -> None:
    assert _reward("the reward", 0.1 + 0.2) == _reward("the reward", 0.3) == 0.3
    assert _reward("the reward", 0.3 - 0.2 - 0.1) == 0.0 and _reward("the reward", 1e-7) == 1e-7


@pytest.mark.parametrize("value", [True, 1, 1.0, np.bool_(True), np.array(1)])
def test_success_is_what_means_yes_or_no(value: Any) -> None:
    assert _truth(value) is True and _truth(None) is None and _truth(np.bool_(False)) is False


@pytest.mark.parametrize("value", ["no", "false", 0.5, [True]])
def test_success_is_not_what_happens_to_be_true(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^is_success is .*; expected True, False or None$"):
        _truth(value)
