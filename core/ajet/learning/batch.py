"""Judged episodes to a batch: per-token weights that contain every normalisation.

By default L = 1/E Σ_e 1/T_e Σ_t ℓ_t over the E episodes of a mini-batch and the T_e trained tokens of
each, with those of its start; so neither the length of an episode nor the number of its timelines changes its influence.
Targets with adapters are separate models, so each has its own E and T_e.
An algorithm with another normalisation defines `Algorithm.weights`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

import numpy as np

from ajet.interfaces.algorithm import ActorCritic, Algorithm, SelfTaught
from ajet.interfaces.filter import Filter
from ajet.learning.credit import advantage_of, call_advantages, unmatched_names
from ajet.learning.critic import estimated
from ajet.learning.fork_tree import ForkTree, OwnCall
from ajet.learning.objective import Objective, objective
from ajet.learning.pairs import paired
from ajet.learning.self_teacher import SelfTeacher
from ajet.learning.settings import CreditKind, TrainSettings
from ajet.rollout.batch_record import Account
from ajet.rollout.episode import Episode, Fork
from ajet.tracker.call import Call
from ajet.tracker.record import SIDE_CALLS, sampled
from ajet.tracker.timelines import Timeline, timelines
from ajet.types import Batch, Hint, Metrics, Sample


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
    calls: Sequence[int]
    """The numbers of its calls that an engine answered, in the order of `EpisodeRecord.path`."""
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
    fork: Fork | None = None
    call_rewards: Mapping[int, float] = field(default_factory=dict)
    """Rewards of single calls, by number."""
    hints: Sequence[Hint | None] = ()
    """Of each timeline, what its teacher reads, or None if it has none; empty if there is no feedback on the episode."""


@dataclass(frozen=True, slots=True)
class TokenSelection:
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
            replace(line, images=images) if (images := images_in(line.token_ids)) else line for line in lines
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
            calls=[c.number for c in episode.record.path],
            lines=lines,
            sampled_tokens=episode.record.sampled_tokens,
            call_tokens=sum(call.end.length for call in episode.record.trained_calls),
            dropped={policy: sampled(out) for policy, out in dropped.items()},
            left_out={policy: [c.number for c in out] for policy, out in dropped.items()},
            fork=plan.fork and replace(plan.fork, record=None),
            call_rewards=episode.call_rewards,
        )


@dataclass(frozen=True, slots=True)
class Learning:
    """How rewards become losses of tokens: the same in all steps of a run."""

    algorithm: Algorithm
    objective: Objective | None = None
    """The loss; by default the algorithm's own."""
    adapters: Collection[str] = ()
    """The targets that have one."""
    credit: CreditKind = "episode"
    discount: float = 1.0
    """See `call_advantages`."""

    @classmethod
    def of(cls, algorithm: Algorithm, settings: TrainSettings, adapters: Collection[str] = ()) -> Learning:
        """That of a job."""
        return cls(
            algorithm, objective(algorithm, settings), adapters, settings.credit, settings.call_discount
        )


def build_batch(
    episodes: Sequence[Episode],
    learning: Learning,
    *,
    mini_batches: int,
    learning_rate: float,
    seed: str,
    epochs: int = 1,
    selection: TokenSelection | None = None,
    teacher: SelfTeacher | None = None,
) -> RolloutBatch | None:
    """A batch of the judged episodes; None if none has a trained token. Failed members are left out of their
    group's statistics; an episode of which filters left nothing still counts in them.

    Every epoch uses the same mini-batches in the same order. ``teacher`` writes the hints of an algorithm that needs them.
    """
    select = selection or TokenSelection(seed=seed)
    feedback = teacher.feedback(episodes) if teacher else {}
    learnable = []
    for episode in episodes:
        if kept := select.learnable(episode):
            if teacher and (said := feedback.get(episode.id)):
                kept = replace(kept, hints=[teacher.hint(episode, line, said) for line in kept.lines])
            learnable.append(kept)
    return batch_of(
        learnable,
        learning,
        mini_batches=mini_batches,
        learning_rate=learning_rate,
        seed=seed,
        epochs=epochs,
    )


