"""Readers whose tasks are made by libraries: `gymnasium` and `reasoning_gym`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ajet import ConfigError
from ajet.interfaces.reader import read_all
from ajet_readers import Gymnasium, ReasoningGym


def test_each_seed_of_an_environment_is_a_task() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    options = {"is_slippery": False, "map_name": "4x4"}
    tasks = read_all(Gymnasium(env="FrozenLake-v1", options=options, count=3, seed=7, query="Go."), "r")
    assert [t.id for t in tasks] == ["FrozenLake-v1-7", "FrozenLake-v1-8", "FrozenLake-v1-9"]
    assert tasks[0].metadata == {"env": "FrozenLake-v1", "options": options, "seed": 7}
    world = gymnasium.make(tasks[0].metadata["env"], **tasks[0].metadata["options"])
    assert world.reset(seed=tasks[0].metadata["seed"])[0] == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env": "FrozenLak-v1"}, "FrozenLak"),
        ({"env": "nowhere:Env-v0"}, "nowhere"),
        ({"env": "FrozenLake-v1", "options": {"wet": True}}, "cannot be made with options {'wet': True}"),
    ],
)
def test_an_environment_that_cannot_be_made(fields: Any, message: str) -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError) as caught:
        list(Gymnasium(**fields).tasks())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_puzzles_come_with_what_the_library_scores_by() -> None:
    library = pytest.importorskip("reasoning_gym")
    options = {"min_numbers": 3, "max_numbers": 3}
    tasks = read_all(ReasoningGym(dataset="countdown", size=5, seed=1, options=options), "r")
    assert [t.id for t in tasks] == [f"countdown-1-{i}" for i in range(5)]
    score = library.get_score_answer_fn("countdown")
    for task in tasks:
        entry = json.loads(json.dumps(task.metadata["entry"]))
        assert len(entry["metadata"]["numbers"]) == 3
        assert score(task.metadata["answer"], entry) == 1.0 and score("1", entry) < 0.1


@pytest.mark.whole
def test_a_larger_size_only_adds_and_neighbouring_seeds_share_nothing() -> None:
    pytest.importorskip("reasoning_gym")
    few, many, other = (
        list(ReasoningGym(dataset="countdown", size=n, seed=s).tasks())
        for n, s in ((15, 1), (30, 1), (15, 2))
    )
    assert many[:15] == few and {t.query for t in few}.isdisjoint(t.query for t in other)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset": "countdwn"}, "no such family; did you mean 'countdown'."),
        ({"dataset": "countdown", "options": {"nmubers": 3}}, "does not accept the options {'nmubers': 3}"),
        ({"dataset": "countdown", "options": {"min_numbers": 9}}, "does not accept the options"),
    ],
)
def test_puzzles_that_cannot_be_made(fields: Any, message: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ConfigError) as caught:
        list(ReasoningGym(**fields).tasks())
    assert message in str(caught.value)
