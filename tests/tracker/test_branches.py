"""Branches that no later call used: found without a break, by what later prompts contain and quote."""

from __future__ import annotations

import time

import pytest

from ajet.tracker.branches import unused
from ajet.tracker.breaks import find_breaks
from tests.tracker.test_breaks import U2, U3, Episode, S, U, X, Y, Z, said, tool, user

SUMMARIES = [said(f"Summary {n}: one and one is two.") for n in range(3)]
FRESH = [S, user(f"So far: {SUMMARIES[2]['content']}\nAnd twice that?")]


@pytest.fixture
def episode() -> Episode:
    return Episode()


def test_a_conversation_and_its_result_are_used(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    chat = episode.call([*chat, U2], Y)
    episode.call([*chat, U3], Z)
    assert unused(episode.record) == frozenset()


def test_rejected_summaries_are_found_when_a_fresh_context_quotes_another_one(episode: Episode) -> None:
    for answer in SUMMARIES:
        episode.call([S, U], answer)
    episode.call(FRESH, Z)
    assert unused(episode.record) == {0, 1} and not find_breaks(episode.record)


def test_so_are_those_that_were_asked_for_in_other_words(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    for number, answer in enumerate(SUMMARIES):
        episode.call([*chat, user(f"Summarise, attempt {number}.")], answer)
    episode.call(FRESH, Z)
    assert unused(episode.record) == {1, 2}


def test_a_whole_branch_is_unused_if_its_end_is(episode: Episode) -> None:
    first = said("", '{"a": 1}', ids="first")
    second = said("", '{"a": 2}', ids="second")
    chat = episode.call([S, U], first)
    episode.call([*chat, tool("failed", "first0")], X)
    chat = episode.call([S, U, U2], second)
    episode.call([*chat, tool("4", "second0")], Y)
    assert unused(episode.record) == {0, 1}


def test_an_answer_that_was_edited_is_used(episode: Episode) -> None:
    episode.call([S, U], X)
    episode.call([S, U, said("It is 2."), U2], Y)
    assert unused(episode.record) == frozenset()


def test_a_choice_whose_sibling_went_on_is_unused(episode: Episode) -> None:
    for answer in (X, Y):
        episode.call([S, U], answer)
    episode.call([S, U, Y, U2], Z)
    assert unused(episode.record) == {0}


def test_several_answers_to_the_last_prompt_are_its_result(episode: Episode) -> None:
    for answer in (X, Y, Z):
        episode.call([S, U], answer)
    assert unused(episode.record) == frozenset()


def test_separate_questions_are_no_branches(episode: Episode) -> None:
    for question in (U, U2, U3):
        episode.call([S, question], said(f"about {question['content']}"))
    assert unused(episode.record) == frozenset()


def test_a_long_conversation_is_quick(episode: Episode) -> None:
    chat = [S, U]
    for turn in range(300):
        chat = [*episode.call(chat, said(f"answer {turn}")), user(f"and {turn}?")]
    started = time.process_time()
    assert unused(episode.record) == frozenset()
    assert time.process_time() - started < 1
