"""How often the verdict and two alarms are wrong about runs in which nothing is wrong.

    SEED=0 .venv/bin/python bench/verdict.py

Nothing is trained: rewards are drawn. Each figure is a share of runs.

- ``false_verdicts_max``: of ``--runs`` runs in which nothing changes, those that are called learned or worse, in the worst cell. A cell
  is a number of steps, or of validation tasks, and a kind of rewards: success of tasks that are alike, of tasks of every difficulty,
  rewards from 0 to 1, and rare success.
- ``collapse_false``: of 600 runs whose rewards stay rare, those that raise the alarm `collapse`.
- ``length_collapse_false``: of ``--learning`` runs that learn short answers, those that raise `length_collapse`.

Takes two minutes on one core. Last line: one JSON object; the exit code is 1 if a figure is above its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.learning.alarm_history import History
from ajet.learning.alarm_rules import STEP_RULES
from ajet.learning.collapse import CollapseCheck
from ajet.reports.folder import Entry
from ajet.reports.verdict import SIGNIFICANT, _trained, _validated

LIMITS = {"false_verdicts_max": 0.05, "collapse_false": 0.01, "length_collapse_false": 0.05}
LENGTHS = (6, 7, 8, 10, 15, 20, 30, 50, 100)
TASKS = (2, 5, 6, 8, 12, 48)
SPARSE = (
    (0.03, 4, 4, 100),
    (0.03, 4, 8, 200),
    (0.03, 8, 8, 400),
    (0.1, 2, 4, 200),
    (0.05, 4, 8, 200),
    (0.02, 8, 8, 300),
)
"""Share of episodes with a reward, groups, episodes of a group, steps."""
Random = np.random.Generator
Draw = Callable[[Random, NDArray[np.float64], int], NDArray[np.float64]]
"""Rewards of so many episodes of each task; a row is a task with a rate."""


def success(random: Random, rates: NDArray[np.float64], episodes: int) -> NDArray[np.float64]:
    return (random.random((len(rates), episodes)) < rates[:, None]).astype(float)


def graded(random: Random, rates: NDArray[np.float64], episodes: int) -> NDArray[np.float64]:
    spread = 4 * rates[:, None] + 0.01, 4 * (1 - rates[:, None]) + 0.01
    return random.beta(*spread, (len(rates), episodes))


KINDS: Mapping[str, tuple[Callable[[Random, int], NDArray[np.float64]], Draw, int, int]] = {
    "alike": (lambda _, tasks: np.full(tasks, 0.5), success, 8, 8),
    "of every difficulty": (lambda random, tasks: random.beta(0.5, 0.5, tasks), success, 4, 8),
    "graded": (lambda random, tasks: random.beta(1, 1, tasks), graded, 2, 4),
    "rare": (lambda _, tasks: np.full(tasks, 0.03), success, 4, 4),
}
"""Rates of some tasks, the rewards of their episodes, tasks of a step, and episodes of a group."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000, help="of each cell")
    parser.add_argument("--learning", type=int, default=300, help="runs that learn")
    options = parser.parse_args()
    random = np.random.default_rng(int(os.environ.get("SEED", "0")))
    found = {
        "false_verdicts_max": max(
            wrong(random, kind, what, size, options.runs)
            for kind in KINDS
            for what, sizes in (("steps", LENGTHS), ("tasks", TASKS))
            for size in sizes
        ),
        "collapse_false": collapsed(random, 600 // len(SPARSE)),
        "length_collapse_false": float(np.mean([shrinks(random) for _ in range(options.learning)])),
    }
    print(json.dumps(found))
    sys.exit(
        "; ".join(f"{name} {found[name]} > {limit}" for name, limit in LIMITS.items() if found[name] > limit)
        or 0
    )


def wrong(random: Random, kind: str, what: str, size: int, runs: int) -> float:
    """The share of runs of a cell that are called learned or worse."""
    draw = {"steps": trained, "tasks": validated}[what]
    changes = [draw(random, kind, size) for _ in range(runs)]
    share = sum(bool(change and change.p <= SIGNIFICANT) for change in changes) / runs
    print(f"{kind}, {size} {what}: {share:.3f} learned or worse", flush=True)
    return share


def trained(random: Random, kind: str, steps: int) -> Any:
    """The change of a run without validation; each step has other tasks."""
    rates, draw, groups, episodes = KINDS[kind]
    rewards = draw(random, rates(random, steps * groups), episodes).reshape(steps, -1).mean(1)
    return _trained([{"reward": float(reward)} for reward in rewards])


def validated(random: Random, kind: str, tasks: int) -> Any:
    """The change of a run between two validations of the same tasks, with two episodes of each."""
    rates, draw, *_ = KINDS[kind]
    of_tasks = rates(random, tasks)
    entries = [
        entry(step, task, reward)
        for step in (0, 20)
        for task, rewards in enumerate(draw(random, of_tasks, 2))
        for reward in rewards
    ]
    return _validated(entries)


def entry(step: int, task: int, reward: float) -> Entry:
    """A validation episode."""
    values: dict[str, Any] = dict.fromkeys(Entry.__dataclass_fields__, 0)
    given = {
        "phase": "validation",
        "step": step,
        "task": f"t{task}",
        "failure": None,
        "reward": float(reward),
    }
    return Entry(**values | given | {"is_success": bool(reward > 0.5)})


def metrics(rewards: NDArray[np.float64], tokens: float = 20.0) -> dict[str, float]:
    """The metrics of a step with these rewards, of shape (groups, episodes)."""
    return {
        "groups": float(len(rewards)),
        "groups_zero_advantage": float((rewards.max(1) == rewards.min(1)).mean()),
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "reward_min": float(rewards.min()),
        "reward_max": float(rewards.max()),
        "answer_tokens": tokens,
    }


def collapsed(random: Random, runs: int) -> float:
    """The share of healthy runs with rare rewards that collapse at any step."""
    found = []
    for rate, groups, episodes, steps in SPARSE:
        alarms = 0
        for _ in range(runs):
            check, holds = CollapseCheck(), False
            for step in range(1, steps + 1):
                check.follow(step, metrics(success(random, np.full(groups, rate), episodes)))
                holds = holds or bool(check.found())
            alarms += holds
        print(
            f"{rate:.0%} of {groups} groups of {episodes}, {steps} steps: {alarms} of {runs} collapse",
            flush=True,
        )
        found.append(alarms / runs)
    return float(np.mean(found))


def shrinks(random: Random, steps: int = 40) -> bool:
    """Whether a run of 4 groups of 8 that learns answers of 10 tokens instead of 60, and with them to pass, raises
    `length_collapse`."""
    history = History(shuffled=True, on_policy=True, corrected=False)
    rule = STEP_RULES["length_collapse"]
    for step in range(1, steps + 1):
        learned = 1 / (1 + np.exp(-(step - steps / 2) / (steps / 10)))
        mean = 0.27 + 0.66 * learned
        rewards = success(random, random.beta(3 * mean, 3 * (1 - mean), 4), 8)
        history.add(step, metrics(rewards, 60 - 50 * learned + random.normal(0, 2)))
        if rule.holds(history):
            return True
    return False


if __name__ == "__main__":
    main()
