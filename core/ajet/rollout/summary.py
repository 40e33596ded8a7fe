"""Episodes in numbers: rewards, failures by cause, tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import pstdev

import numpy as np

from ajet.rollout.episode import Episode
from ajet.rollout.failures import FailureKind
from ajet.tracker.record import sampled
from ajet.types import Generation, Int32, Metrics

GRAM = 4
"""Tokens of the sequences in which repetition is counted."""


@dataclass(frozen=True, slots=True)
class AnswerSums:
    """Sums over sampled answers, from which their length, entropy and repetition follow."""

    count: int = 0
    cut: int = 0
    """Those that ended at their length."""
    tokens: int = 0
    surprise: float = 0.0
    """The sum of -logprob over all tokens: its mean estimates the policy's entropy, in nats."""
    grams: int = 0
    """Sequences of `GRAM` tokens."""
    repeated: int = 0
    """Those that occurred before in their answer: seq-rep-4 of Welleck et al., arXiv:1908.04319, is the share of these."""

    @classmethod
    def of(cls, answers: Sequence[Generation]) -> AnswerSums:
        windows = [max(len(answer.token_ids) - GRAM + 1, 0) for answer in answers]
        return cls(
            count=len(answers),
            cut=sum(answer.finish_reason == "length" for answer in answers),
            tokens=sum(len(answer.token_ids) for answer in answers),
            surprise=-float(sum(answer.logprobs.sum() for answer in answers)),
            grams=sum(windows),
            repeated=sum(repeated(answer.token_ids) for answer in answers),
        )

    @classmethod
    def sum(cls, parts: Sequence[AnswerSums]) -> AnswerSums:
        """All of several episodes."""
        return cls(*(sum(getattr(part, field.name) for part in parts) for field in fields(cls)))

    def figures(self) -> Metrics:
        """Their means; {} without tokens."""
        if not self.tokens:
            return {}
        return {
            "answer_tokens": self.tokens / self.count,
            "answers_cut": self.cut / self.count,
            "sampled_entropy": self.surprise / self.tokens,
            "repetition": self.repeated / max(self.grams, 1),
        }


def repeated(token_ids: Int32) -> int:
    """How many sequences of `GRAM` tokens occur before in an answer."""
    count = len(token_ids) - GRAM + 1
    if count < 2:
        return 0
    ids = token_ids.astype(np.uint64)
    hashed = np.zeros(count, np.uint64)
    for i, factor in enumerate(_FACTORS):
        hashed += ids[i : i + count] * np.uint64(factor)
    return count - len(np.unique(hashed))


_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63)
"""Odd factors of a hash, modulo 2^64; one for each token of a sequence."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The numbers of an episode that has ended, from which summaries are made."""

    id: str
    reward: float
    rewards: Mapping[str, float]
    """Those of single agents and targets, as in `Episode`."""
    call_rewards: Mapping[int, float]
    is_success: bool | None
    failure: str | None
    error: str
    """The failure in words; empty without one."""
    answered: int
    """Calls that were answered."""
    sampled: int
    """Tokens that the engine sampled, trained or not. A fork has not sampled what it replays."""
    to_train: int
    """Tokens among them that were sampled for training, before any are dropped."""
    trained: Sequence[tuple[str, str]]
    """Agent and target of each call to train."""
    counters: Counter[str]
    breaks: Counter[str]
    """Breaks by cause."""
    metrics: Metrics
    is_fork: bool = False
    replayed: int | None = None
    """The calls of an earlier episode with which its whole group begins; None if it begins at the beginning."""
    answers: AnswerSums = AnswerSums()
    """The answers to train that were sampled."""

    @classmethod
    def of(cls, episode: Episode) -> Ended:
        return cls(
            id=episode.plan.id,
            reward=episode.reward,
            rewards=episode.rewards,
            call_rewards=episode.call_rewards,
            is_success=episode.is_success,
            failure=episode.failure,
            error=episode.error,
            answered=episode.record.answered,
            sampled=sampled(c for c in episode.record.calls if not c.replayed),
            to_train=episode.record.sampled_tokens,
            trained=[(c.agent, c.target) for c in episode.record.trained_calls],
            counters=episode.counters,
            breaks=Counter(b.cause for b in episode.breaks),
            metrics=episode.metrics,
            is_fork=episode.plan.is_fork,
            replayed=episode.plan.fork.calls if episode.plan.is_steered and episode.plan.fork else None,
            answers=AnswerSums.of([c.generation for c in episode.record.trained_calls if not c.replayed]),
        )


def rewarded_as(names: Container[str], agent: str, target: str) -> str:
    """The name of the reward that an agent's tokens get, of those that have one: its own, else its target's, else the episode's, ""."""
    return next((name for name in (agent, target) if name in names), "")


