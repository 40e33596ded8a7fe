"""examples/reasoning_gym: puzzles of a public library in two parts that share none, and its own score as the judge."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("reasoning_gym")

FILE = Path(__file__).parents[2] / "examples" / "reasoning_gym" / "puzzles.py"
spec = importlib.util.spec_from_file_location("example_reasoning_gym_puzzles", FILE)
assert spec and spec.loader
puzzles = importlib.util.module_from_spec(spec)
spec.loader.exec_module(puzzles)


def test_training_and_held_out_puzzles_share_none_and_are_right() -> None:
    trained, held_out = (list(puzzles.Puzzles(count=60, held_out=part).tasks()) for part in (False, True))
    assert not {task.id for task in trained} & {task.id for task in held_out}
    for task in trained + held_out:
        assert task.query == f"State the final answer to the following arithmetic problem: {task.id} ="
        assert str(eval(task.id)) == task.metadata["answer"]  # two numbers and a sign


def test_longer_sums_are_a_setting() -> None:
    (task,) = puzzles.Puzzles(count=1, terms=(4, 6), digits=(2, 4)).tasks()
    assert 4 <= len(task.id.replace("-", "+").split("+")) <= 6


@pytest.mark.parametrize(
    ("answer", "reward"), [("38", 1.0), ("38.0", 1.0), ("The answer is 38", 0.0), ("83", 0.0), ("", 0.0)]
)
def test_only_the_full_score_of_the_library_is_a_success(answer: str, reward: float) -> None:
    task = SimpleNamespace(metadata={"answer": "38"})
    assert puzzles.judge(task, SimpleNamespace(response=answer)) == reward
