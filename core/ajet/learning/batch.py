"""Judged episodes to a batch: per-token weights that hold every normalisation.

By default L = 1/E Σ_e 1/T_e Σ_t ℓ_t over the E episodes of a mini-batch and the T_e trained tokens of
each, so that neither the length of an episode nor the number of its timelines changes what it counts.
An algorithm that normalises otherwise says so in `Algorithm.weights`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ajet.algorithm import Algorithm
from ajet.filter import Filter
from ajet.learning.objective import Objective
from ajet.rollout.episode import Episode
from ajet.tracker.record import sampled
from ajet.tracker.timelines import Timeline, timelines
from ajet.types import Batch, Float64, Metrics, Sample

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """A batch with what it was made of. ``sampled_tokens`` are those that no policy dropped, counted by
    the trackers, independently of the samples' masks."""

    batch: Batch
    sampled_tokens: int
    metrics: Metrics
    epochs: int = 1
    """How often each sample stands in the batch's mini-batches."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which sampled tokens are trained: all but those of calls that a filter drops and of timelines
    above the cap, of which a seeded choice is kept."""

    filters: Sequence[Filter] = ()
    max_timelines: int | None = None
    seed: str = ""

    def choose(self, episode: Episode) -> tuple[list[Timeline], Counter[str]]:
        """The timelines of an episode, and the tokens that were dropped, by policy."""
        calls = episode.record.trained_calls
        dropped: Counter[str] = Counter()
        for policy in self.filters:
            out = set(policy.drop(episode.record, calls))
            dropped[policy.name] += sampled(c for c in calls if c.number in out)
            calls = [c for c in calls if c.number not in out]
        lines = timelines(calls)
        if self.max_timelines is not None and len(lines) > self.max_timelines:
            chosen = random.Random(f"{self.seed}/{episode.plan.id}").sample(
                range(len(lines)), self.max_timelines
            )
            kept = [lines[i] for i in sorted(chosen)]
            dropped["max_timelines"] += _trained(lines) - _trained(kept)
            lines = kept
        return lines, +dropped


def build_batch(
    episodes: Sequence[Episode],
    algorithm: Algorithm,
    *,
    mini_batches: int,
    learning_rate: float,
    seed: str,
    selection: Selection | None = None,
    epochs: int = 1,
    objective: Objective | None = None,
) -> RolloutBatch | None:
    """A batch of the judged episodes; None if none has a trained token. Failed members are left out of
    their group's statistics; an episode that filters left nothing of still counts in them.

    Every epoch goes over the same mini-batches in the same order. ``objective`` is the loss, by default
    the algorithm's own.
    """
    select = selection or Selection(seed=seed)
    groups = _groups([e for e in episodes if e.failure is None and e.record.sampled_tokens])
    chosen = {e.plan.id: select.choose(e) for group in groups.values() for e in group}
    dropped: Counter[str] = sum((tokens for _, tokens in chosen.values()), Counter())
    used = [e for group in groups.values() for e in group if chosen[e.plan.id][0]]
    if not used:
        return None
    rewards = {number: np.array([e.reward for e in group]) for number, group in groups.items()}
    advantages = batch_advantages(algorithm, rewards)
    samples: list[Sample] = []
    minis = []
    for numbers in _split(list(groups), mini_batches, seed):
        members = [
            (chosen[e.plan.id][0], float(a), e.plan.id)
            for n in numbers
            for e, a in zip(groups[n], advantages[n], strict=True)
            if chosen[e.plan.id][0]
        ]
        if not members:
            continue
        first = len(samples)
        weights = algorithm.weights(np.array([_trained(lines) for lines, _, _ in members], np.float64))
        for (lines, advantage, episode), weight in zip(members, weights, strict=True):
            samples += [
                replace(timeline_sample(line, advantage, float(weight)), episode=episode) for line in lines
            ]
        minis.append(list(range(first, len(samples))))
    flat = [a == 0 for group in advantages.values() for a in group]
    rows = sum(c.end.length for e in used for c in e.record.trained_calls)
    metrics: Metrics = {
        "groups": len(groups),
        "groups_zero_advantage": sum(bool((a == 0).all()) for a in advantages.values()) / len(groups),
        "episodes_zero_advantage": float(np.mean(flat)),
        "timelines_per_episode": len(samples) / len(used),
        "merge_ratio": sum(len(s.token_ids) for s in samples) / rows,
        **{f"dropped_tokens/{policy}": n for policy, n in dropped.items()},
    }
    loss = objective or Objective(algorithm.loss, algorithm.needs)
    batch = Batch(samples, loss, minis * epochs, learning_rate, loss.needs, loss.zero_costs_nothing)
    total = sum(e.record.sampled_tokens for group in groups.values() for e in group)
    return RolloutBatch(batch, total - dropped.total(), metrics, epochs)


def batch_advantages(algorithm: Algorithm, rewards: Mapping[Key, Float64]) -> dict[Key, Float64]:
    """Rewards of each group of a batch -> advantages of each, normalized over all of them."""
    found = [algorithm.advantages(group) for group in rewards.values()]
    ends = np.cumsum([len(group) for group in found])
    whole = algorithm.normalize(np.concatenate(found)) if found else np.zeros(0)
    return dict(zip(rewards, np.split(whole, ends[:-1]), strict=True)) if found else {}


def _trained(lines: Sequence[Timeline]) -> int:
    return sum(int(line.mask.sum()) for line in lines)


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
