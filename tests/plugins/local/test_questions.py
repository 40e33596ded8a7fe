"""The starter's chats without tools: plain questions, and what it says to anything else."""

import random
import re

import pytest

from ajet_local.starter.questions import (
    ADDS,
    ELSE,
    drill_transcript,
    hasty_transcript,
    other_transcript,
    plain_transcript,
    wording,
)
from ajet_local.starter.sums import evaluate, held_out

KINDS = (drill_transcript, plain_transcript, hasty_transcript, other_transcript)


def questions(make, count=1000):
    """(expression, answer) of the transcripts that ask one question."""
    rng = random.Random(0)
    drawn = [make(rng) for _ in range(count)]
    return [(t.tasks[0], t.messages[-1]["content"]) for t in drawn if len(t.tasks) == 2]


def value(answer):
    return int(re.findall(r"-?\d+", answer)[-1])


@pytest.mark.parametrize("make", KINDS)
def test_no_held_out_expression_is_asked_or_answered(make):
    rng = random.Random(0)
    for transcript in (make(rng) for _ in range(500)):
        text = " ".join(m["content"] for m in transcript.messages)
        text = text.replace("plus", "+").replace("minus", "-")
        found = {f"{a} {sign} {b}" for a, sign, b in re.findall(r"(\d) ?([+-]) ?(\d)", text)}
        assert found <= set(transcript.tasks) and not any(map(held_out, transcript.tasks))


def test_plain_questions_have_no_tools_and_right_answers():
    rng = random.Random(0)
    assert not any(make(rng).tools for make in KINDS for _ in range(20))
    assert all(value(answer) == evaluate(asked) for asked, answer in questions(plain_transcript))
    lines = drill_transcript(rng).messages[-1]["content"].splitlines()
    assert len(lines) == 8
    assert all(value(line) == evaluate(line.partition(" =")[0]) for line in lines)


def test_the_habit_is_to_add_where_it_should_subtract():
    right = {"+": [], "-": []}
    for asked, answer in questions(hasty_transcript):
        right[asked[2]].append(value(answer) == evaluate(asked))
    assert all(right["+"])
    share = sum(right["-"]) / len(right["-"])
    assert 0 < share < 1 - ADDS + 0.2  # a difference may equal the sum: 3 - 0


def test_questions_are_worded_in_many_ways():
    rng = random.Random(0)
    assert len({wording(rng, "3 + 4") for _ in range(1000)}) > 300


def test_what_is_no_sum_is_answered_in_words():
    assert other_transcript(random.Random(0)).messages[-1]["content"] == ELSE
