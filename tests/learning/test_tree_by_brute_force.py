"""Credit over random trees of forks, computed a second time from the definitions: leaves, prefixes of paths, and means of rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.interfaces.algorithm import Algorithm
from ajet.learning.algorithms import DAPO, GRPO, RLOO, DrGRPO
from ajet.learning.batch import Learnable, Learning, batch_of
from ajet.learning.credit import EPISODE, call_advantages
from ajet.rollout.episode import Fork
from ajet.tracker.timelines import Timeline
from ajet.types import Span
from tests.properties import examples

ALGORITHMS = (GRPO(), DrGRPO(), RLOO(), DAPO())


@dataclass(frozen=True)
class Leaf:
    """An episode. Its ``path`` names its calls by who sampled them and where: forks share those that they replay."""

    id: str
    fork: Fork | None
    calls: tuple[int, ...]
    path: tuple[tuple[str, int], ...]
    reward: float
    call_rewards: Mapping[int, float]
    rewards: Mapping[str, float]

    @property
    def own(self) -> range:
        """The places of the calls that it sampled."""
        return range(self.fork.calls if self.fork else 0, len(self.calls))


REWARD = st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0, 3.0])


@st.composite
def groups(draw: st.DrawFn, with_call_rewards: bool = False) -> list[Leaf]:
    """A group of at least two episodes, in the order in which they ran: a fork after its parent."""
    leaves: list[Leaf] = []
    for number in range(draw(st.integers(2, 7))):
        parents = [leaf for leaf in leaves if len(leaf.calls) > 1]
        fork, path, id = None, (), f"e{number}"
        if parents and draw(st.booleans()):
            parent = draw(st.sampled_from(parents))
            fork = Fork(parent.id, draw(st.integers(1, len(parent.calls) - 1)))
            path = parent.path[: fork.calls]
        length = len(path) + draw(st.integers(1, 4))
        # Calls that a chat model answered have numbers too, which are not here.
        calls = tuple(np.cumsum(draw(st.lists(st.integers(1, 3), min_size=length, max_size=length))).tolist())
        path = (*path, *((id, place) for place in range(len(path), length)))
        given_to = draw(st.sets(st.sampled_from(calls))) if with_call_rewards else ()
        leaves.append(
            Leaf(
                id,
                fork,
                calls,
                path,
                draw(REWARD),
                {call: draw(REWARD) for call in sorted(given_to)},
                {"critic": draw(REWARD)} if draw(st.booleans()) else {},
            )
        )
    return draw(st.permutations(leaves))


def below(group: Sequence[Leaf], prefix: Sequence[Any]) -> list[int]:
    """The leaves whose paths begin so."""
    return [n for n, leaf in enumerate(group) if leaf.path[: len(prefix)] == tuple(prefix)]


def segment(group: Sequence[Leaf], leaf: Leaf, place: int) -> tuple[int, int]:
    """The lengths of the path where a call's segment begins and ends: at the nodes, the root and the leaf."""
    nodes = [
        k
        for k in range(1, len(leaf.path))
        if len(below(group, leaf.path[:k])) > len(below(group, leaf.path[: k + 1]))
    ]
    ends = [0, *nodes, len(leaf.path)]
    return max(k for k in ends if k <= place), min(k for k in ends if k > place)


def worth(leaf: Leaf, place: int, reward: float, discount: float) -> float:
    """The return of an episode at a place, by its definition; after its last call its reward."""
    if place >= len(leaf.calls):
        return reward
    last = len(leaf.calls) - 1
    total = sum(
        discount ** (i - place) * leaf.call_rewards.get(leaf.calls[i], 0.0) for i in range(place, last + 1)
    )
    return total + discount ** (last - place) * reward


def scaled(algorithm: Algorithm, values: Sequence[float]) -> list[float]:
    return algorithm.advantages(np.array(values)).tolist()  # type: ignore[no-any-return]


def by_definition(
    group: Sequence[Leaf], algorithm: Algorithm, credit: str, discount: float, name: str
) -> list[list[float]]:
    """The advantages of all calls of a group for one name of an agent."""
    found = []
    for leaf in group:
        own = []
        for place in range(len(leaf.calls)):
            values = [worth(e, place, e.rewards.get(name, e.reward), discount) for e in group]
            of_leaves = scaled(algorithm, values)
            start, end = segment(group, leaf, place)

            whole = math.fsum(of_leaves) / len(of_leaves)
            after = [of_leaves[n] for n in below(group, leaf.path[:end])]
            before = [of_leaves[n] for n in below(group, leaf.path[: start if credit == "tree" else 0])]
            own.append(math.fsum(after) / len(after) - math.fsum([*before, *[whole] * 4]) / (len(before) + 4))
        found.append(own)
    return found


