"""Compares plain groups with `rollout.steer` on simulated locks, in a minute: the real `Steering` plans the groups of a small policy.

    python bench/steering_simulated.py

A lock of ten dials opens if each is turned as it must be, and only at the end it opens or does not. The policy is logistic, and learns
with the advantages of GRPO and Adam. It has a parameter for each dial, one for turning any dial to the right, and one for turning them
as they say. All locks have one code, or each has its own, which the dials say. The program prints, for each lock, rule and seed, how
many calls the policy samples until 0.45 and until 0.7 of its whole episodes succeed (null: not within the budget), and which share
succeeds at the end of the budget. Last line: one JSON object.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ajet.learning.rollouts import plan_groups
from ajet.learning.steering import PastEpisode, Steering
from ajet.rollout.recorder import RunRecorder
from ajet.rollout.settings import SteerSettings
from ajet.types import Task

TASKS = [Task(str(number)) for number in range(8)]
BATCH, GROUP, DIALS = 4, 8, 10
BUDGET = 30_000
"""Calls that are sampled."""
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Lock:
    """What is simulated."""

    codes: Any
    """1 and −1: of each task, how to turn each dial."""
    features: Any
    """Of each task and dial."""
    rate: float
    """Of Adam."""


def lock_of(codes: Any, *, any_dial: float, as_told: float, rate: float) -> Lock:
    """A lock of whose dials so much is learned with any other one."""
    own = np.eye(DIALS) * (1 - any_dial - as_told) ** 0.5
    each = [np.column_stack([np.full(DIALS, any_dial**0.5), as_told**0.5 * code, own]) for code in codes]
    return Lock(codes, np.array(each), rate)


ONE_CODE = np.array([1, -1, -1, 1, -1, 1, 1, -1, 1, -1])
LOCKS = {
    "one code": lock_of(np.tile(ONE_CODE, (len(TASKS), 1)), any_dial=0.5, as_told=0, rate=0.07),
    "codes that the dials say": lock_of(
        np.random.default_rng(0).choice([1, -1], (len(TASKS), DIALS)), any_dial=0.4, as_told=0.3, rate=0.07
    ),
}
RULES: Mapping[str, Mapping[str, Any] | None] = {
    "plain": None,
    "0.1 to 0.9": {"band": (0.1, 0.9)},
    "0.25 to 0.75": {"band": (0.25, 0.75)},
    "0.5 to 0.9": {"band": (0.5, 0.9)},
    "0.5 to 0.9, a tenth whole": {"band": (0.5, 0.9), "whole": 0.1},
    "0.7 to 0.9": {"band": (0.7, 0.9)},
}


def main() -> None:
    found: dict[str, Any] = {}
    for name, lock in LOCKS.items():
        found[name] = {}
        for rule, settings in RULES.items():
            curves = [learned(lock, settings, seed) for seed in SEEDS]
            found[name][rule] = [[until(c, 0.45), until(c, 0.7), round(c[-1][1], 2)] for c in curves]
            print(f"{name}, {rule}: {found[name][rule]}", flush=True)
    print(json.dumps({"locks": found}))


def learned(lock: Lock, settings: Mapping[str, Any] | None, seed: int) -> list[tuple[int, float]]:
    """Sampled calls so far, and how likely whole episodes then are to succeed, after each step."""
    rng = np.random.default_rng(seed)
    weights, mean, square = np.zeros((3, lock.features.shape[-1]))
    steering = None
    if settings is not None:
        recorder = RunRecorder(Path(tempfile.mkdtemp()))
        chosen = SteerSettings(**settings)
        steering = Steering(chosen, recorder, batch_size=BATCH, group_size=GROUP, seed=seed)
    calls, step, curve = 0, 0, []
    turns: dict[str, Any] = {}
    while calls < BUDGET:
        step += 1
        plans = plan_groups([TASKS[(step * BATCH + i) % len(TASKS)] for i in range(BATCH)], step, GROUP, seed)
        plans = steering.steered(step, plans) if steering else plans
        chances = 1 / (1 + np.exp(-lock.features @ weights))
        gradient, past = np.zeros_like(weights), []
        for begin in range(0, len(plans), GROUP):
            group = plans[begin : begin + GROUP]
            fork, task = group[0].fork, int(group[0].task.id)
            chance = chances[task]
            given = fork.calls if fork else 0
            turned = rng.random((GROUP, DIALS)) < chance
            if fork:
                turned[:, :given] = turns[fork.parent][:given]
            turns.update((plan.id, row) for plan, row in zip(group, turned, strict=True))
            rewards = (turned == (lock.codes[task] > 0)).all(axis=1).astype(float)
            calls += GROUP * (DIALS - given)
            advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            scores = ((turned - chance)[:, given:] * advantages[:, None]).sum(axis=0)
            gradient += scores @ lock.features[task, given:] / len(plans)
            past += [
                PastEpisode(
                    id=plan.id,
                    task=plan.task.id,
                    group=plan.group,
                    member=plan.member,
                    failure=None,
                    reward=float(reward),
                    is_success=None,
                    fork=plan.fork,
                    calls=DIALS,
                    places=range(1, DIALS),
                )
                for plan, reward in zip(group, rewards, strict=True)
            ]
        gradient /= max(1.0, float(np.linalg.norm(gradient)))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        weights += lock.rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        if steering:
            steering.observe(past)
        right = 1 / (1 + np.exp(-lock.codes * (lock.features @ weights)))
        curve.append((calls, float(right.prod(axis=1).mean())))
    return curve


def until(curve: Sequence[tuple[int, float]], share: float) -> int | None:
    """The sampled calls after which so many whole episodes succeed."""
    return next((calls for calls, value in curve if value >= share), None)


if __name__ == "__main__":
    main()
