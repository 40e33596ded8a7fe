"""Judged episodes to a batch: per-token weights that contain every normalisation.

By default L = 1/E Σ_e 1/T_e Σ_t ℓ_t over the E episodes of a mini-batch and the T_e trained tokens of
each, so that neither the length of an episode nor the number of its timelines changes its influence.
Targets with adapters are separate models, so each has its own E and T_e.
An algorithm with another normalisation defines `Algorithm.weights`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ajet.interfaces.algorithm import ActorCritic, Algorithm
from ajet.interfaces.filter import Filter
from ajet.learning.credit import EPISODE, advantage_of, advantages
from ajet.learning.critic import estimated
from ajet.learning.objective import Objective
from ajet.learning.pairs import paired
from ajet.rollout.batch_record import Account
from ajet.rollout.episode import Episode
from ajet.tracker.call import Call
from ajet.tracker.record import SIDE_CALLS, sampled
from ajet.tracker.timelines import Timeline, timelines
from ajet.types import Batch, Metrics, Sample


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """A batch with its source. ``sampled_tokens`` are those that no policy dropped, counted by the trackers,
    independently of the samples' masks."""

    batch: Batch
    sampled_tokens: int
    metrics: Metrics
    epochs: int = 1
    """How often each sample occurs in the batch's mini-batches."""
    account: Account = field(default_factory=Account)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnable:
    """What learning needs of a judged episode. It has no record, so it can be sent to other processes."""

    id: str
    group: int
    """Episodes of the same group number are compared with each other."""
    member: int
    reward: float
    rewards: Mapping[str, float]
    lines: Sequence[Timeline]
    """The timelines to train: empty if filters left nothing."""
    sampled_tokens: int
    """Tokens that were sampled for training, before any were dropped."""
    call_tokens: int
    """Tokens that its trained calls would have without merging, each with its whole prompt."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Sampled tokens that are not trained, by policy."""
    left_out: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The numbers of the calls that sampled them, by policy."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects the sampled tokens to train: all except those of side calls and of calls that a filter drops. Above the cap on
    timelines a seeded choice is kept."""

    filters: Sequence[Filter] = ()
    max_timelines: int | None = None
    seed: str = ""

    def choose(self, episode: Episode) -> tuple[list[Timeline], dict[str, list[Call]]]:
        """The timelines of an episode, and the calls that were dropped, by policy."""
        calls = episode.record.trained_calls
        dropped: dict[str, list[Call]] = {SIDE_CALLS: [c for c in calls if c.side]}
        calls = [c for c in calls if not c.side]
        for policy in self.filters:
            out = set(policy.drop(episode.record, calls))
            dropped.setdefault(policy.name, []).extend(c for c in calls if c.number in out)
            calls = [c for c in calls if c.number not in out]
        lines = timelines(calls)
        if self.max_timelines is not None and len(lines) > self.max_timelines:
            chosen = random.Random(f"{self.seed}/{episode.plan.id}").sample(
                range(len(lines)), self.max_timelines
            )
            kept = [lines[i] for i in sorted(chosen)]
            left = {span.call for line in kept for span in line.spans}
            dropped["max_timelines"] = [
                c for c in calls if c.number not in left and len(c.generation.token_ids)
            ]
            lines = kept
        images_in = episode.record.images_in
        lines = [
            replace(line, images=found) if (found := images_in(line.token_ids)) else line for line in lines
        ]
        return lines, {policy: out for policy, out in dropped.items() if sampled(out)}

    def learnable(self, episode: Episode) -> Learnable | None:
        """What is learned from an episode; None if it failed or no token of it was sampled for training."""
        if episode.failure is not None or not episode.record.sampled_tokens:
            return None
        lines, dropped = self.choose(episode)
        plan = episode.plan
        return Learnable(
            id=plan.id,
            group=plan.group,
            member=plan.member,
            reward=episode.reward,
            rewards=episode.rewards,
            lines=lines,
            sampled_tokens=episode.record.sampled_tokens,
            call_tokens=sum(call.end.length for call in episode.record.trained_calls),
            dropped={policy: sampled(out) for policy, out in dropped.items()},
            left_out={policy: [c.number for c in out] for policy, out in dropped.items()},
        )


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
    adapters: Collection[str] = (),
) -> RolloutBatch | None:
    """A batch of the judged episodes; None if none has a trained token. Failed members are left out of their
    group's statistics; an episode of which filters left nothing still counts in them.

    Every epoch uses the same mini-batches in the same order. ``objective`` is the loss, by default
    the algorithm's own. ``adapters`` are the targets that have one.
    """
    select = selection or Selection(seed=seed)
    learnable = [found for episode in episodes if (found := select.learnable(episode))]
    return batch_of(
        learnable,
        algorithm,
        mini_batches=mini_batches,
        learning_rate=learning_rate,
        seed=seed,
        epochs=epochs,
        objective=objective,
        adapters=adapters,
    )


def batch_of(
    episodes: Sequence[Learnable],
    algorithm: Algorithm,
    *,
    mini_batches: int,
    learning_rate: float,
    seed: str,
    epochs: int = 1,
    objective: Objective | None = None,
    adapters: Collection[str] = (),
) -> RolloutBatch | None:
    """See `build_batch`. The samples of an episode are in the order of its ``lines``."""
    groups: dict[int, list[Learnable]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    used = [e for group in groups.values() for e in group if e.lines]
    if not used:
        return None
    found = advantages(algorithm, groups, lambda episode: bool(episode.lines))
    samples: list[Sample] = []
    minis, sums = [], []
    for numbers in _split(list(groups), mini_batches, seed):
        members = [(e, a) for n in numbers for e, a in zip(groups[n], found[n], strict=True) if e.lines]
        if not members:
            continue
        first = len(samples)
        new, weighed = _samples(members, algorithm, adapters)
        samples += new
        sums.append(weighed)
        minis.append(list(range(first, len(samples))))
    dropped: Counter[str] = sum((Counter(e.dropped) for group in groups.values() for e in group), Counter())
    metrics: Metrics = {
        "groups": len(groups),
        **_credited(algorithm, samples, found),
        "timelines_per_episode": len(samples) / len(used),
        "merge_ratio": sum(len(s.token_ids) for s in samples) / sum(e.call_tokens for e in used),
        **{f"dropped_tokens/{policy}": n for policy, n in dropped.items()},
        **_unmatched_reward_names(samples, found.values()),
    }
    loss = objective or Objective(algorithm.loss, algorithm.needs, measures=algorithm.measures)
    batch = Batch(
        samples,
        loss,
        minis * epochs,
        learning_rate,
        loss.needs,
        loss.zero_costs_nothing,
        loss.measures,
        partial(estimated, algorithm) if isinstance(algorithm, ActorCritic) else None,
    )
    total = sum(e.sampled_tokens for group in groups.values() for e in group)
    account = Account(
        groups={e.id: e.group for group in groups.values() for e in group},
        calls=_by_rule(e for group in groups.values() for e in group),
        sums=sums,
    )
    return RolloutBatch(batch, total - dropped.total(), metrics, epochs, account)


def _by_rule(episodes: Iterable[Learnable]) -> dict[str, dict[str, Sequence[int]]]:
    """The calls that were left out, by policy and episode."""
    found: dict[str, dict[str, Sequence[int]]] = {}
    for episode in episodes:
        for policy, calls in episode.left_out.items():
            found.setdefault(policy, {})[episode.id] = calls
    return found


def _samples(
    members: Sequence[tuple[Learnable, Mapping[str, float]]],
    algorithm: Algorithm,
    adapters: Collection[str],
) -> tuple[list[Sample], dict[str, float]]:
    """The samples of a mini-batch's episodes with these advantages, and what the weights of each adapter add up to."""

    def adapter(line: Timeline) -> str | None:
        target = line.spans[0].target
        return target if target in adapters else None

    weights: dict[tuple[str | None, str], float] = {}
    sums: dict[str, float] = {}
    for name in {adapter(line) for episode, _ in members for line in episode.lines}:
        tokens = {
            episode.id: _trained([line for line in episode.lines if adapter(line) == name])
            for episode, _ in members
        }
        present = [episode for episode, count in tokens.items() if count]
        found = algorithm.weights(np.array([tokens[episode] for episode in present], np.float64))
        weights |= {(name, episode): float(weight) for episode, weight in zip(present, found, strict=True)}
        sums[name or ""] = sum(weights[name, episode] * tokens[episode] for episode in present)
    samples = [
        replace(
            timeline_sample(line, advantages, weights[adapter(line), episode.id]),
            episode=episode.id,
            adapter=adapter(line),
        )
        for episode, advantages in members
        for line in episode.lines
    ]
    if "pairs" in algorithm.needs:
        samples = paired(samples, [episode.group for episode, _ in members for _ in episode.lines])
    return samples, sums


