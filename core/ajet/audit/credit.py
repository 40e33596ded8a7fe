"""Advantages and weights as the papers of the algorithms give them, written down a second time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Rewards = Sequence[float]

MEANS = {
    **dict.fromkeys(("grpo", "gspo", "sft", "rejection_sampling", "distillation"), "episodes"),
    **dict.fromkeys(("dapo", "cispo", "reinforce++", "ppo"), "tokens"),
    **dict.fromkeys(("rloo", "dpo"), "sums"),
    "dr_grpo": "divisor",
}
"""How the loss of a mini-batch is a mean: over episodes of means over their tokens; over all tokens; over episodes of sums; the
same, divided by a constant."""


def known(algorithm: Mapping[str, Any]) -> bool:
    """Whether this module knows the algorithm."""
    return algorithm["type"] in MEANS


def weight(algorithm: Mapping[str, Any], tokens: int, all_tokens: int, episodes: int) -> float:
    """The weight of each trained token of an episode with so many, in a mini-batch of so many tokens and episodes."""
    divisors: dict[str, float] = {
        "episodes": episodes * tokens,
        "tokens": all_tokens,
        "sums": episodes,
        "divisor": episodes * algorithm.get("divisor", 128),
    }
    return 1 / divisors[MEANS[algorithm["type"]]]


def of_group(algorithm: Mapping[str, Any], rewards: Rewards) -> list[float]:
    """The advantages of a group's episodes, before `over_batch`."""
    name, count = algorithm["type"], len(rewards)
    mean, best, worst = math.fsum(rewards) / count, max(rewards), min(rewards)
    equal = best == worst
    if name in ("sft", "distillation"):
        return [1.0] * count
    if name == "ppo" or (name == "reinforce++" and not algorithm.get("group_baseline", True)):
        return list(rewards)
    if name == "rejection_sampling":
        least = algorithm.get("threshold")
        taken = [(r == best and not equal) if least is None else r >= least for r in rewards]
        return [float(t) for t in taken]
    if equal:
        return [0.0] * count
    if name == "dpo":
        first, last = rewards.index(best), rewards.index(worst)
        return [float(i == first) - float(i == last) for i in range(count)]
    centred = [r - mean for r in rewards]
    if name == "rloo":
        return [c * count / (count - 1) for c in centred]
    if name in ("dr_grpo", "reinforce++"):
        return centred
    deviation = math.sqrt(math.fsum(c * c for c in centred) / (count - 1))
    return [c / (deviation + 1e-6) for c in centred]


def over_batch(algorithm: Mapping[str, Any], advantages: Sequence[float]) -> list[float]:
    """The advantages of a batch's trained episodes on the scale of the algorithm."""
    name, count = algorithm["type"], len(advantages)
    if name == "reinforce++":
        if count < 2 or max(advantages) == min(advantages):
            return [0.0] * count
        true_mean = math.fsum(advantages) / count
        mean = 0.0 if algorithm.get("group_baseline", True) else true_mean
        deviation = math.sqrt(math.fsum((a - true_mean) ** 2 for a in advantages) / (count - 1))
        return [(a - mean) / (deviation + 1e-6) for a in advantages]
    share = {"rejection_sampling": math.fsum(advantages), "dpo": sum(a > 0 for a in advantages)}.get(name)
    return [a * (count / share) for a in advantages] if share else list(advantages)


def expected(
    algorithm: Mapping[str, Any],
    groups: Sequence[Sequence[Mapping[str, Any]]],
    is_trained: Mapping[str, bool],
) -> dict[str, dict[str, float]]:
    """The advantages of each episode: one for ``""``, and one for each name that has a reward of its own in its group.
    ``groups`` are the journal's lines; an episode that ``is_trained`` counts in the scale of the batch."""
    found: dict[str, dict[str, float]] = {e["id"]: {} for group in groups for e in group}
    for name in {"", *(n for group in groups for e in group for n in e["rewards"])}:
        among = [g for g in groups if not name or any(name in e["rewards"] for e in g)]
        for group in among:
            rewards = [e["rewards"].get(name, e["reward"]) for e in group]
            for episode, value in zip(group, of_group(algorithm, rewards), strict=True):
                found[episode["id"]][name] = value
        counted = [e["id"] for group in among for e in group if is_trained[e["id"]]]
        scaled = over_batch(algorithm, [found[e][name] for e in counted]) if counted else []
        for episode, value in zip(counted, scaled, strict=True):
            found[episode][name] = value
    return found


def applied(advantages: Mapping[str, float], agent: str, target: str) -> float:
    """The advantage of an agent's tokens: its own, else its target's, else the episode's."""
    return next(advantages[name] for name in (agent, target, "") if name in advantages)
