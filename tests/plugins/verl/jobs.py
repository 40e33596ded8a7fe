"""The job of these tests: the agent of examples/math and its model, on few sums of three terms, of which it solves
some."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

QUESTION = "State the final answer to the following arithmetic problem: {} + {} - {} ="
AGENT = Path(__file__).parents[3] / "examples" / "math" / "agent.py"


def sums(folder: Path, count: int, seed: int = 0) -> None:
    """``train.jsonl`` and ``validation.jsonl`` with so many tasks each, no two alike."""
    rng = random.Random(seed)
    numbers = {tuple(rng.randint(10, 99) for _ in range(3)) for _ in range(3 * count)}
    records = [
        {"id": f"{a}+{b}-{c}", "query": QUESTION.format(a, b, c), "answer": str(a + b - c)}
        for a, b, c in sorted(numbers)[: 2 * count]
    ]
    for name, part in (("train", records[:count]), ("validation", records[count:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))


def sums_job(folder: Path, **sections: Any) -> dict[str, Any]:
    """A job on `sums`; ``sections`` are laid over it."""
    sums(folder, 32)
    job: dict[str, Any] = {
        "task": {"reader": "train.jsonl", "validation": "validation.jsonl"},
        "workflow": f"{AGENT}:run",
        "judge": "math",
        "model": "calculator",
        "rollout": {"group_size": 4, "timeout": "60s", "sampling": {"max_tokens": 48}},
        "train": {"steps": 4, "batch_size": 4, "learning_rate": 8e-5, "adam_epsilon": 1e-4, "save_every": 1},
        "eval": {"episodes": 8, "sampling": {"max_tokens": 48}},
        "backbone": {"name": "verl"},
    }
    for name, section in sections.items():
        job[name] = {**job.get(name, {}), **section}
    return job
