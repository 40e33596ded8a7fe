"""Episodes in numbers: rewards, failures by cause, tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ajet.rollout.episode import Episode
from ajet.types import Metrics


@dataclass(frozen=True, slots=True)
class Ended:
    """The numbers of an episode that has ended, from which summaries are made."""

    reward: float
    is_success: bool | None
    failure: str | None
    answered: int
    """Calls that were answered."""
    sampled: int
    """Tokens that the engine sampled, trained or not."""
    counters: Counter[str]
    breaks: Counter[str]
    """Failures by cause."""
    metrics: Metrics

    @classmethod
    def of(cls, episode: Episode) -> Ended:
        return cls(
            episode.reward,
            episode.is_success,
            episode.failure,
            episode.record.answered,
            sum(len(c.generation.token_ids) for c in episode.record.calls),
            episode.counters,
            Counter(b.cause for b in episode.breaks),
            episode.metrics,
        )


def summarize(episodes: Sequence[Episode], seconds: float) -> Metrics:
    """Metrics of episodes that ran together. Rewards are means over the judged ones."""
    return totals([Ended.of(e) for e in episodes], seconds)


def totals(episodes: Sequence[Ended], seconds: float) -> Metrics:
    """See `summarize`."""
    judged = [e for e in episodes if e.failure is None]
    generated = sum(e.sampled for e in episodes)
    metrics: Metrics = {
        "episodes": len(episodes),
        "episodes_failed": len(episodes) - len(judged),
        "calls_per_episode": sum(e.answered for e in episodes) / max(len(episodes), 1),
        "tokens_sampled": generated,
        "tokens_per_second": generated / max(seconds, 1e-9),
    }
    if judged:
        metrics["reward"] = sum(e.reward for e in judged) / len(judged)
    verdicts = [e.is_success for e in judged if e.is_success is not None]
    if verdicts:
        metrics["accuracy"] = sum(verdicts) / len(episodes)  # a failed episode has not succeeded
    metrics |= {
        f"failed/{cause}": n for cause, n in Counter(e.failure for e in episodes if e.failure).items()
    }
    counters: Counter[str] = sum((e.counters for e in episodes), Counter())
    metrics |= {f"calls/{name}": n for name, n in counters.items()}
    breaks: Counter[str] = sum((e.breaks for e in episodes), Counter())
    metrics |= {"breaks": breaks.total(), **{f"breaks/{cause}": n for cause, n in breaks.items()}}
    for name in sorted({n for e in judged for n in e.metrics}):
        values = [e.metrics[name] for e in judged if name in e.metrics]
        metrics[f"judge/{name}"] = sum(values) / len(values)
    return metrics


def failures(episodes: Sequence[Episode]) -> Counter[str]:
    """The number of failures by cause."""
    return Counter(e.failure for e in episodes if e.failure)


def describe_failures(episodes: Sequence[Episode]) -> str:
    """``3 timeout, 2 workflow:KeyError. First: …`` in one line."""
    counts = ", ".join(f"{n} {cause}" for cause, n in failures(episodes).most_common())
    first = next((e for e in episodes if e.failure), None)
    return f"{counts}. First: {first.plan.id}: {first.error}" if first else "none"
