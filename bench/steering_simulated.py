"""Compares plain groups with `rollout.steer` on simulated locks, in a minute: the real `Steering` plans the groups of a table of odds.

    python bench/steering_simulated.py

A lock opens if each of its dials is turned right, and only at the end it opens or does not. The policy has a probability for each
dial (for all locks, or for each its own) and learns as with GRPO. For each lock and band: the sampled calls until 0.45 and until 0.8 of
whole episodes succeed, and their share at the end of the budget, a row for each of three seeds. Last line: one JSON object.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ajet.learning.rollouts import plan_groups
from ajet.learning.steering import PastEpisode, Steering
from ajet.rollout.recorder import RunRecorder
from ajet.rollout.settings import SteerSettings
from ajet.types import Task

TASKS = [Task(str(number)) for number in range(16)]
BATCH, GROUP = 8, 8
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Lock:
    """What is simulated."""

    dials: int
    budget: int
    """Calls that are sampled."""
    own_policies: bool = False
    """Whether nothing that is learned of one lock helps with another."""


LOCKS = {
    "6 dials": Lock(6, 40_000),
    "10 dials": Lock(10, 150_000),
    "8 dials, each lock for itself": Lock(8, 400_000, own_policies=True),
}
BANDS = {"plain": None, "0.1 to 0.9": (0.1, 0.9), "0.25 to 0.75": (0.25, 0.75), "0.5 to 0.9": (0.5, 0.9)}


def main() -> None:
    found: dict[str, Any] = {}
    for name, lock in LOCKS.items():
        found[name] = {}
        for band, edges in BANDS.items():
            curves = [learned(lock, edges, seed) for seed in SEEDS]
            found[name][band] = [[until(c, 0.45), until(c, 0.8), round(c[-1][1], 2)] for c in curves]
            print(f"{name}, {band}: {found[name][band]}", flush=True)
    print(json.dumps({"locks": found}))


def learned(lock: Lock, band: tuple[float, float] | None, seed: int) -> list[tuple[int, float]]:
    """Sampled calls so far, and how likely whole episodes then are to succeed, after each step."""
    rng = np.random.default_rng(seed)
    code = rng.random(lock.dials) < 0.5
    logits = np.zeros((len(TASKS) if lock.own_policies else 1, lock.dials))
    steering = None
    if band:
        recorder = RunRecorder(Path(tempfile.mkdtemp()))
        steering = Steering(SteerSettings(band=band), recorder, batch_size=BATCH, group_size=GROUP, seed=seed)
    calls, step, curve = 0, 0, []
    while calls < lock.budget:
        step += 1
        plans = plan_groups([TASKS[(step * BATCH + i) % len(TASKS)] for i in range(BATCH)], step, GROUP, seed)
        plans = steering.steered(step, plans) if steering else plans
        gradient, past = np.zeros_like(logits), []
        for begin in range(0, len(plans), GROUP):
            group = plans[begin : begin + GROUP]
            given = group[0].fork.calls if group[0].fork else 0
            row = int(group[0].task.id) if lock.own_policies else 0
            chance = 1 / (1 + np.exp(-logits[row]))
            turned = rng.random((GROUP, lock.dials)) < chance
            turned[:, :given] = code[:given]
            rewards = (turned == code).all(axis=1).astype(float)
            calls += GROUP * (lock.dials - given)
            advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            scores = (turned - chance)[:, given:] * advantages[:, None]
            gradient[row, given:] += scores.sum(axis=0) * lock.dials / (lock.dials - given) / len(plans)
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
                    calls=lock.dials,
                    places=range(1, lock.dials),
                )
                for plan, reward in zip(group, rewards, strict=True)
            ]
        logits += gradient
        if steering:
            steering.observe(past)
        right = 1 / (1 + np.exp(-np.where(code, 1, -1) * logits))
        curve.append((calls, float(right.prod(axis=1).mean())))
    return curve


def until(curve: Sequence[tuple[int, float]], share: float) -> int | None:
    """The sampled calls after which so many whole episodes succeed."""
    return next((calls for calls, value in curve if value >= share), None)


if __name__ == "__main__":
    main()
