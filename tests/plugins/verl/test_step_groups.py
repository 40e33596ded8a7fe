"""Dynamic sampling and oversampling on verl: which groups of a step are run, and which of them verl gets."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet.learning.batch import Learnable
from ajet.learning.rollouts import rounded_up
from ajet_verl.conductor import StepGroups
from ajet_verl.credit import with_different_rewards
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine


def run_step(groups: StepGroups, asked: int, useful: Any, draw: random.Random) -> int:
    """Run a step in which groups end in any order; returns the largest number of groups that ran at once."""
    for number in range(asked):
        groups.ask(f"p{number}")
    most = 0
    while True:
        for _ in range(groups.missing):
            groups.start(f"f{groups.started}")
        most = max(most, len(groups.running))
        if groups.is_over:
            groups.fill()
            return most
        one = draw.choice(sorted(groups.running))
        groups.end(one, useful=useful(one))


@pytest.mark.parametrize("seed", range(100))
def test_a_step_gets_its_groups_within_the_limits(seed: int) -> None:
    draw = random.Random(seed)
    asked, oversample = draw.randint(1, 9), draw.choice([1.0, 1.25, 2.0])
    most = oversample * draw.choice([1.0, 1.5, 3.0])
    share = draw.random()
    useful: dict[str, bool] = {}
    groups = StepGroups(oversample, most)
    at_once = run_step(groups, asked, lambda uid: useful.setdefault(uid, draw.random() < share), draw)
    assert len(groups.taken) == len(set(groups.taken)) == asked
    assert groups.started <= rounded_up(asked * most) and at_once <= rounded_up(asked * oversample)
    ended = [uid for uid in useful if uid not in groups.running]
    enough = sum(useful[uid] for uid in ended) >= asked
    assert all(useful[uid] for uid in groups.taken) == enough
    assert enough or groups.started == rounded_up(asked * most), "all that may be started were"
    assert set(groups.taken) | set(groups.skipped) == set(ended)


def test_without_further_groups_each_is_taken_as_it_ends() -> None:
    groups = StepGroups(1.0, 1.0)
    groups.ask("a")
    groups.ask("b")
    assert groups.missing == 0
    assert groups.end("b", useful=True) == ["b"] and not groups.is_over
    assert groups.end("a", useful=True) == ["a"] and groups.is_over and groups.fill() == []


def learnable(group: int, reward: float, tokens: int = 1) -> Learnable:
    return Learnable(
        id=f"{group}/{reward}",
        group=group,
        member=0,
        reward=reward,
        rewards={},
        calls=(),
        lines=(),
        sampled_tokens=tokens,
        call_tokens=tokens,
    )


def test_groups_of_equal_rewards_are_trained_only_where_there_are_no_others() -> None:
    equal = [learnable(0, 1.0), learnable(0, 1.0), learnable(1, 0.0), learnable(1, 1.0, tokens=0)]
    differing = [learnable(2, 0.0), learnable(2, 1.0)]
    assert with_different_rewards([*equal, *differing]) == differing
    assert with_different_rewards(equal) == equal


DRIVER = str(Path(__file__).with_name("step_groups_driver.py"))
FLOW = """
import asyncio

from ajet import GroupJudge, JudgeOutput, WorkflowOutput


async def run(task, tuner):
    client = tuner.as_openai_client()
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": task.query}], max_tokens=8)
    if "slow" in task.query:
        await asyncio.sleep(3600)
    return WorkflowOutput(response=task.query)


class Ranks(GroupJudge):
    name = "ranks"

    async def score_group(self, task, episodes):
        return [JudgeOutput(reward=e.member * ("equal" not in task.query)) for e in episodes]
"""

NAMES = ("groups_unused", "groups_skipped", "tokens_skipped", "episodes_cancelled")


def test_verl_gets_as_many_groups_as_it_asked_for_and_none_of_equal_rewards(machine: Machine) -> None:
    folder = machine.folder
    (folder / "flow.py").write_text(FLOW)
    kinds = ["equal", "slow", "differ", "differ", "differ", "differ", "equal", "differ"]
    tasks = "".join(f'{{"id": "{n}-{kind}", "query": "{n} {kind}"}}\n' for n, kind in enumerate(kinds))
    (folder / "tasks.jsonl").write_text(tasks)
    sections: dict[str, Any] = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "flow.py:run",
        "judge": "flow.py:Ranks",
        "rollout": {"group_size": 2, "oversample": 1.5, "timeout": "120s"},
        "train": {"batch_size": 4, "dynamic_sampling": 2, "steps": 2},
        "backbone": {"name": "verl"},
    }
    printed = machine.run(sys.executable, DRIVER, str(folder), json.dumps(sections), seconds=4 * PATIENCE)
    found = json.loads(printed.strip().splitlines()[-1])
    for step in found["steps"]:
        uids, metrics = set(step["prompts"]), step["metrics"]
        assert {row.split("_")[0] for row in step["rows"]} == uids and len(step["rows"]) == 8
        assert metrics["groups_started"] >= 6
    total = {name: sum(step["metrics"].get(name, 0) for step in found["steps"]) for name in NAMES}
    # The plan's first eight groups are the eight tasks, so both steps together meet each kind.
    assert total["groups_unused"] >= 1 and total["groups_skipped"] >= 1 and total["tokens_skipped"] > 0
    assert total["episodes_cancelled"] >= 2, "those of the slow task"
    superseded = [line for line in found["journal"] if line["type"] != "episode"]
    used = {line["id"] for line in found["journal"] if line["type"] == "episode"}
    assert superseded and not any("slow" in name for name in used)
