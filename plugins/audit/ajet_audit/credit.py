"""Advantages and weights as the papers of the algorithms give them, written down a second time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

PRIOR = 4
"""The start of a segment counts as having this many more leaves, of advantage 0."""
Rewards = Sequence[float]
Sampled = tuple[str, int]
"""A call: the episode that sampled it, and its number there."""

MEANS = {
    **dict.fromkeys(("grpo", "gspo", "sft", "rejection_sampling", "distillation"), "episodes"),
    **dict.fromkeys(("dapo", "cispo", "reinforce++", "ppo", "sdpo"), "tokens"),
    **dict.fromkeys(("rloo", "dpo"), "sums"),
    "dr_grpo": "divisor",
}
"""How the loss of a mini-batch is a mean: over episodes of means over their tokens; over all tokens; over episodes of sums; the
same, divided by a constant."""


def known(algorithm: Mapping[str, Any]) -> bool:
    """Whether this module knows the algorithm."""
    return algorithm["type"] in MEANS


def weight(algorithm: Mapping[str, Any], tokens: float, all_tokens: float, episodes: int) -> float:
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
    if name in ("sft", "distillation", "sdpo"):
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


def path(line: Mapping[str, Any], group: Mapping[str, Mapping[str, Any]]) -> list[Sampled]:
    """The calls that lead to the end of an episode. Those that a fork got from its parent are the parent's; of one that is not in
    the ``group`` only their places are known. Episodes are lines of the journal."""
    own = sorted(c["number"] for c in line["calls"] if "tokens" in c and not c["tokens"].get("replayed"))
    calls = [(line["id"], number) for number in own]
    if fork := line.get("fork"):
        parent, shared = fork["parent"], fork["calls"]
        # A fork comes after its parent; what begins with calls of an earlier episode has none in the group.
        is_known = parent in group and not fork.get("steered") and group[parent]["member"] < line["member"]
        before = path(group[parent], group) if is_known else [(parent, -1 - i) for i in range(shared)]
        calls = [*before[:shared], *calls]
    return calls


def expected(
    algorithm: Mapping[str, Any],
    groups: Sequence[Sequence[Mapping[str, Any]]],
    is_trained: Mapping[str, bool],
    is_tree: bool = False,
    discount: float = 1.0,
) -> dict[Sampled, dict[str, float]]:
    """The advantages of each call: one for ``""``, and one for each name that has a reward of its own in its group.
    ``groups`` are the journal's lines; an episode that ``is_trained`` counts in the scale of the batch."""
    by_call: dict[Sampled, dict[str, float]] = {}
    paths = [{e["id"]: path(e, {m["id"]: m for m in group}) for e in group} for group in groups]
    longest = max((len(calls) for group in paths for calls in group.values()), default=0)
    same = discount == 1 and not any(e.get("call_rewards") for group in groups for e in group)
    for name in {"", *(n for group in groups for e in group for n in e["rewards"])}:
        at: list[dict[str, float]] = []
        for place in range(longest):
            if at and same:
                at.append(at[0])
                continue
            at.append({})
            counted = []
            for group, ways in zip(groups, paths, strict=True):
                if (name and not any(name in e["rewards"] for e in group)) or max(
                    map(len, ways.values())
                ) <= place:
                    continue
                values = [_return(e, e["rewards"].get(name, e["reward"]), place, discount) for e in group]
                at[-1] |= zip((e["id"] for e in group), of_group(algorithm, values), strict=True)
                counted += [e["id"] for e in group if is_trained[e["id"]]]
            scaled = over_batch(algorithm, [at[-1][e] for e in counted]) if counted else []
            at[-1] |= zip(counted, scaled, strict=True)
        for ways in paths:
            if at and next(iter(ways)) in at[0]:
                for call, value in _differences(ways, at, is_tree).items():
                    by_call.setdefault(call, {})[name] = value
    return by_call


def _return(line: Mapping[str, Any], reward: float, place: int, discount: float) -> float:
    """What follows a call of an episode, by the call's place on the path; the reward alone after its end."""
    given = {int(number): value for number, value in line.get("call_rewards", {}).items()}
    calls = {c["number"]: c["tokens"] for c in line["calls"] if "tokens" in c}
    order = sorted(calls, key=lambda n: (not calls[n].get("replayed"), calls[n].get("place", 0), n))
    if place >= len(order):
        return reward
    # Parallel calls of a fork count in the order of its parent.
    when = dict(zip(order, sorted(order), strict=True))
    numbers = sorted({*given, *order}, key=lambda n: when.get(n, n))
    after = numbers[numbers.index(order[place]) :]
    # A call that no engine answered is not a step.
    steps = [sum(n in when for n in after[1 : i + 1]) for i in range(len(after))]
    whole = math.fsum(discount**i * given.get(number, 0.0) for i, number in zip(steps, after, strict=True))
    return float(whole + discount ** steps[-1] * reward)


def _differences(
    ways: Mapping[str, Sequence[Sampled]], at: Sequence[Mapping[str, float]], is_tree: bool
) -> dict[Sampled, float]:
    """The mean of what ``at`` gives, at each call, the episodes that have all the calls up to it on their ways; in a tree, less
    that of the first larger set of episodes on the way back to the root, with `PRIOR` more that count as 0, as the root does."""
    through: dict[tuple[Sampled, ...], list[str]] = {}
    for episode, way in ways.items():
        for place in range(len(way)):
            through.setdefault(tuple(way[: place + 1]), []).append(episode)
    gains = {}
    for prefix, episodes in through.items():
        values, before = at[len(prefix) - 1], 0.0
        for end in range(len(prefix) - 1, 0, -1) if is_tree else ():
            if len(others := through[prefix[:end]]) > len(episodes):
                before = math.fsum(values[e] for e in others) / (len(others) + PRIOR)
                break
        gains[prefix[-1]] = math.fsum(values[e] for e in episodes) / len(episodes) - before
    return gains


def weights(
    algorithm: Mapping[str, Any], ways: Sequence[Sequence[Sampled]], tokens: Mapping[Sampled, int]
) -> dict[Sampled, float]:
    """The weight of a trained token of each call: the sum of what it would weigh in each episode on whose way the call is. What an
    episode outside the group sampled counts as long as the way's other calls."""
    present = [
        (way, own * len(way) / sum(number >= 0 for _, number in way))
        for way in ways
        if (own := sum(tokens.get(call, 0) for call in way))
    ]
    counts = [count for _, count in present]
    by_call: dict[Sampled, float] = {}
    for way, count in present:
        for call in way:
            one = weight(algorithm, count, sum(counts), len(present))
            by_call[call] = by_call.get(call, 0.0) + one
    return by_call


def applied(advantages: Mapping[str, float], agent: str, target: str) -> float:
    """The advantage of an agent's tokens: its own, else its target's, else the episode's."""
    return next(advantages[name] for name in (agent, target, "") if name in advantages)
