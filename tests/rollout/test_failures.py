"""Whose fault it is when a judge raises, and where."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import pytest

from ajet.interfaces.judge import FunctionJudge
from ajet.rollout.failures import Failure, describe_exception, judge_failure
from ajet.types import Task, WorkflowOutput


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
