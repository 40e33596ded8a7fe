"""The `math` judge: the number that a response states, compared exactly."""

from __future__ import annotations

import asyncio
import time
from fractions import Fraction
from typing import Any

import pytest

from ajet import EpisodeView, Task, WorkflowOutput
from ajet_judges import Math
from ajet_judges.numbers import final_number, unlike
from tests.tiers import thinned


def reward(response: Any, answer: Any, judge: Math | None = None) -> float:
    task = Task(id="t1", metadata={"answer": answer})
    output = WorkflowOutput(response=response)
    verdict = asyncio.run((judge or Math()).judge(task, output, EpisodeView("e1", "t1", 0, 0)))
    assert verdict.is_success == (verdict.reward == 1.0)
    return verdict.reward


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("42", "42.0"),
        ("1,000", "1000"),
        ("3/4", "0.75"),
        (42, 42.0),
        ("42", "#### 42"),
        (r"\boxed{\frac{3}{4}}", "3/4"),
        ("1.5e3", 1500),
        ("0.1", 0.1),
        ("0.3333333333333333333333", "0.3333333333333333333333"),
    ],
)
def test_equal_values_in_any_notation_are_right(response: Any, answer: Any) -> None:
    assert reward(response, answer) == 1.0


@pytest.mark.parametrize(
    ("response", "answer"), [("41", "42"), ("-42", "42"), ("0.333", "1/3"), ("420", "42")]
)
def test_other_values_are_wrong(response: str, answer: str) -> None:
    assert reward(response, answer) == 0.0


def test_another_symbol_of_a_unit_is_another_answer() -> None:
    assert reward(r"\boxed{5 \text{ m}}", "5 cm") == reward("It weighs 5 g.", "5 kg") == 0.0
    assert reward(r"\boxed{5}", "5 cm") == reward("5 meters", "5 m") == reward("5 cm", "5 cm") == 1.0


def test_another_word_for_a_unit_is_another_answer() -> None:
    assert reward(r"\boxed{2 minutes}", "2 hours") == reward("It costs 5 cents.", "5 dollars") == 0.0
    assert reward("2 hrs", "2 hours") == reward("2 h", "2 hours") == reward("2", "2 hours") == 1.0
    assert reward("5 kilometers", "5 km") == reward("7 apples", "7 pears") == 1.0


@pytest.mark.parametrize(
    "response", [r"\boxed{2024-05-03}", r"\boxed{2016}", "It was on 2024-05-03.", "2016"]
)
def test_another_date_is_another_answer_though_its_difference_is_equal(response: str) -> None:
    assert reward(response, "2024-03-05") == 0.0


@pytest.mark.parametrize("response", [r"\boxed{2024-03-05}", r"\boxed{2024/3/5}", "It was on 2024-03-05."])
def test_a_date_is_the_same_day(response: str) -> None:
    assert reward(response, "2024-03-05") == 1.0


def test_bases_above_ten_are_bases() -> None:
    assert reward(r"\boxed{A1_{12}}", "A1_{16}") == reward(r"\boxed{FF_{17}}", "FF_{16}") == 0.0
    assert reward(r"\boxed{A1_{16}}", "A1_{16}") == reward(r"\boxed{255}", "FF_{16}") == 1.0


@pytest.mark.parametrize("response", [None, "", "I do not know", "1/0", "9" * 5000, r"\boxed{}"])
def test_a_response_without_a_number_is_wrong(response: str | None) -> None:
    assert reward(response, "42") == 0.0


@pytest.mark.parametrize("answer", [None, "", ["42"], "forty-two", float("nan")])
@pytest.mark.parametrize("response", ["42", None])
@thinned
def test_a_task_without_a_number_is_an_error_that_names_it(answer: Any, response: str | None) -> None:
    with pytest.raises(ValueError, match="task 't1'"):
        reward(response, answer)


def test_the_answer_may_have_another_key() -> None:
    task = Task(id="t1", metadata={"solution": "42"})
    output = WorkflowOutput(response="42")
    assert (
        asyncio.run(Math(answer="solution").judge(task, output, EpisodeView("e1", "t1", 0, 0))).reward == 1.0
    )


def test_tolerance_is_the_largest_accepted_difference() -> None:
    near = Math(tolerance=0.1)
    assert reward("3.1", "3", near) == 1.0  # a tenth in decimal notation, whatever the doubles are
    assert reward("3.11", "3", near) == 0.0


def test_a_percent_sign_on_one_side_has_both_readings() -> None:
    assert reward("50%", "50") == reward("50%", "0.5") == reward("50", "50%") == 1.0
    assert reward("50%", "0.5%") == 0.0