def batch_of(
    episodes: Sequence[Learnable],
    learning: Learning,
    *,
    mini_batches: int,
    learning_rate: float,
    seed: str,
    epochs: int = 1,
) -> RolloutBatch | None:
    """See `build_batch`. The samples of an episode are in the order of its ``lines``."""
    algorithm = learning.algorithm
    groups: dict[int, list[Learnable]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    used = [e for group in groups.values() for e in group if e.lines]
    if not used:
        return None
    by_group = call_advantages(
        algorithm,
        groups,
        lambda episode: bool(episode.lines),
        credit=learning.credit,
        discount=learning.discount,
    )
    samples: list[Sample] = []
    minis, sums, credited = [], [], set[str]()
    for numbers in _split(list(groups), mini_batches, seed):
        if not any(e.lines for n in numbers for e in groups[n]):
            continue
        first = len(samples)
        new, weighed, ids = _samples(
            [(groups[n], by_group[n]) for n in numbers], algorithm, learning.adapters
        )
        samples += new
        credited |= ids
        sums.append(weighed)
        minis.append(list(range(first, len(samples))))
    steered = sum(any(e.fork and e.fork.steered for e in group) for group in groups.values())
    dropped: Counter[str] = sum((Counter(e.dropped) for group in groups.values() for e in group), Counter())
    spans = ((span.agent, span.target) for s in samples for span in s.spans)
    unmatched = unmatched_names((e for group in by_group.values() for e in group), spans)
    metrics: Metrics = {
        "groups": len(groups),
        **({"groups_steered": steered} if steered else {}),
        **_credited(algorithm, samples, groups, credited),
        "timelines_per_episode": len(samples) / len(used),
        "merge_ratio": sum(len(s.token_ids) for s in samples) / sum(e.call_tokens for e in used),
        **{f"dropped_tokens/{policy}": n for policy, n in dropped.items()},
        **(_taught(used) if "teacher" in algorithm.needs else {}),
        **({"unmatched_reward_names": len(unmatched)} if unmatched else {}),
    }
    loss = learning.objective or Objective(algorithm.loss, algorithm.needs, measures=algorithm.measures)
    batch = Batch(
        samples,
        loss,
        minis * epochs,
        learning_rate,
        loss.needs,
        loss.zero_costs_nothing,
        loss.measures,
        partial(estimated, algorithm) if isinstance(algorithm, ActorCritic) else None,
        algorithm.teacher_share if isinstance(algorithm, SelfTaught) else 0.0,
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
    dropped: dict[str, dict[str, Sequence[int]]] = {}
    for episode in episodes:
        for policy, calls in episode.left_out.items():
            dropped.setdefault(policy, {})[episode.id] = calls
    return dropped


def _samples(
    groups: Sequence[tuple[Sequence[Learnable], Sequence[Mapping[str, Sequence[float]]]]],
    algorithm: Algorithm,
    adapters: Collection[str],
) -> tuple[list[Sample], dict[str, float], set[str]]:
    """The samples of a mini-batch's groups with the advantages of their calls, what the weights of each adapter add up to, and the
    episodes of which some token has an advantage."""

    def adapter(line: Timeline) -> str | None:
        target = line.spans[0].target
        return target if target in adapters else None

    lines = [
        (episode, advantages, line, hint)
        for members, theirs in groups
        for episode, advantages in zip(members, theirs, strict=True)
        for line, hint in zip_longest(episode.lines, episode.hints)
    ]
    taught = [hint is not None or "teacher" not in algorithm.needs for *_, hint in lines]
    paths = [ForkTree(members).path(n) for members, _ in groups for n in range(len(members))]
    weights: dict[str | None, Mapping[OwnCall, float]] = {}
    sums: dict[str, float] = {}
    for name in {adapter(line) for _, _, line, _ in lines}:
        tokens: Counter[OwnCall] = Counter()
        for (episode, _, line, _), counts in zip(lines, taught, strict=True):
            if counts and adapter(line) == name:  # tokens without a teacher are in no mean
                tokens.update({(episode.id, span.call): span.end - span.start for span in line.spans})
        weights[name], sums[name or ""] = _weights(algorithm, paths, tokens)
    samples, credited = [], set()
    for (episode, advantages, line, hint), counts in zip(lines, taught, strict=True):
        places = {number: place for place, number in enumerate(episode.calls)}
        own = [counts * advantage_of(advantages, s.agent, s.target)[places[s.call]] for s in line.spans]
        if any(own):
            credited.add(episode.id)
        weighed = [weights[adapter(line)].get((episode.id, span.call), 0.0) for span in line.spans]
        sample = timeline_sample(line, own, weighed)
        samples.append(replace(sample, episode=episode.id, adapter=adapter(line), hint=hint))
    if "pairs" in algorithm.needs:
        samples = paired(samples, [episode.group for episode, _, _, _ in lines])
    return samples, sums, credited


def _weights(
    algorithm: Algorithm, paths: Sequence[Sequence[OwnCall]], tokens: Mapping[OwnCall, int]
) -> tuple[Mapping[OwnCall, float], float]:
    """The weight of a token of each call, and what those of all ``tokens`` add up to. The algorithm weighs each path as an episode:
    tokens that forks replay, which are trained once, weigh what they would if each fork trained them. Calls from outside the group
    count as long as the path's others, so a token weighs alike behind a long start and a short one."""
    own = [sum(tokens.get(call, 0) for call in path) for path in paths]
    present = [(path, count) for path, count in zip(paths, own, strict=True) if count]
    counts = [count * len(path) / sum(number >= 0 for _, number in path) for path, count in present]
    of_paths = algorithm.weights(np.array(counts, np.float64)) if present else ()
    weights: dict[OwnCall, float] = {}
    for (path, _), weight in zip(present, of_paths, strict=True):
        for call in path:
            if call in tokens:
                weights[call] = weights.get(call, 0.0) + float(weight)
    return weights, sum(float(weight) * count for weight, (_, count) in zip(of_paths, present, strict=True))


def _credited(
    algorithm: Algorithm,
    samples: Sequence[Sample],
    groups: Mapping[int, Sequence[Learnable]],
    credited: Collection[str],
) -> Metrics:
    """How much of a batch has an advantage, or is in a pair. A critic gives every token an advantage later."""
    if isinstance(algorithm, ActorCritic):
        return {}
    zero = {number: [e.id not in credited for e in group] for number, group in groups.items()}
    metrics: Metrics = {
        "groups_zero_advantage": sum(map(all, zero.values())) / len(groups),
        "episodes_zero_advantage": float(np.mean([none for group in zero.values() for none in group])),
    }
    if "pairs" in algorithm.needs:
        metrics["pairs"] = len({(s.pair, s.adapter) for s in samples if s.pair is not None})
        metrics["groups_without_pair"] = len(groups.keys() - {s.pair for s in samples})
    return metrics


def _taught(episodes: Sequence[Learnable]) -> Metrics:
    """How many of these episodes have no feedback, and how many timelines of the others have no teacher."""
    return {
        "episodes_without_feedback": sum(not e.hints for e in episodes),
        "timelines_without_teacher": sum(hint is None for e in episodes for hint in e.hints),
    }


def timeline_sample(line: Timeline, advantages: Sequence[float], weights: Sequence[float]) -> Sample:
    """A timeline with the advantages of the calls in it, and the weights of their tokens, in the order of its spans."""
    credit, weighed = np.zeros((2, len(line.token_ids)), np.float32)
    for span, advantage, weight in zip(line.spans, advantages, weights, strict=True):
        credit[span.start : span.end], weighed[span.start : span.end] = advantage, weight
    ids, mask, logprobs = line.token_ids, line.mask, line.logprobs
    return Sample(ids, mask, logprobs, credit, weighed, line.spans, images=line.images, kept=line.kept)


def _split(numbers: list[int], parts: int, seed: str) -> list[list[int]]:
    """Shuffle into ``parts`` shares of nearly equal size, none empty."""
    random.Random(seed).shuffle(numbers)
    parts = min(parts, len(numbers))
    return [sorted(numbers[i::parts]) for i in range(parts)]