def compare(
    group: list[Leaf], algorithm: Algorithm, credit: Literal["tree", "episode"], discount: float
) -> None:
    found = call_advantages(algorithm, {"g": group}, credit=credit, discount=discount)["g"]
    names = {EPISODE} | {name for leaf in group for name in leaf.rewards}
    assert all(set(leaf) == names for leaf in found)
    for name in names:
        wanted = by_definition(group, algorithm, credit, discount, name)
        for leaf, values in zip(found, wanted, strict=True):
            assert leaf[name] == pytest.approx(values, abs=1e-9)


@examples(300)
@given(groups(), st.sampled_from(ALGORITHMS), st.sampled_from(["tree", "episode"]))
def test_a_calls_advantage_is_the_difference_of_the_values_around_its_segment(
    group: list[Leaf], algorithm: Algorithm, credit: Any
) -> None:
    compare(group, algorithm, credit, 1.0)


@examples(300)
@given(
    groups(with_call_rewards=True),
    st.sampled_from(ALGORITHMS),
    st.sampled_from(["tree", "episode"]),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_with_rewards_of_calls_it_is_that_of_the_returns_at_its_place(
    group: list[Leaf], algorithm: Algorithm, credit: Any, discount: float
) -> None:
    compare(group, algorithm, credit, discount)


# ------------------------------------------------------------------ the batch


def timeline(leaf: Leaf, place: int, tokens: int) -> Timeline:
    mask = np.array([False, *[True] * tokens])
    logprobs = np.where(mask, -1.0, np.nan).astype(np.float32)
    span = Span(1, 1 + tokens, leaf.calls[place], "a", "policy")
    return Timeline(
        np.arange(1 + tokens, dtype=np.int32), mask, logprobs, np.where(mask, 0, -1).astype(np.int32), (span,)
    )


@examples(300)
@given(st.lists(groups(), min_size=1, max_size=3), st.sampled_from(ALGORITHMS), st.data())
def test_a_batch_has_each_sampled_call_once_and_weighs_it_as_often_as_leaves_lead_over_it(
    several: list[list[Leaf]], algorithm: Algorithm, data: st.DataObject
) -> None:
    tokens: dict[tuple[int, str, int], int] = {}
    episodes = []
    for number, group in enumerate(several):
        for member, leaf in enumerate(group):
            for place in leaf.own:  # 0: a filter has dropped the call
                tokens[number, leaf.id, place] = data.draw(st.integers(0, 3))
            lines = [timeline(leaf, p, count) for p in leaf.own if (count := tokens[number, leaf.id, p])]
            episodes.append(
                Learnable(
                    id=leaf.id if len(several) == 1 else f"{number}/{leaf.id}",
                    group=number,
                    member=member,
                    reward=leaf.reward,
                    rewards={},
                    calls=leaf.calls,
                    lines=lines,
                    sampled_tokens=sum(int(line.mask.sum()) for line in lines),
                    call_tokens=10,
                    fork=leaf.fork
                    and Fork(
                        leaf.fork.parent if len(several) == 1 else f"{number}/{leaf.fork.parent}",
                        leaf.fork.calls,
                    ),
                )
            )
    built = batch_of(
        episodes, Learning(algorithm, credit="tree"), mini_batches=1, learning_rate=1.0, seed="s"
    )
    if not any(tokens.values()):
        assert built is None
        return
    assert built is not None
    # Each leaf as an episode that trains all calls on its path.
    paths = [(n, [(n, *call) for call in leaf.path]) for n, group in enumerate(several) for leaf in group]
    lengths = [sum(tokens[call] for call in path) for _, path in paths]
    present = [i for i, length in enumerate(lengths) if length]
    of_leaves = algorithm.weights(np.array([lengths[i] for i in present], np.float64))
    wanted: dict[tuple[int, str, int], float] = {}
    for i, weight in zip(present, of_leaves, strict=True):
        for call in paths[i][1]:
            wanted[call] = wanted.get(call, 0.0) + float(weight)
    seen = []
    for sample in built.batch.samples:
        number, id = (
            (0, sample.episode) if len(several) == 1 else (int(sample.episode[0]), sample.episode[2:])
        )
        leaf = next(leaf for leaf in several[number] if leaf.id == id)
        (span,) = sample.spans
        call = (number, id, leaf.calls.index(span.call))
        seen.append(call)
        assert sample.weights[sample.mask] == pytest.approx(wanted[call], rel=1e-5)
    assert sorted(seen) == sorted(call for call, count in tokens.items() if count)
