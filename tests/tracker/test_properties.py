"""Whatever calls an episode makes: each sampled token is trained once, after what its engine saw, in the
fewest rows and the smallest tree, in whatever order the calls finish.

Episodes are drawn as the histories of a few agents in a tiny vocabulary, so that unrelated calls often
share tokens. The judge (`checker.py`) knows the raw calls only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ajet.tracker.call import Call
from ajet.tracker.forest import forest
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.tracker.timelines import Timeline, timelines
from ajet.tracker.tree import TokenTree
from ajet.types import Generation
from tests.properties import examples
from tests.tracker.checker import (
    RawCall,
    Verdict,
    distinct_prefixes,
    fewest_rows,
    judge_forest,
    judge_timelines,
)

CLEAN = Verdict(lost=0, doubled=0, out_of_context=0)
TARGETS = ("policy", "critic")


@dataclass(frozen=True)
class Asked:
    """A call that reached an engine: what it gave, sampled and with which weights."""

    number: int
    agent: int
    target: str
    raw: RawCall
    cancelled: bool = False
    trained: bool = True


@dataclass
class Agents:
    """Makes calls as agents do. Every method is something that an agent or its framework may do next."""

    histories: list[list[int]] = field(default_factory=lambda: [[], []])
    asked: list[Asked] = field(default_factory=list)

    def ask(self, who: int, prompt: list[int], sampled: list[int], kind: int = 0) -> None:
        """A call; the kind tells its target, and whether it is cancelled or not trained."""
        number = len(self.asked)
        versions = np.sort(np.arange(len(sampled)) * (number + 1) % 3)  # weights change in the middle
        logprobs = -(number + 1 + np.arange(len(sampled)) / 64)
        raw = RawCall(as_ids(prompt), as_ids(sampled), logprobs.astype(np.float32), versions.astype(np.int32))
        self.asked.append(Asked(number, who, TARGETS[kind == 1], raw, kind == 2, kind != 3))

    def turn(self, who: int, place: int, new: list[int], sampled: list[int]) -> None:
        """The agent hears something, asks and keeps the answer."""
        self.histories[who] = self.histories[who] + new
        self.ask(who, self.histories[who], sampled, place)
        self.histories[who] = self.histories[who] + sampled

    def attempt(self, who: int, place: int, new: list[int], sampled: list[int]) -> None:
        """It asks, but keeps nothing of it: a retry, a sub-question, a failed call."""
        self.ask(who, self.histories[who] + new, sampled, place)

    def fork(self, who: int, place: int, new: list[int], sampled: list[int]) -> None:
        """A sub-agent begins where another agent stood some tokens ago."""
        whole = self.histories[who]
        self.histories.append(whole[: len(whole) - place] + new)

    def rewrite(self, who: int, place: int, new: list[int], sampled: list[int]) -> None:
        """The history comes back changed at a place: drift, a summary, other tokens of the same text."""
        whole = self.histories[who]
        self.histories[who] = whole[:place] + new + whole[place + len(sampled) :]

    def inside(self, who: int, place: int, new: list[int], sampled: list[int]) -> None:
        """A prompt that ends inside what an earlier call sampled, or goes on from there."""
        if self.asked:
            earlier = self.asked[place % len(self.asked)].raw
            self.ask(
                who, [*earlier.prompt_ids.tolist(), *earlier.completion_ids.tolist()[: len(new)]], sampled
            )

    def again(self, who: int, place: int, new: list[int], sampled: list[int]) -> None:
        """The same prompt with the same answer."""
        if self.asked:
            earlier = self.asked[place % len(self.asked)].raw
            self.ask(who, earlier.prompt_ids.tolist(), earlier.completion_ids.tolist())

    def choice(self, who: int, place: int, new: list[int], sampled: list[int]) -> None:
        """Another answer to the same prompt, which goes its own way after some tokens."""
        if self.asked:
            earlier = self.asked[place % len(self.asked)].raw
            self.ask(who, earlier.prompt_ids.tolist(), earlier.completion_ids.tolist()[: len(new)] + sampled)


MOVES = (
    Agents.turn,
    Agents.turn,
    Agents.attempt,
    Agents.fork,
    Agents.rewrite,
    Agents.inside,
    Agents.again,
    Agents.choice,
)


@st.composite
def episodes(draw: Any) -> list[Asked]:
    """The calls of an episode, in the order of their requests."""
    tokens = st.lists(st.integers(1, 3), max_size=4)
    step = st.tuples(st.integers(0, len(MOVES) - 1), st.integers(0, 4), st.integers(0, 6), tokens, tokens)
    agents = Agents()
    for move, who, place, new, sampled in draw(st.lists(step, min_size=1, max_size=12)):
        MOVES[move](agents, who % len(agents.histories), place, new, sampled)
    return agents.asked


def recorded(asked: Sequence[Asked], finishing: Sequence[Asked] | None = None) -> EpisodeRecord:
    """The record of calls that were asked, and that finished, in these orders."""
    record = EpisodeRecord()
    prompts = {}
    for one in asked:
        tree = record.tree(one.target)
        prompts[one.number] = tree.extend(tree.root, one.raw.prompt_ids)
    for one in asked if finishing is None else finishing:
        if not one.cancelled:
            raw, at = one.raw, prompts[one.number]
            answer = Generation(raw.completion_ids, raw.logprobs, raw.versions, "stop")
            end = record.tree(one.target).extend(at, raw.completion_ids)
            record.add(
                Call(
                    one.number, f"agent{one.agent}", one.target, one.target, at, end, answer, 1.0, one.trained
                )
            )
    return record


def trained(asked: Sequence[Asked]) -> dict[int, RawCall]:
    return {one.number: one.raw for one in asked if one.trained and not one.cancelled}


def by_target(asked: Sequence[Asked]) -> list[list[Asked]]:
    order = sorted(asked, key=lambda one: one.target)
    return [list(found) for _, found in groupby(order, key=lambda one: one.target)]


def shown(lines: Sequence[Timeline]) -> set[tuple[Any, ...]]:
    return {
        (x.token_ids.tobytes(), x.mask.tobytes(), x.logprobs.tobytes(), x.versions.tobytes(), x.spans)
        for x in lines
    }


@examples(1200)
@given(episodes())
def test_each_sampled_token_is_trained_once_after_what_its_engine_saw(asked: list[Asked]) -> None:
    lines = timelines(recorded(asked).trained_calls)
    assert judge_timelines(lines, trained(asked)) == CLEAN
    agents = {one.number: (f"agent{one.agent}", one.target) for one in asked}
    for line in lines:
        assert all((span.agent, span.target) == agents[span.call] for span in line.spans)
        assert len({span.target for span in line.spans}) == 1


@examples(800)
@given(episodes())
def test_rows_are_the_fewest_and_shortest(asked: list[Asked]) -> None:
    for calls in by_target(asked):
        lines = timelines(recorded(calls).trained_calls)
        tokens = sum(len(line.token_ids) for line in lines)
        assert (len(lines), tokens) == fewest_rows(list(trained(calls).values()))


@examples(600)
@given(episodes())
def test_a_tree_holds_every_prefix_that_is_needed_once(asked: list[Asked]) -> None:
    for calls in by_target(asked):
        raw = trained(calls)
        found = forest(recorded(calls).trained_calls)
        assert judge_forest(found, raw) == CLEAN
        needed = distinct_prefixes(call.whole for call in raw.values() if len(call.completion_ids))
        assert len(found.token_ids) == needed


@examples(600)
@given(episodes(), st.randoms(use_true_random=False))
def test_the_order_in_which_calls_come_and_finish_does_not_matter(asked: list[Asked], random: Random) -> None:
    in_order = recorded(asked)
    arriving, finishing = (random.sample(asked, len(asked)) for _ in range(2))
    other = recorded(arriving, finishing)
    calls = random.sample(other.trained_calls, len(other.trained_calls))
    assert shown(timelines(calls)) == shown(timelines(in_order.trained_calls))
    for key, tree in in_order.trees.items():
        sizes = [
            len(forest([c for c in record.trained_calls if c.key == key]).token_ids)
            for record in (in_order, other)
        ]
        assert sizes[0] == sizes[1]
        assert tree.unique_tokens() == other.tree(key).unique_tokens()


@examples(600)
@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(1, 2), max_size=6)), max_size=10))
def test_a_node_is_its_sequence(steps: list[tuple[int, list[int]]]) -> None:
    tree = TokenTree()
    nodes, sequences = [tree.root], [[]]  # type: ignore[var-annotated]
    for parent, tokens in steps:
        parent %= len(nodes)
        nodes.append(tree.extend(nodes[parent], as_ids(tokens)))
        sequences.append(sequences[parent] + tokens)
    for node, ids in zip(nodes, sequences, strict=True):
        assert node.ids().tolist() == ids and node.length == len(ids)
        assert node.ids(2).tolist() == ids[2:]
        for other, prefix in zip(nodes, sequences, strict=True):
            assert (node == other) == (ids == prefix)
            assert node.starts_with(other) == (ids[: len(prefix)] == prefix)
    assert tree.unique_tokens() == distinct_prefixes(map(as_ids, sequences))