def _credited(
    algorithm: Algorithm, samples: Sequence[Sample], found: Mapping[int, Sequence[Mapping[str, float]]]
) -> Metrics:
    """How much of a batch has an advantage, or is in a pair. A critic gives every token an advantage later."""
    if isinstance(algorithm, ActorCritic):
        return {}
    zero = {number: [not any(a.values()) for a in group] for number, group in found.items()}
    metrics: Metrics = {
        "groups_zero_advantage": sum(map(all, zero.values())) / len(found),
        "episodes_zero_advantage": float(np.mean([none for group in zero.values() for none in group])),
    }
    if "pairs" in algorithm.needs:
        metrics["pairs"] = len({(s.pair, s.adapter) for s in samples if s.pair is not None})
        metrics["groups_without_pair"] = len(found.keys() - {s.pair for s in samples})
    return metrics


def _unmatched_reward_names(
    samples: Sequence[Sample], found: Iterable[Sequence[Mapping[str, float]]]
) -> Metrics:
    """The number of names with a reward of their own that match no trained token, perhaps because of a misspelling."""
    trained = {name for s in samples for span in s.spans for name in (span.agent, span.target)}
    named = {name for group in found for episode in group for name in episode}
    unmatched = named - trained - {EPISODE}
    return {"unmatched_reward_names": len(unmatched)} if unmatched else {}


def _trained(lines: Sequence[Timeline]) -> int:
    return sum(int(line.mask.sum()) for line in lines)


def timeline_sample(line: Timeline, advantages: Mapping[str, float], weight: float) -> Sample:
    """A timeline whose trained tokens have the advantages of their agents, and one weight."""
    credit = np.zeros(len(line.token_ids), np.float32)
    for span in line.spans:
        credit[span.start : span.end] = advantage_of(advantages, span.agent, span.target)
    weights = line.mask.astype(np.float32) * np.float32(weight)
    return Sample(line.token_ids, line.mask, line.logprobs, credit, weights, line.spans, images=line.images)


def _split(numbers: list[int], parts: int, seed: str) -> list[list[int]]:
    """Shuffle into ``parts`` shares of nearly equal size, none empty."""
    random.Random(seed).shuffle(numbers)
    parts = min(parts, len(numbers))
    return [sorted(numbers[i::parts]) for i in range(parts)]
