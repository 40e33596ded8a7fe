"""The audit knows the credit of calls: it finds nothing in runs with forks and rewards of calls, and each fault planted into them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ajet
from ajet.learning import algorithms as a
from ajet.types import Task
from tests.plugins.audit.conftest import Runs, audited
from tests.plugins.audit.test_forks import FORKED, steady, varied
from tests.tiers import thinned

pytestmark = pytest.mark.whole


def by_call(task: Task, output: Any, episode: Any) -> ajet.JudgeOutput:
    """Every second call has a reward, and members differ."""
    given = {place: 0.1 * (place + episode.member) for place in range(0, len(episode.messages), 2)}
    return ajet.JudgeOutput(float(episode.member % 3), rewards={"critic": 0.5}, call_rewards=given)


@thinned
@pytest.mark.parametrize("credit", ["episode", "tree"])
@pytest.mark.parametrize(
    "algorithm", [a.GRPO(), a.DAPO(), a.RLOO(), a.ReinforcePlusPlus()], ids=lambda x: x.name
)
def test_forks_and_rewards_of_calls_are_explained(runs: Runs, algorithm: Any, credit: str) -> None:
    settings: dict[str, Any] = {"rollout": FORKED, "credit": credit, "call_discount": 0.5, "steps": 1}
    found = audited(runs.run(steady, by_call, varied, algorithm=algorithm, **settings))
    assert found.faults == [] and found.trained


def test_rewards_of_calls_without_forks_are_explained(runs: Runs) -> None:
    found = audited(runs.run(judge=by_call, call_discount=0.9, steps=1, rollout={"group_size": 3}))
    assert found.faults == [] and found.trained


def edited(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    path = folder / "batches/step_000001.npz"
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    about = json.loads(arrays.pop("about").tobytes())
    change(arrays, about)
    np.savez_compressed(path, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)


def first_call(about: dict[str, Any]) -> slice:
    """The tokens of the first call of the batch, which forks share."""
    start, end, *_ = about["samples"][0]["spans"][0]
    return slice(start, end)


def credit_of_another_call(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        arrays["advantages"][first_call(about)] = arrays["advantages"][about["samples"][0]["spans"][-1][0]]

    edited(folder, change)


def the_weight_of_one_episode(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        arrays["weights"][first_call(about)] /= 2

    edited(folder, change)


def another_fork(folder: Path) -> None:
    path = folder / "episodes.jsonl"
    path.write_text(path.read_text().replace('"fork": {"parent": "1.0/t', '"fork": {"parent": "1.1/t'))


def another_reward_of_a_call(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    lines[0]["call_rewards"]["2"] += 0.5
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def setting(key: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        settings = json.loads((folder / "settings.json").read_text())
        settings["train"][key] = value
        (folder / "settings.json").write_text(json.dumps(settings))

    change.__name__ = f"another_{key}"
    return change


FAULTS: dict[Callable[[Path], None], str] = {
    credit_of_another_call: "its advantage is",
    the_weight_of_one_episode: "a token has the weight",
    another_fork: "a token has the weight",
    another_reward_of_a_call: "its advantage is",
    setting("credit", "episode"): "its advantage is",
    setting("call_discount", 0.25): "its advantage is",
}


def test_a_fault_in_the_credit_of_calls_is_named(runs: Runs) -> None:
    whole = runs.run(
        steady, by_call, varied, rollout=FORKED, credit="tree", call_discount=0.5, steps=1, name="whole"
    )
    for plant, said in FAULTS.items():
        folder = shutil.copytree(whole, whole.with_name(plant.__name__))
        plant(folder)
        faults = audited(folder).faults
        assert any(said in fault for fault in faults), (plant.__name__, faults)
        assert all("\n" not in fault for fault in faults)
