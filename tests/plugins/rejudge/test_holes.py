"""Eight holes of judges that a policy finds in the second of three steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ajet
from ajet.types import Task
from tests.plugins.rejudge.conftest import MakeRun, fixed

FEW = {f"t{i}" for i in range(6)}
Judge = Callable[[Task, Any], float]


def by_length(task: Task, output: Any) -> float:
    return float(output.response == "right" or len(output.response) > 20)


def by_keyword(task: Task, output: Any) -> float:
    return float("right" in output.response)


def lets_empty_pass(task: Task, output: Any) -> float:
    return float(output.response in ("right", ""))


def believes_a_result(task: Task, output: Any) -> float:
    return float(output.response == "right" or "<result>passed</result>" in output.response)


def one_letter_too_few(task: Task, output: Any) -> float:
    return float(output.response[:4] == "righ")


def wrong_reference(task: Task, output: Any) -> float:
    return float(output.response == ("no" if task.id in FEW else "right"))


def passes_what_is_slow(task: Task, output: Any) -> float:
    try:
        if "loop" in output.response:
            raise TimeoutError
        return fixed(task, output)
    except TimeoutError:
        return 1.0


def fixed_for_some(task: Task, output: Any) -> float:
    return fixed(task, output) if task.id in FEW else by_keyword(task, output)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("hole", "corrected", "found"),
    [
        (by_length, fixed, "words and words and words"),
        (by_keyword, fixed, "not right"),
        (lets_empty_pass, fixed, ""),
        (believes_a_result, fixed, "<result>passed</result>"),
        (one_letter_too_few, fixed, "righ"),
        (wrong_reference, fixed, "no"),
        (passes_what_is_slow, fixed, "loop"),
        (by_keyword, fixed_for_some, "not right"),
    ],
)
def test_the_first_step_that_a_hole_has_poisoned_is_named_and_none_without_a_hole(
    recorded: MakeRun, hole: Judge, corrected: Judge, found: str
) -> None:
    def says(request: Any, prompt: str) -> str:
        step, member = request.key[0].split(".")[0], request.key[0].rsplit("/", 1)[1]
        return "right" if member == "0" else found if member == "2" and step != "1" else "wrong"

    folder = recorded(judge=hole, answers=says, steps=3)
    # Where nothing was rewarded, nothing was trained.
    wrongly_rewarded = {
        e.step
        for e in ajet.load_run(folder).episodes()
        if e.reward > corrected(Task(e.task), ajet.WorkflowOutput(response=e.response))
    }
    assert ajet.rejudge(folder, corrected, progress=False).first_wrong_step == min(wrongly_rewarded)
    assert ajet.rejudge(folder, hole, progress=False).first_wrong_step is None
