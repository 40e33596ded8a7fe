"""Judged episodes to a batch: per-token weights that hold every normalisation.

L = 1/E Σ_e 1/T_e Σ_t ℓ_t over the E episodes of a mini-batch and the T_e trained tokens of each, so
that neither the length of an episode nor the number of its timelines changes what it counts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ajet.algorithm import Algorithm
from ajet.rollout.episode import Episode
from ajet.tracker.timelines import Timeline, timelines
from ajet.types import Batch, Metrics, Sample


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """A batch with what it was made of. ``sampled_tokens`` is counted by the trackers, independently of
    the samples' masks."""

    batch: Batch
    sampled_tokens: int
    metrics: Metrics


def build_batch(
    episodes: Sequence[Episode], algorithm: Algorithm, *, mini_batches: int, learning_rate: float, seed: str
) -> RolloutBatch | None:
    """A batch of the judged episodes; None if none has a trained token. Failed members are left out of
    their group's statistics."""
    groups = _groups([e for e in episodes if e.failure is None and e.record.sampled_tokens])
    if not groups:
        return None
    advantages = {
        number: algorithm.advantages(np.array([e.reward for e in group])) for number, group in groups.items()
    }
    samples: list[Sample] = []
    minis = []
    for numbers in _split(list(groups), mini_batches, seed):
        size = sum(len(groups[n]) for n in numbers)
        first = len(samples)
        for n in numbers:
            for episode, advantage in zip(groups[n], advantages[n], strict=True):
                samples += episode_samples(episode, float(advantage), size)
        minis.append(list(range(first, len(samples))))
    flat = [a == 0 for group in advantages.values() for a in group]
    used = [e for group in groups.values() for e in group]
    metrics: Metrics = {
        "groups": len(groups),
        "groups_zero_advantage": sum(bool((a == 0).all()) for a in advantages.values()) / len(groups),
        "episodes_zero_advantage": float(np.mean(flat)),
        "timelines_per_episode": len(samples) / len(used),
    }
    batch = Batch(samples, algorithm.loss, minis, learning_rate)
    return RolloutBatch(batch, sum(e.record.sampled_tokens for e in used), metrics)


def episode_samples(episode: Episode, advantage: float, episodes: int) -> list[Sample]:
    """The samples of one of ``episodes`` episodes: together they weigh 1/episodes."""
    lines = timelines(episode.record)
    tokens = sum(int(line.mask.sum()) for line in lines)
    return [
        replace(timeline_sample(line, advantage, 1 / (episodes * tokens)), episode=episode.plan.id)
        for line in lines
    ]


def timeline_sample(line: Timeline, advantage: float, weight: float) -> Sample:
    """A timeline whose trained tokens all have one advantage and one weight."""
    on = line.mask.astype(np.float32)
    return Sample(
        line.token_ids,
        line.mask,
        line.logprobs,
        on * np.float32(advantage),
        on * np.float32(weight),
        line.spans,
    )


def _groups(episodes: Sequence[Episode]) -> Mapping[int, list[Episode]]:
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.plan.group, []).append(episode)
    return groups


def _split(numbers: list[int], parts: int, seed: str) -> list[list[int]]:
    """Shuffled into ``parts`` shares of nearly equal size, none empty."""
    random.Random(seed).shuffle(numbers)
    parts = min(parts, len(numbers))
    return [sorted(numbers[i::parts]) for i in range(parts)]
