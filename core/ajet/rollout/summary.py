"""Episodes in numbers: rewards, failures by cause, tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ajet.rollout.episode import Episode
from ajet.types import Metrics


def summarize(episodes: Sequence[Episode], seconds: float) -> Metrics:
    """Metrics of episodes that ran together. Rewards are means over the judged ones."""
    judged = [e for e in episodes if e.failure is None]
    generated = sum(len(c.generation.token_ids) for e in episodes for c in e.record.calls)
    metrics: Metrics = {
        "episodes": len(episodes),
        "episodes_failed": len(episodes) - len(judged),
        "calls_per_episode": sum(e.record.answered for e in episodes) / max(len(episodes), 1),
        "tokens_sampled": generated,
        "tokens_per_second": generated / max(seconds, 1e-9),
    }
    if judged:
        metrics["reward"] = sum(e.reward for e in judged) / len(judged)
    verdicts = [e.is_success for e in judged if e.is_success is not None]
    if verdicts:
        metrics["accuracy"] = sum(verdicts) / len(episodes)  # a failed episode has not succeeded
    metrics |= {f"failed/{cause}": n for cause, n in failures(episodes).items()}
    counters: Counter[str] = sum((e.counters for e in episodes), Counter())
    metrics |= {f"calls/{name}": n for name, n in counters.items()}
    metrics["breaks"] = sum(len(e.breaks) for e in episodes)
    metrics |= {
        f"breaks/{cause}": n for cause, n in Counter(b.cause for e in episodes for b in e.breaks).items()
    }
    for name in sorted({n for e in judged for n in e.metrics}):
        values = [e.metrics[name] for e in judged if name in e.metrics]
        metrics[f"judge/{name}"] = sum(values) / len(values)
    return metrics


def failures(episodes: Sequence[Episode]) -> Counter[str]:
    """How many failed, by cause."""
    return Counter(e.failure for e in episodes if e.failure)


def describe_failures(episodes: Sequence[Episode]) -> str:
    """``3 timeout, 2 workflow:KeyError. First: …`` in one line."""
    counts = ", ".join(f"{n} {cause}" for cause, n in failures(episodes).most_common())
    first = next((e for e in episodes if e.failure), None)
    return f"{counts}. First: {first.plan.id}: {first.error}" if first else "none"
