"""A recorded batch: episodes with one and several timelines, forks, two calls in a timeline, and a group of equal rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ajet.job.job import Job
from ajet.job.layers import job_layers
from ajet.job.prepare import prepare
from ajet.learning.batch import RolloutBatch, build_batch
from ajet.rollout.episode import Episode, Plan
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import Generation, Task, WorkflowOutput

GROUPS, TIMELINES = 3, (1, 2, 4)
"""Number of groups, and of timelines of the members of each. The last group's rewards are equal, so it has no credit."""
VOCABULARY = (20, 200)
AGENT = "async def run(task, tuner):\n    return None\n"


def episodes() -> list[Episode]:
    """The recorded episodes. Sampling logprobs are made up, so ratios lie on both sides of the clip."""
    return [_episode(group, member) for group in range(GROUPS) for member in range(len(TIMELINES))]


def _episode(group: int, member: int) -> Episode:
    shared = np.random.default_rng(group).integers(*VOCABULARY, 6)
    draw = np.random.default_rng([group, member])
    record = EpisodeRecord()
    tree = record.tree("policy")
    trunk = tree.extend(tree.root, as_ids(shared))
    number = 0
    for line in range(TIMELINES[member]):
        end = trunk
        for _ in range(2 if line == 0 else 1):
            prompt = tree.extend(end, as_ids(draw.integers(*VOCABULARY, draw.integers(2, 9))))
            ids = as_ids(draw.integers(*VOCABULARY, draw.integers(1, 12)))
            logprobs = np.log(draw.uniform(1e-3, 8e-3, len(ids))).astype(np.float32)
            end = tree.extend(prompt, ids)
            generation = Generation(ids, logprobs, np.zeros(len(ids), np.int32), "stop")
            record.add(Call(number, "a", "policy", "policy", prompt, end, generation, 1.0, True))
            number += 1
    record.close()
    plan = Plan(f"1.{group}/t{group}/{member}", "", Task(f"t{group}"), member, group)
    reward = 1.0 if group == GROUPS - 1 else float(draw.uniform())
    return Episode(plan, 0, WorkflowOutput(), record, Counter(), reward=reward)


def job_of(folder: Path, sections: Mapping[str, Any], trinity: Mapping[str, Any] | None = None) -> Job:
    """A prepared job of the backbone trinity with further sections."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "tasks.jsonl").write_text('{"query": "1+1", "answer": "2"}\n{"query": "1+2", "answer": "3"}\n')
    job = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "agent.py:run",
        "model": "starter",
        "backbone": {"name": "trinity", "trinity": dict(trinity or {})},
        **sections,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return prepare(job_layers(folder / "job.yaml"))


def batch_of(job: Job) -> RolloutBatch:
    """The batch that the job's loop would train on these episodes."""
    train = job.config.train
    batch = build_batch(
        episodes(),
        job.learning,
        mini_batches=train.mini_batches,
        learning_rate=train.learning_rate,
        seed="0:1",
        epochs=train.epochs,
    )
    assert batch is not None
    return batch
