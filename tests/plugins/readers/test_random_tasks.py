"""The `random` reader: dummy tasks that are the same every time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ajet_readers import RandomTasks


def test_tasks_have_a_question_and_its_answer() -> None:
    for task in RandomTasks(count=50).tasks():
        first, second = map(int, re.findall(r"\d+", task.query))
        assert re.fullmatch(r"Which is larger, \d+ or \d+\?", task.query)
        assert first != second and task.metadata == {"answer": str(max(first, second))}


def test_the_same_seed_gives_the_same_tasks() -> None:
    assert list(RandomTasks(seed=3).tasks()) == list(RandomTasks(seed=3).tasks())


def test_a_larger_count_only_adds_tasks() -> None:
    assert list(RandomTasks(count=9).tasks())[:4] == list(RandomTasks(count=4).tasks())


def test_ids_are_unique_within_and_between_seeds() -> None:
    ids = [task.id for seed in (0, 1) for task in RandomTasks(count=20, seed=seed).tasks()]
    assert len(set(ids)) == 40


@pytest.mark.whole
def test_it_keeps_to_the_contract_of_readers(check_reader: Any) -> None:
    assert len(check_reader(RandomTasks(count=30, seed=1))) == 30
