"""The tree of a group with forks: each episode is a leaf, and calls that forks replay are shared. docs/credit.md has a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from ajet.rollout.episode import Fork


class Leaf(Protocol):
    """An episode as a leaf."""

    @property
    def id(self) -> str: ...

    @property
    def fork(self) -> Fork | None:
        """Where it leaves its parent; None for an independent episode."""
        ...

    @property
    def calls(self) -> Sequence[int]:
        """The numbers of its calls that an engine answered, in the order of `EpisodeRecord.path`."""
        ...


OwnCall = tuple[str, int]
"""A call by the id of the episode that sampled it, and its number there."""


class ForkTree:
    """Which episodes of a group have which calls on their paths. Episodes, and calls on a path, are named by their places."""

    def __init__(self, group: Sequence[Leaf]) -> None:
        by_id = {episode.id: episode for episode in group}
        self._paths = [[_sampled(e, place, by_id) for place in range(len(e.calls))] for e in group]
        self._below: dict[OwnCall, list[int]] = {}
        for leaf, path in enumerate(self._paths):
            for call in path:
                self._below.setdefault(call, []).append(leaf)
        self._nodes = [self._last_nodes(path) for path in self._paths]

    def path(self, episode: int) -> Sequence[OwnCall]:
        """The calls that lead to the end of an episode."""
        return self._paths[episode]

    def below(self, episode: int, place: int) -> Sequence[int]:
        """The leaves below a call: the episodes with it on their paths."""
        return self._below[self._paths[episode][place]]

    def before(self, episode: int, place: int) -> Sequence[int]:
        """The leaves below the last node before a call, where forks leave its path; none if that is the root."""
        node = self._nodes[episode][place]
        return self._below[node] if node else ()

    def _last_nodes(self, path: Sequence[OwnCall]) -> list[OwnCall | None]:
        """For each call of a path, the last one before it after which other leaves take another way."""
        nodes: list[OwnCall | None] = [None] * min(len(path), 1)
        for last, call in pairwise(path):
            nodes.append(last if len(self._below[last]) > len(self._below[call]) else nodes[-1])
        return nodes


def _sampled(episode: Leaf, place: int, by_id: Mapping[str, Leaf]) -> OwnCall:
    """A call on the path of an episode: its own, or that of an ancestor. One that was left out of the group has no numbers, and
    the place stands for them."""
    while episode.fork and place < episode.fork.calls:
        if episode.fork.parent not in by_id:
            return episode.fork.parent, -1 - place
        episode = by_id[episode.fork.parent]
    return episode.id, episode.calls[place]
