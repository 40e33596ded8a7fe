"""Compares plain groups with `rollout.steer`, at equal budgets of sampled tokens, on tasks that mostly fail.

    SEED=0 python bench/steering.py [TASK ...]

Locks of six and of eight dials that one code opens (one guess in 64, and in 256); locks of ten dials that say how to turn them (one
in 1024); frozen lakes of six by six fields; Countdown with four numbers; with `--slow` also a real language model, SmolLM2-135M.
What is compared are validations: whole episodes of held-out tasks, without prefixes. The run with steered groups, whose steps
sample fewer tokens, takes more of them, and is stopped after as many tokens as plain groups sampled in all. `tokens_ratio` is how
many times fewer sampled tokens it needs for nine tenths of plain groups' gain, `half_ratio` the same for half of it, null where
plain groups gained next to nothing; where it does not get to nine tenths, `is_bound` says that the ratio is at most this. Last
line: one JSON object.

A plain run of the same seed and steps in `runs/` is used again, so that another rule (`--set`) costs one run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JOBS = ROOT / "bench" / "steering"
MORE_STEPS = 6.0
"""The most steps of steered groups, by those of plain ones."""
LEAST_GAIN = 0.05
"""A smaller gain of plain groups is within the noise of a validation."""


@dataclass(frozen=True)
class Task:
    """A job and what is set in it for both methods."""

    job: Path
    settings: Mapping[str, Any] = field(default_factory=dict)


TASKS = {
    name: Task(JOBS / f"{name}.yaml")
    for name in ("lock", "eight_lock", "long_lock", "wide_lake", "four_numbers")
}
SLOW = {
    "smollm2": Task(
        ROOT / "examples" / "sqlite_agent" / "job.yaml",
        {"task.reader.count": 24, "eval.every": 10, "eval.greedy": False},
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tasks", nargs="*", help=f"default: {', '.join(TASKS)}; slow: {', '.join(SLOW)}")
    parser.add_argument("--slow", action="store_true", help="the slow ones, too")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "0")))
    parser.add_argument("--steps", type=int, help="of plain groups; default: the job's")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the steered job, such as another `rollout.steer.band`",
    )
    options = parser.parse_args()
    known = {**TASKS, **SLOW}
    steer = {"rollout.steer.whole": 0.25, **dict(pair.split("=", 1) for pair in options.set)}
    tasks: dict[str, Any] = {}
    for name in options.tasks or [*TASKS, *(SLOW if options.slow else ())]:
        steps = options.steps or int(job_of(known[name])["train"]["steps"])
        plain = plain_run(known[name], name, steps, options.seed)
        more = {"train.steps": round(MORE_STEPS * steps), **steer}
        steered = run(known[name], name, "steered", more, options.seed, budget=plain.tokens)
        tasks[name] = compared(plain, Run(steered))
        print(json.dumps({name: tasks[name]}), flush=True)
    print(json.dumps({"seed": options.seed, "steer": steer, "tasks": tasks}))


def job_of(task: Task) -> Mapping[str, Any]:
    import yaml

    job: Mapping[str, Any] = yaml.safe_load(task.job.read_text(encoding="utf-8"))
    return job


def folder_of(name: str, kind: str, seed: int) -> Path:
    return Path.cwd() / "runs" / f"bench-steering-{name}-{kind}-seed{seed}"


def plain_run(task: Task, name: str, steps: int, seed: int) -> Run:
    """An earlier run, if one took so many steps; else a new one."""
    for metrics in sorted(folder_of(name, "plain", seed).glob("*/metrics.jsonl"), reverse=True):
        earlier = Run(metrics.parent)
        if len(earlier.steps) == steps:
            print(f"== {name}, plain, seed {seed}: {metrics.parent}", flush=True)
            return earlier
    return Run(run(task, name, "plain", {"train.steps": steps}, seed))


def run(
    task: Task, name: str, kind: str, settings: Mapping[str, Any], seed: int, budget: float = math.inf
) -> Path:
    """Train as a user would, until so many tokens are sampled; returns the run folder."""
    root = folder_of(name, kind, seed)
    command = [sys.executable, "-m", "ajet", "run", str(task.job), "--seed", str(seed)]
    for key, value in {**task.settings, **settings, "task.reader.seed": seed, "run.dir": root}.items():
        command += ["--set", f"{key}={value}"]
    print(f"== {name}, {kind}, seed {seed}", flush=True)
    before = set(root.glob("*"))
    process = subprocess.Popen(command)
    stopped = False
    while process.poll() is None:
        time.sleep(2)
        made = [folder for folder in set(root.glob("*")) - before if (folder / "metrics.jsonl").exists()]
        if made and not stopped and (curve := Run(made[0]).curve) and curve[-1][0] >= budget:
            process.terminate()
            stopped = True
    if process.returncode and not stopped:
        sys.exit(process.returncode)
    (made_now,) = set(root.glob("*")) - before
    return made_now


class Run:
    """What a run says of itself."""

    def __init__(self, folder: Path) -> None:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
        # The last line of a run that goes on may be incomplete.
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        self.steps = [line for line in lines if line["type"] == "train"]
        tokens = [0, *accumulate(line["tokens_sampled"] for line in self.steps)]
        self.tokens = float(tokens[-1])
        self.curve = [(float(tokens[v["step"]]), v["reward"]) for v in lines if v["type"] == "validation"]
        """Tokens that were sampled to train before each validation, and its mean reward."""

    def mean(self, name: str, steps: int | None = None) -> float | None:
        """The mean of a metric over the first steps."""
        values = [line[name] for line in self.steps[:steps] if name in line]
        return round(fmean(values), 4) if values else None


def compared(plain: Run, steered: Run) -> dict[str, Any]:
    """The figures of a task. Both begin with the same model, whose reward is the mean of both first validations."""
    curve = [point for point in steered.curve if point[0] < plain.tokens]
    curve.append((plain.tokens, at(steered.curve, plain.tokens)))
    before = (plain.curve[0][1] + curve[0][1]) / 2
    gains = [found[-1][1] - before for found in (plain.curve, curve)]

    def ratio(share: float) -> float | None:
        if gains[0] < LEAST_GAIN:
            return None
        reward = before + share * gains[0]
        needed = [until(plain.curve, reward) or plain.tokens, until(curve, reward) or plain.tokens]
        return round(needed[0] / max(needed[1], 1.0), 2)

    return {
        "tokens_ratio": ratio(0.9),
        "half_ratio": ratio(0.5),
        "is_bound": until(curve, before + 0.9 * gains[0]) is None,
        "before": round(before, 3),
        "gain_plain": round(gains[0], 3),
        "gain_steered": round(gains[1], 3),
        "tokens": round(plain.tokens),
        "steps": [len(plain.steps), sum(tokens <= plain.tokens for tokens in totals(steered))],
        "groups_without_signal": [plain.mean("groups_zero_advantage"), steered.mean("groups_zero_advantage")],
        "steered_reward": steered.mean("steered_reward"),
        "steered_diverged": sum(line.get("steered_diverged", 0) for line in steered.steps),
    }


def totals(found: Run) -> Sequence[float]:
    """The tokens that were sampled up to each step."""
    return list(accumulate(line["tokens_sampled"] for line in found.steps))


def at(curve: Sequence[tuple[float, float]], tokens: float) -> float:
    """The reward after so many sampled tokens; between two validations, on the line."""
    for (t0, r0), (t1, r1) in pairwise(curve):
        if t0 <= tokens <= t1 and t1 > t0:
            return r0 + (r1 - r0) * (tokens - t0) / (t1 - t0)
    return curve[-1][1]


def until(curve: Sequence[tuple[float, float]], reward: float) -> float | None:
    """The sampled tokens after which a validation reached a reward; between two of them, on the line."""
    for (t0, r0), (t1, r1) in pairwise(curve):
        if r1 >= reward > r0:
            return t0 + (t1 - t0) * (reward - r0) / (r1 - r0)
    return None


if __name__ == "__main__":
    main()
