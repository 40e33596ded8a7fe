"""The judges that compare text: `exact` and `contains`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ajet import EpisodeView, Judge, Task, WorkflowOutput
from ajet_judges import Contains, Exact
from ajet_judges.text import expected_text


def reward(judge: Judge, response: Any, answer: Any, key: str = "answer") -> float:
    task = Task(id="t1", metadata={key: answer})
    output = WorkflowOutput(response=response)
    verdict = asyncio.run(judge.judge(task, output, EpisodeView("e1", "t1", 0, 0)))
    assert verdict.is_success == (verdict.reward == 1.0)
    return verdict.reward


def test_exact_wants_the_answer_and_nothing_else() -> None:
    assert reward(Exact(), "Paris", "Paris") == 1.0
    assert reward(Exact(), "It is Paris", "Paris") == 0.0


def test_contains_wants_the_answer_somewhere() -> None:
    assert reward(Contains(), "It is Paris.", "Paris") == 1.0
    assert reward(Contains(), "It is Rome.", "Paris") == 0.0


@pytest.mark.parametrize("judge", [Exact, Contains])
def test_case_counts_unless_it_is_ignored(judge: type[Exact] | type[Contains]) -> None:
    assert reward(judge(), "paris", "Paris") == 0.0
    assert reward(judge(ignore_case=True), "STRASSE", "Straße") == 1.0


@pytest.mark.parametrize("judge", [Exact, Contains])
def test_white_space_is_ignored_unless_it_counts(judge: type[Exact] | type[Contains]) -> None:
    assert reward(judge(), " New \n York\n", "New York") == 1.0
    assert reward(judge(ignore_whitespace=False), "New  York", "New York") == 0.0


@pytest.mark.parametrize("judge", [Exact(), Contains()])
@pytest.mark.parametrize("response", [None, "", "  "])
def test_no_response_is_wrong(judge: Judge, response: str | None) -> None:
    assert reward(judge, response, "Paris") == 0.0


@pytest.mark.parametrize("judge", [Exact(), Contains()])
def test_an_accent_is_the_same_as_one_character_or_as_two(judge: Judge) -> None:
    assert reward(judge, "caf\u00e9", "cafe\u0301") == reward(judge, "cafe\u0301", "caf\u00e9") == 1.0


@pytest.mark.parametrize("judge", [Exact(), Contains()])
def test_nan_is_a_missing_answer_and_not_the_text_nan(judge: Judge) -> None:
    with pytest.raises(ValueError, match=r"task 't1' has no metadata\['answer'\]"):
        reward(judge, "banana or nan", float("nan"))


def test_responses_and_answers_may_be_numbers() -> None:
    assert reward(Exact(), 42, "42") == 1.0
    assert reward(Exact(), "42", 42) == 1.0


def test_the_answer_may_have_another_key() -> None:
    assert reward(Exact(answer="label"), "x", "x", key="label") == 1.0


@pytest.mark.parametrize("judge", [Exact(), Contains()])
@pytest.mark.parametrize("answer", [None, " ", ["Paris"], True])
def test_a_task_without_a_usable_answer_is_an_error_that_names_it(judge: Judge, answer: Any) -> None:
    with pytest.raises(ValueError, match=r"task 't1' has .*metadata\['answer'\]"):
        reward(judge, "Paris", answer)


def test_a_task_without_the_answer_is_told_with_its_fields_and_the_nearest() -> None:
    task = Task("t", metadata={"answers": "4", "level": 1})
    said = r"has no metadata\['answer'\].*; did you mean 'answers'\. Its fields: answers, level"
    with pytest.raises(ValueError, match=said):
        expected_text(task, "answer")