# ------------------------------------------------------------------ which number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("First 7, then 12.", 12),
        ("7 * 6 = **42**", 42),
        ("2 of them, so __-$42__", -42),
        ("_42_ of x_1", 42),
        ("答案是42。", 42),
        ("so...42", 42),
        ("the 42nd", 42),
        ("H2O has 3", 3),
        ("1, 2, 3", 3),
    ],
)
def test_the_last_number_of_the_text_counts(text: str, value: int) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\boxed{42}, found in step 7", 42),
        (r"first \boxed{1}, no: \boxed{2}", 2),
        (r"$\boxed{-\dfrac{1}{3}}$", Fraction(-1, 3)),
        (r"\boxed{\boxed{5}}", 5),
        (r"\boxed{x = 7}", 7),
        (r"\boxed{$12$}", 12),
        (r"\boxed{1{,}000}", 1000),
        (r"\boxed{1 234 567}", 1_234_567),
        (r"\boxed{1\,000 \text{ cm}^2}", 1000),
        (r"\boxed{90^\circ}", 90),
        (r"\boxed{5\text{ apples}}", 5),
        (r"\boxed{2\frac{1}{2}}", Fraction(5, 2)),
    ],
)
def test_a_box_beats_the_text_and_the_last_box_counts(text: str, value: Fraction | int) -> None:
    assert number(text) == value


@pytest.mark.parametrize("content", [r"\sqrt{2}", "5 or 6", "2x", r"\{1,2\}", "2^{10}", "none"])
def test_a_box_with_anything_but_a_number_has_none(content: str) -> None:
    assert final_number(rf"I had 2 but it is \boxed{{{content}}}") is None


def test_a_box_that_was_cut_off_counts_as_the_last() -> None:
    assert number(r"\boxed{1} then \boxed{2") == 2
    assert number(r"\boxed{42") == 42


# ------------------------------------------------------------------ how it is written


@pytest.mark.parametrize("minus", ["-", "\u2212", "\u2013", "\u2011", "\ufe63", "\uff0d"])
def test_every_minus_is_a_minus(minus: str) -> None:
    assert number(f"it is {minus}5") == -5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("+7", 7),
        ("(-5)", -5),
        ("a=-5", -5),
        ("10-3", 3),
        ("x-3", 3),
        ("$5", 5),
        ("-$5", -5),
        ("$-5", -5),
        ("€1,234.50", Fraction("1234.5")),
        ("US$5", 5),
        (".5", Fraction(1, 2)),
        ("-0.0", 0),
        ("0042", 42),
        ("1 / 3", Fraction(1, 3)),
        ("-3/4", Fraction(-3, 4)),
        ("3 1/2", Fraction(7, 2)),
        ("1,000,000", 1_000_000),
        ("1'000'000", 1_000_000),
        ("1\u202f234\u00a0567", 1_234_567),
        ("\uff14\uff12", 42),
        ("\u0664\u0662", 42),
        ("5'10", 10),
    ],
)
def test_signs_currencies_thousands_and_fractions(text: str, value: Fraction | int) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        " " * 20_000,
        r"\boxed{" * 5_000,
        r"\text{" * 8_000,
        "1 " * 20_000,
        "1/" * 20_000,
        "1,234" * 5_000,
        r"\boxed{5" + " " * 20_000 + "!}",
        r"\boxed{1" + "a" * 30_000 + "!}",
        "1e999999999",
        "\\( 1 + " * 5_000,
        "$1 + " * 5_001,
        r"\boxed{1}, " * 3_000,
        "1" + " " * 30_000 + "1:1 : " * 5_000,
        "1, 2 and " * 8_000 + "x",
        "1 \\times 10^{" * 5_000,
    ],
)
def test_whatever_a_model_writes_is_read_at_once(text: str) -> None:
    start = time.process_time()
    final_number(text)
    assert time.process_time() - start < 1.0


def number(text: str) -> Fraction:
    found = final_number(text)
    assert found is not None
    return found.value


@pytest.mark.parametrize(
    ("reference", "response", "differs"),
    [
        ("5 m", r"\boxed{5 \text{ cm}}", True),
        ("5 m", r"\boxed{500 \text{ cm}}", True),
        ("5 cm", r"\boxed{5}", False),
        ("12 apples", "There are 12.", False),
        ("2 apples", "2 apple", False),
        ("50%", "0.5", True),
        ("1010_2", r"\boxed{1010}", True),
        ("42", "42", False),
    ],
)
def test_equal_numbers_of_different_units_are_not_certain(
    reference: str, response: str, differs: bool
) -> None:
    assert unlike(reference, response) is differs
