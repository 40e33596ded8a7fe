"""What steered groups estimate, against the exact values of a small Markov chain in which the policy decides when to stop."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ajet.learning.algorithms import RLOO
from ajet.learning.credit import call_advantages
from ajet.rollout.episode import Fork

GO = {"first": 0.3, "left": 0.6, "right": 0.8, "late": 0.5}
"""The probability with which the policy goes on, by state; else it stops."""
NEXT: Mapping[str, Sequence[tuple[float, str]]] = {
    "first": [(0.25, "left"), (0.75, "right")],
    "left": [(1.0, "late")],
    "right": [(1.0, "late")],
}
"""Where the world goes on, by chance. From "late" on there is nothing."""
STOPPED = {"first": 0.1, "left": 0.0, "right": 0.4, "late": 0.7}
THROUGH = 1.0
"""The reward for going on from "late"."""
PRICE = -0.15
"""A reward of each call that goes on."""

Way = tuple[tuple[str, bool], ...]
"""States, and whether the policy went on there."""


def ways(state: str) -> Iterator[tuple[float, Way, float]]:
    """All ways from a state: probability, decisions, reward at the end."""
    yield 1 - GO[state], ((state, False),), STOPPED[state]
    if state not in NEXT:
        yield GO[state], ((state, True),), THROUGH
    for chance, then in NEXT.get(state, ()):
        for p, way, reward in ways(then):
            yield GO[state] * chance * p, ((state, True), *way), reward


def value(state: str) -> float:
    """The expected return from a state, by dynamic programming."""
    on = sum(p * value(then) for p, then in NEXT[state]) if state in NEXT else THROUGH
    return GO[state] * (PRICE + on) + (1 - GO[state]) * STOPPED[state]


def gradient(start: str, at: str) -> float:
    """The derivative of a start's value by the logit of going on in a state: visits · p (1 - p) · (Q of going on - Q of stopping)."""
    on = sum(p * value(then) for p, then in NEXT[at]) if at in NEXT else THROUGH
    return visits(start, at) * GO[at] * (1 - GO[at]) * (PRICE + on - STOPPED[at])


def visits(start: str, at: str) -> float:
    if start == at:
        return 1.0
    return GO[start] * sum(p * visits(then, at) for p, then in NEXT.get(start, ()))


@dataclass(frozen=True)
class Walked:
    """An episode of the chain, after the calls that it replays. A `ajet.learning.credit.JudgedEpisode`."""

    id: str
    way: Way
    reward: float
    replayed: int
    rewards: Mapping[str, float] = field(default_factory=dict)

    @property
    def fork(self) -> Fork | None:
        return Fork("0.0/t/0", self.replayed, steered=True) if self.replayed else None

    @property
    def calls(self) -> Sequence[int]:
        return range(self.replayed + len(self.way))

    @property
    def call_rewards(self) -> Mapping[int, float]:
        own = {self.replayed + i: PRICE for i, (_, on) in enumerate(self.way) if on}
        return {**dict.fromkeys(range(self.replayed), PRICE), **own}


def groups(start: str, replayed: int, size: int) -> Iterator[tuple[float, list[Walked]]]:
    """All groups that the policy can sample from a start, with their probabilities."""
    for members in itertools.product(list(ways(start)), repeat=size):
        p = 1.0
        for chance, _, _ in members:
            p *= chance
        yield p, [Walked(f"1.0/t/{i}", way, reward, replayed) for i, (_, way, reward) in enumerate(members)]


def score(state: str, on: bool) -> float:
    """The derivative of a decision's log-probability by the state's logit."""
    return float(on) - GO[state]


def estimate(start: str, replayed: int, size: int, credit: str) -> dict[str, float]:
    """The expected gradient of a group, by state: over everything that it can sample."""
    total = dict.fromkeys(GO, 0.0)
    for p, group in groups(start, replayed, size):
        (of_group,) = call_advantages(RLOO(), {0: group}, credit=credit).values()  # type: ignore[arg-type]
        for episode, advantages in zip(group, of_group, strict=True):
            for (state, on), advantage in zip(episode.way, advantages[""][replayed:], strict=True):
                total[state] += p * advantage * score(state, on) / size
    return total


@pytest.mark.parametrize("credit", ["episode", "tree"])
@pytest.mark.parametrize(("start", "replayed"), [("first", 0), ("left", 1), ("right", 1), ("late", 2)])
def test_a_group_estimates_the_gradient_of_the_value_of_its_start_exactly(
    start: str, replayed: int, credit: str
) -> None:
    for size in (2,) if credit == "tree" else (2, 3):
        found = estimate(start, replayed, size, credit)
        assert found == pytest.approx({state: gradient(start, state) for state in GO}, abs=1e-12)


def test_the_gradient_of_the_chain_is_that_of_its_value() -> None:
    for at in GO:
        p, step = GO[at], 1e-6
        values = []
        for sign in (1, -1):
            GO[at] = p + sign * step * p * (1 - p)  # a logit that is moved by a step
            values.append(value("first"))
        GO[at] = p
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(gradient("first", at), rel=1e-6)


def test_comparing_only_with_those_that_still_run_would_be_biased() -> None:
    """A mean over the episodes that have a call at this place, one's own among them, as of turn-wise baselines: how many there are
    depends on when the policy stops, so places weigh unlike each other, and the last one left learns nothing."""
    total = dict.fromkeys(GO, 0.0)
    for p, group in groups("first", 0, 3):
        for episode in group:
            for place, (state, on) in enumerate(episode.way):
                running = [e for e in group if place < len(e.way)]
                returns = {e.id: sum(PRICE for _, on in e.way[place:] if on) + e.reward for e in running}
                advantage = returns[episode.id] - sum(returns.values()) / len(running)
                total[state] += p * advantage * score(state, on) / 3
    factors = [total[state] / gradient("first", state) for state in ("first", "left", "right")]
    assert factors[0] == pytest.approx(2 / 3, abs=1e-12), "all are there at the first place"
    assert factors[1] < 0.5 * factors[0] and factors[2] < 0.5 * factors[0]
