"""Rewards to advantages: of an episode, of single agents and targets in it, and of its calls. docs/credit.md explains it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from ajet.interfaces.algorithm import Algorithm
from ajet.learning.fork_tree import ForkTree, Leaf
from ajet.learning.settings import CreditKind
from ajet.rollout.summary import rewarded_as
from ajet.types import AjetError, Float64

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")
PRIOR = 4
"""The mean of a few leaves says little about the node above them. So a segment is compared with the mean that its start would have with
this many more leaves of advantage 0: with that of the group, or of the batch if the algorithm compares over it."""
EPISODE = ""
"""The name for everything without a reward of its own."""


class Rewarded(Protocol):
    """A judged episode."""

    @property
    def reward(self) -> float: ...

    @property
    def rewards(self) -> Mapping[str, float]:
        """Rewards of single agents and targets, by name; `reward` applies to all others."""
        ...


class JudgedEpisode(Rewarded, Leaf, Protocol):
    """A judged episode whose calls get credit."""

    @property
    def call_rewards(self) -> Mapping[int, float]:
        """Rewards of single calls, by number."""
        ...


Member = TypeVar("Member", bound=Rewarded)
Called = TypeVar("Called", bound=JudgedEpisode)


def advantages(
    algorithm: Algorithm,
    groups: Mapping[Key, Sequence[Member]],
    trained: Callable[[Member], bool] = lambda episode: True,
    worth: Callable[[Member, float], float] = lambda episode, reward: reward,
) -> dict[Key, list[dict[str, float]]]:
    """The advantages of each episode of each group: one for `EPISODE`, and one for each name that has a reward
    of its own in the group.

    A name's rewards are compared with its own in the other episodes of the group, or with the episode's reward
    if it has none there. `advantage_of` says which tokens get them. Episodes that are not ``trained`` count in
    their group, but not in the normalization over the batch: `Algorithm.weights` does not see them either.
    ``worth`` may replace rewards by other numbers.
    """
    by_group: dict[Key, list[dict[str, float]]] = {key: [{} for _ in group] for key, group in groups.items()}
    for name in sorted({EPISODE}.union(*(e.rewards for group in groups.values() for e in group))):
        among = {
            key: np.array([worth(e, e.rewards.get(name, e.reward)) for e in group])
            for key, group in groups.items()
            if name == EPISODE or any(name in e.rewards for e in group)
        }
        counted = [trained(episode) for key in among for episode in groups[key]]
        for key, values in batch_advantages(algorithm, among, counted).items():
            for advantage, episode in zip(values, by_group[key], strict=True):
                episode[name] = float(advantage)
    return by_group


def call_advantages(
    algorithm: Algorithm,
    groups: Mapping[Key, Sequence[Called]],
    trained: Callable[[Called], bool] = lambda episode: True,
    *,
    credit: CreditKind = "episode",
    discount: float = 1.0,
) -> dict[Key, list[dict[str, list[float]]]]:
    """The advantages of each call of each episode of each group, by name as in `advantages`: one for each of
    `Leaf.calls`, in this order.

    An episode has an advantage at each of its places: that of its return there (`returns`) among those of its group at the same
    place. A call's advantage is the mean over the leaves below it (`ForkTree`), with ``tree`` less the mean over the leaves
    below the last fork before it, which is drawn to the group's (0) as by `PRIOR` more leaves. Raises AjetError if the algorithm
    cannot learn from returns of calls.
    """
    by_call = discount != 1 or any(e.call_rewards for group in groups.values() for e in group)
    if by_call and not algorithm.relative:
        raise AjetError(
            f"call_rewards: the algorithm {algorithm.name!r} cannot learn from rewards of calls. Remove them and "
            "train.call_discount, or name another algorithm, such as grpo."
        )
    at_places = [advantages(algorithm, groups, trained)]
    if by_call:
        worth = {id(e): returns(e, discount) for group in groups.values() for e in group}

        def at_place(i: int) -> dict[Key, list[dict[str, float]]]:
            long = {key: group for key, group in groups.items() if any(i < len(e.calls) for e in group)}
            return advantages(algorithm, long, trained, lambda e, reward: worth[id(e)](i, reward))

        at_places = [at_place(i) for i in range(max(len(e.calls) for g in groups.values() for e in g))]
    by_group: dict[Key, list[dict[str, list[float]]]] = {}
    for key, group in groups.items():
        tree = ForkTree(group)
        by_group[key] = [{name: [] for name in leaf} for leaf in at_places[0][key]]
        for number, episode in enumerate(group):
            for i in range(len(episode.calls)):
                leaves = at_places[i if by_call else 0][key]
                after = tree.below(number, i)
                before = tree.before(number, i) if credit == "tree" else ()
                for name, values in by_group[key][number].items():
                    values.append(_mean(leaves, name, after) - _mean(leaves, name, before, PRIOR))
    return by_group


def returns(episode: JudgedEpisode, discount: float) -> Callable[[int, float], float]:
    """The return at each call of an episode, as a function of the call's place and the episode's reward, which is added to the
    last call's: G_i = r_i + discount · G_{i+1}. After the last call it is the reward alone. Rewards of calls that no engine answered
    count with those of the engine's call before them. Parallel calls may have been made in another order than a fork's parent made
    them, and count in the parent's."""
    totals: dict[int, tuple[float, float]] = {}
    rewards, share, since = 0.0, 1.0, 0.0
    when = dict(zip(episode.calls, sorted(episode.calls), strict=True))
    numbers = {*episode.calls, *episode.call_rewards}
    for number in sorted(numbers, key=lambda n: when.get(n, n), reverse=True):
        since += episode.call_rewards.get(number, 0.0)
        if number in when:
            factor = discount if totals else 1.0
            rewards, share, since = since + factor * rewards, factor * share, 0.0
            totals[number] = rewards, share

    def at(place: int, reward: float) -> float:
        rewards, share = totals[episode.calls[place]] if place < len(episode.calls) else (0.0, 1.0)
        return rewards + share * reward

    return at


def advantage_of(advantages: Mapping[str, T], agent: str, target: str) -> T:
    """The advantage of an agent's tokens, see `rewarded_as`."""
    return advantages[rewarded_as(advantages, agent, target)]


def unmatched_names(rewards: Iterable[Mapping[str, object]], known: Iterable[tuple[str, str]]) -> set[str]:
    """Names with a reward of their own that are none of the ``known`` agents and targets, perhaps because of a misspelling."""
    return {name for each in rewards for name in each} - {name for pair in known for name in pair} - {EPISODE}


def _mean(leaves: Sequence[Mapping[str, float]], name: str, places: Sequence[int], zeros: int = 0) -> float:
    """Of the leaves at these places and so many zeros; 0 if there are none."""
    return math.fsum(leaves[place][name] for place in places) / max(len(places) + zeros, 1)


def batch_advantages(
    algorithm: Algorithm, rewards: Mapping[Key, Float64], counted: Sequence[bool] | None = None
) -> dict[Key, Float64]:
    """Rewards of each group of a batch -> advantages of each, normalized over all ``counted`` episodes of the groups
    (default: all); the others keep the advantage from their group."""
    if not rewards:
        return {}
    normalized = [algorithm.advantages(group) for group in rewards.values()]
    whole = np.concatenate(normalized)
    among = np.ones(len(whole), bool) if counted is None else np.array(counted, bool)
    if among.any():
        whole[among] = algorithm.normalize(whole[among])
    return dict(
        zip(rewards, np.split(whole, np.cumsum([len(group) for group in normalized])[:-1]), strict=True)
    )
