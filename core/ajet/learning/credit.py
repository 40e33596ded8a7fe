"""Rewards to advantages, for an episode as a whole or for single agents and targets in it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from ajet.interfaces.algorithm import Algorithm
from ajet.types import Float64

Key = TypeVar("Key", bound=Hashable)
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


Member = TypeVar("Member", bound=Rewarded)


def advantages(
    algorithm: Algorithm,
    groups: Mapping[Key, Sequence[Member]],
    trained: Callable[[Member], bool] = lambda episode: True,
) -> dict[Key, list[dict[str, float]]]:
    """The advantages of each episode of each group: one for `EPISODE`, and one for each name that has a reward
    of its own in the group.

    A name's rewards are compared with its own in the other episodes of the group, or with the episode's reward
    if it has none there. `advantage_of` says which tokens get them. Episodes that are not ``trained`` count in
    their group, but not in the normalization over the batch: `Algorithm.weights` does not see them either.
    """
    found: dict[Key, list[dict[str, float]]] = {key: [{} for _ in group] for key, group in groups.items()}
    for name in sorted({EPISODE}.union(*(e.rewards for group in groups.values() for e in group))):
        among = {
            key: np.array([e.rewards.get(name, e.reward) for e in group])
            for key, group in groups.items()
            if name == EPISODE or any(name in e.rewards for e in group)
        }
        counted = [trained(episode) for key in among for episode in groups[key]]
        for key, values in batch_advantages(algorithm, among, counted).items():
            for advantage, episode in zip(values, found[key], strict=True):
                episode[name] = float(advantage)
    return found


def advantage_of(found: Mapping[str, float], agent: str, target: str) -> float:
    """The advantage of an agent's tokens: its own, else its target's, else the episode's."""
    return next(found[name] for name in (agent, target, EPISODE) if name in found)


def batch_advantages(
    algorithm: Algorithm, rewards: Mapping[Key, Float64], counted: Sequence[bool] | None = None
) -> dict[Key, Float64]:
    """Rewards of each group of a batch -> advantages of each, normalized over all ``counted`` episodes of the groups
    (default: all); the others keep the advantage from their group."""
    if not rewards:
        return {}
    found = [algorithm.advantages(group) for group in rewards.values()]
    whole = np.concatenate(found)
    among = np.ones(len(whole), bool) if counted is None else np.array(counted, bool)
    if among.any():
        whole[among] = algorithm.normalize(whole[among])
    return dict(zip(rewards, np.split(whole, np.cumsum([len(group) for group in found])[:-1]), strict=True))
