"""Checks that the math example learns from its rewards, by comparison with a control with shuffled rewards.

    python bench/learning.py --seed 0

Three results: the accuracy that the example reaches; the share of the starter's failed episodes that are well-formed
chats with valid tool calls, so that training had to improve more than the format; and the accuracy of the same run with
rewards shuffled within each group. The shuffled rewards carry no information, so that run must end within three standard
errors of its start. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PrivateAttr

from ajet.interfaces.backbone import RunResult
from ajet.job.config import Layers, read_job_file
from ajet.job.job import Job
from ajet.job.prepare import prepare
from ajet.learning.algorithms import GRPO
from ajet.reports.progress import make_progress
from ajet.rollout.recorder import JOURNAL, live_lines
from ajet.types import Float64

MATH = Path(__file__).resolve().parent.parent / "examples" / "math"


class ShuffledGRPO(GRPO):
    """GRPO with rewards randomly permuted within each group."""

    name = "shuffled-grpo"
    seed: int = 0
    _rng: np.random.Generator = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        self._rng = np.random.default_rng(self.seed)

    def advantages(self, rewards: Float64) -> Float64:
        """Advantages of the rewards in a random order."""
        return super().advantages(self._rng.permutation(rewards))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    learned = run(make_job(seed, "learned"))
    control = run(replace(make_job(seed, "control"), algorithm=ShuffledGRPO(seed=seed)))
    print(json.dumps({"seed": seed, **figures(learned), "control": control_figures(control)}))


def make_job(seed: int, name: str) -> Job:
    """The job of the math example, with the tasks of a seed."""
    tasks = MATH / "tasks" / f"seed{seed}"
    command = [sys.executable, str(MATH / "make_tasks.py"), "--seed", str(seed), "--out", str(tasks)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    layers = Layers()
    layers.add(read_job_file(MATH / "job.yaml"), "job.yaml", MATH)
    settings: dict[str, Any] = {
        "run.deterministic": True,
        "run.seed": seed,
        "run.dir": str(Path.cwd() / "runs" / f"bench-{name}-seed{seed}"),
        "task.reader.path": str(tasks / "train.jsonl"),
        "task.validation.path": str(tasks / "validation.jsonl"),
    }
    for key, value in settings.items():
        layers.set(key, value, "bench", Path.cwd())
    return prepare(layers)


def run(job: Job) -> RunResult:
    """Train as `ajet run` does."""
    with make_progress() as progress:
        return job.backbone.run(job.with_progress(progress))


def figures(result: RunResult) -> dict[str, Any]:
    """Accuracy before and after, and how the starter failed."""
    failed = [
        e
        for e in live_lines(result.run_dir / JOURNAL)
        if e["phase"] == "validation" and e["step"] == 0 and not e["is_success"]
    ]
    return {
        "accuracy_before": result.before["accuracy"],
        "accuracy_after": result.after["accuracy"],
        "greedy_before": result.before["greedy_accuracy"],
        "greedy_after": result.after["greedy_accuracy"],
        "train_seconds": round(result.train_seconds, 1),
        "failed_before": len(failed),
        "failed_well_formed": sum(map(well_formed, failed)) / max(len(failed), 1),
    }


def well_formed(episode: dict[str, Any]) -> bool:
    """Whether an episode called the calculator correctly, got its result and ended with a text answer."""
    calls = episode["calls"]
    rows = {key: [message for _, message in rows] for key, rows in episode["chats"].items()}
    results = [m["content"] for messages in rows.values() for m in messages if m["role"] == "tool"]
    return (
        episode["failure"] is None
        and not episode["counters"].get("malformed_tool_calls")
        and bool(results)
        and not any(text.startswith("error") for text in results)
        and bool(rows[calls[-1]["key"]][calls[-1]["answer"]].get("content"))
        and all(call["tokens"]["finish_reason"] == "stop" for call in calls)
    )


def control_figures(result: RunResult) -> dict[str, Any]:
    """The control's change of accuracy, in standard errors of the difference of two proportions."""
    before, after, n = result.before["accuracy"], result.after["accuracy"], result.after["episodes"]
    error = math.sqrt((before * (1 - before) + after * (1 - after)) / n)
    moved = (after - before) / error
    return {
        "before": before,
        "after": after,
        "moved_in_standard_errors": round(moved, 2),
        "within_3": abs(moved) <= 3,
    }


if __name__ == "__main__":
    main()