def rewards_differ(group: Sequence[Ended], discount: float = 1.0) -> bool:
    """Whether a group's judged episodes, those with a token to train, have different rewards for what they train, see
    `rewarded_as`. With a ``discount`` for each call, equal rewards differ too if the calls are not as many."""
    judged = [e for e in group if e.failure is None and e.to_train]
    names = {name for e in judged for name in e.rewards}
    applied = sorted({rewarded_as(names, *pair) for e in judged for pair in e.trained})

    def earned(episode: Ended) -> object:
        own = [episode.rewards.get(name, episode.reward) for name in applied]
        count = len(episode.trained) if discount != 1 and any(own) else 0
        return *own, *sorted(episode.call_rewards.items()), count

    return len(set(map(earned, judged))) > 1


def summarize(episodes: Sequence[Episode], seconds: float) -> Metrics:
    """Metrics of episodes that ran together. Rewards are means over the judged ones."""
    return totals([Ended.of(e) for e in episodes], seconds)


def totals(episodes: Sequence[Ended], seconds: float) -> Metrics:
    """See `summarize`. Rewards are those of independent episodes that are whole: forks are more often of some of them than of others,
    and steered ones begin where others have come."""
    failed = [e for e in episodes if e.failure not in (None, FailureKind.DIVERGED)]
    steered = [e for e in episodes if e.replayed is not None]
    independent = [e for e in episodes if not e.is_fork and e.replayed is None]
    judged = [e for e in independent if e.failure is None]
    generated = sum(e.sampled for e in episodes)
    metrics: Metrics = {
        "episodes": len(episodes),
        "episodes_failed": len(failed),
        "calls_per_episode": sum(e.answered for e in episodes) / max(len(episodes), 1),
        "tokens_sampled": generated,
        "tokens_per_second": generated / max(seconds, 1e-9),
    }
    if judged:
        rewards = [e.reward for e in judged]
        metrics["reward"] = sum(rewards) / len(rewards)
        metrics |= {"reward_std": pstdev(rewards), "reward_min": min(rewards), "reward_max": max(rewards)}
        if cut := [e.reward for e in judged if e.answers.cut]:
            metrics |= {"episodes_cut": len(cut), "reward_cut": sum(cut) / len(cut)}
    metrics |= AnswerSums.sum([e.answers for e in independent]).figures()
    if any(e.failure for e in episodes):
        metrics["tokens_failed"] = sum(e.sampled for e in episodes if e.failure)
    if any(e.is_fork for e in episodes):
        metrics["forks"] = sum(e.is_fork for e in episodes)
        metrics["forks_diverged"] = sum(e.is_fork and e.failure == FailureKind.DIVERGED for e in episodes)
    if steered:
        metrics |= _steered(steered)
    verdicts = [e.is_success for e in judged if e.is_success is not None]
    if verdicts:
        metrics["accuracy"] = sum(verdicts) / len(independent)  # a failed episode has not succeeded
    metrics |= {f"failed/{cause}": n for cause, n in Counter(e.failure for e in failed).items()}
    counters: Counter[str] = sum((e.counters for e in episodes), Counter())
    metrics |= {f"calls/{name}": n for name, n in counters.items()}
    breaks: Counter[str] = sum((e.breaks for e in episodes), Counter())
    metrics |= {"breaks": breaks.total(), **{f"breaks/{cause}": n for cause, n in breaks.items()}}
    for name in sorted({n for e in judged for n in e.metrics}):
        values = [e.metrics[name] for e in judged if name in e.metrics]
        metrics[f"judge/{name}"] = sum(values) / len(values)
    return metrics


def _steered(episodes: Sequence[Ended]) -> Metrics:
    """What of the metrics is of episodes that begin with calls of an earlier one."""
    judged = [e for e in episodes if e.failure is None]
    verdicts = [e.is_success for e in judged if e.is_success is not None]
    return {
        "steered": len(episodes),
        "steered_diverged": sum(e.failure == FailureKind.DIVERGED for e in episodes),
        "steered_calls": sum(e.replayed or 0 for e in episodes) / len(episodes),
        **({"steered_reward": sum(e.reward for e in judged) / len(judged)} if judged else {}),
        **({"steered_accuracy": sum(verdicts) / len(episodes)} if verdicts else {}),
    }


def failures(episodes: Sequence[Episode | Ended]) -> Counter[str]:
    """The number of failures by cause."""
    return Counter(e.failure for e in episodes if e.failure)


def describe_failures(episodes: Sequence[Episode | Ended]) -> str:
    """``3 timeout, 2 workflow:KeyError. First: …`` in one line."""
    counts = ", ".join(f"{n} {cause}" for cause, n in failures(episodes).most_common())
    first = next((e for e in episodes if e.failure), None)
    return f"{counts}. First: {first.id}: {first.error}" if first else "none"
