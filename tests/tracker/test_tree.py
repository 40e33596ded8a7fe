"""The token tree and the forest that trainers get: what is shared, what forks, and where each token is."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from ajet.tracker.call import Call
from ajet.tracker.forest import TokenForest, forest
from ajet.tracker.record import as_ids
from ajet.tracker.tree import Node, TokenTree, common_length
from ajet.types import Generation


def add(tree: TokenTree, *ids: int) -> Node:
    """The node of a sequence, from the root."""
    return tree.extend(tree.root, as_ids(ids))


def call(tree: TokenTree, number: int, prompt: Sequence[int], completion: Sequence[int]) -> Call:
    before = add(tree, *prompt)
    ids = as_ids(completion)
    answer = Generation(ids, -ids.astype(np.float32), np.zeros(len(ids), np.int32), "stop")
    return Call(number, "agent", "policy", "k", before, tree.extend(before, ids), answer, 1.0, True)


def spans(found: TokenForest) -> list[list[int]]:
    return [span.tolist() for span in found.spans]


# --------------------------------------------------------------------------- the tree


def test_a_conversation_that_only_grows_is_one_branch() -> None:
    tree = TokenTree()
    node = tree.root
    for turn in range(1000):
        node = tree.extend(node, as_ids([turn, turn + 1]))
    assert len(tree.branches) == 1 and tree.unique_tokens() == 2000
    assert node.ids().tolist() == [t for turn in range(1000) for t in (turn, turn + 1)]


def test_a_sequence_that_leaves_another_shares_what_came_before() -> None:
    tree = TokenTree()
    first, second = add(tree, 1, 2, 3, 4), add(tree, 1, 2, 5)
    assert first.ids().tolist() == [1, 2, 3, 4] and second.ids().tolist() == [1, 2, 5]
    assert tree.unique_tokens() == 5


def test_several_sequences_may_leave_at_one_place() -> None:
    tree = TokenTree()
    nodes = [add(tree, 1, 2, token, 9) for token in (3, 4, 5, 4)]
    assert [n.ids()[2] for n in nodes] == [3, 4, 5, 4]
    assert nodes[1] == nodes[3] and tree.unique_tokens() == 2 + 3 * 2
    assert tree.branches[0].forks == [2]


def test_a_branch_forks_between_older_forks() -> None:
    tree = TokenTree()
    sequences = [[1] * 8, [1, 2], [1] * 7 + [2], [1] * 4 + [2], [1] * 4 + [3], [1] * 5 + [2, 2], [3]]
    nodes = [add(tree, *ids) for ids in sequences]
    assert [n.ids().tolist() for n in nodes] == sequences
    assert nodes == [add(tree, *ids) for ids in sequences]
    assert tree.unique_tokens() == 8 + 1 + 1 + 1 + 1 + 2 + 1


def test_equal_sequences_have_equal_nodes_in_whatever_order_they_came() -> None:
    sequences = [(1, 2, 3), (1, 2), (1, 2, 4, 5), (6,), ()]
    for order in itertools.permutations(sequences):
        tree = TokenTree()
        nodes = {ids: add(tree, *ids) for ids in order}
        assert nodes == {ids: add(tree, *ids) for ids in order}
        assert len(set(nodes.values())) == len(sequences)
        assert add(tree, 1, 2, 4) == tree.extend(nodes[1, 2], as_ids([4]))
        assert tree.unique_tokens() == 6


def test_a_node_means_the_same_sequence_for_ever() -> None:
    tree = TokenTree()
    node = add(tree, 1, 2)
    add(tree, 1, 2, 3)
    add(tree, 1, 5)
    add(tree, 7)
    assert node.ids().tolist() == [1, 2] and node == add(tree, 1, 2)


def test_ids_from_a_place_on() -> None:
    tree = TokenTree()
    add(tree, 1, 2, 3, 4)
    add(tree, 1, 2, 5, 6, 7)
    node = add(tree, 1, 2, 5, 6, 8)
    assert [node.ids(start).tolist() for start in range(6)] == [[1, 2, 5, 6, 8][n:] for n in range(6)]
    assert node.ids().dtype == np.int32


def test_what_ids_returns_is_no_part_of_the_tree() -> None:
    tree = TokenTree()
    node = add(tree, 1, 2)
    node.ids()[0] = 9
    node = tree.extend(node, as_ids([3]))
    assert node.ids().tolist() == [1, 2, 3]


def test_starts_with_is_about_sequences_not_branches() -> None:
    tree = TokenTree()
    long, fork, deep = add(tree, 1, 2, 3, 4), add(tree, 1, 2, 5, 6), add(tree, 1, 2, 5, 7)
    assert long.starts_with(add(tree, 1, 2)) and fork.starts_with(add(tree, 1, 2))
    assert deep.starts_with(add(tree, 1, 2, 5)) and deep.starts_with(deep)
    assert deep.starts_with(tree.root)
    assert not fork.starts_with(add(tree, 1, 2, 3)) and not fork.starts_with(deep)
    assert not add(tree, 1, 2).starts_with(fork)
    assert not fork.starts_with(add(TokenTree(), 1, 2))


def test_no_tokens_are_no_step() -> None:
    tree = TokenTree()
    node = add(tree, 1, 2)
    assert tree.extend(node, as_ids([])) == node
    assert add(tree) == tree.root and tree.root.ids().tolist() == []


def test_tokens_may_lie_anywhere_in_memory_and_stay_the_callers() -> None:
    tree = TokenTree()
    ids = np.arange(10, dtype=np.int32)
    node = tree.extend(tree.root, ids[::2])
    assert node.ids().tolist() == [0, 2, 4, 6, 8]
    assert tree.extend(tree.root, np.array([0, 2], np.int64)) == add(tree, 0, 2)  # type: ignore[arg-type]
    ids[:] = 0
    assert node.ids().tolist() == [0, 2, 4, 6, 8]


@pytest.mark.whole
def test_memory_is_linear_in_unique_tokens() -> None:
    def size(turns: int) -> tuple[int, int]:
        tree = TokenTree()
        history = as_ids(range(20))
        for turn in range(turns):  # each turn, an attempt that is dropped and one that stays
            tree.extend(tree.root, np.append(history, as_ids([1000 + turn] * 10)))
            history = np.append(history, as_ids([5000 + turn] * 10))
            tree.extend(tree.root, history)
        return tree.unique_tokens(), sum(sys.getsizeof(b.data) for b in tree.branches)

    (tokens, held), (more, holds) = size(100), size(400)
    assert (tokens, more) == (20 + 100 * 20, 20 + 400 * 20)
    assert holds < 4.5 * held


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [([1, 2, 3], [1, 2, 4], 2), ([1], [1, 2], 1), ([], [1], 0), ([2], [1], 0), ([1, 256], [1, 1], 1)],
)
def test_common_length(a: list[int], b: list[int], common: int) -> None:
    assert common_length(as_ids(a), as_ids(b)) == common_length(as_ids(b), as_ids(a)) == common


# --------------------------------------------------------------------------- the forest


def test_a_forest_holds_each_token_once_with_the_one_before() -> None:
    tree = TokenTree()
    calls = [call(tree, 0, [1, 2], [3]), call(tree, 1, [1, 2, 3, 4], [5]), call(tree, 2, [1, 2], [6, 7])]
    found = forest(calls)
    assert found.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found.parents.tolist() == [-1, 0, 1, 2, 3, 1, 5]
    assert spans(found) == [[2], [4], [5, 6]]
    assert found.calls == tuple(calls)
    assert {a.dtype for a in (found.token_ids, found.parents, *found.spans)} == {np.dtype(np.int32)}


def test_sampled_tokens_may_lie_on_several_branches() -> None:
    tree = TokenTree()
    calls = [call(tree, 0, [1], [2, 3, 4]), call(tree, 1, [1], [2, 3, 5]), call(tree, 2, [1], [2, 6])]
    found = forest(calls)
    assert found.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.parents.tolist() == [-1, 0, 1, 2, 2, 1]
    assert spans(found) == [[1, 2, 3], [1, 2, 4], [1, 5]]


def test_calls_that_sampled_the_same_share_their_tokens() -> None:
    tree = TokenTree()
    found = forest([call(tree, 0, [1], [2]), call(tree, 1, [1], [2])])
    assert len(found.token_ids) == 2 and spans(found) == [[1], [1]]


def test_a_forest_may_have_several_roots() -> None:
    tree = TokenTree()
    found = forest([call(tree, 0, [1], [2]), call(tree, 1, [3], [4])])
    assert found.token_ids.tolist() == [1, 2, 3, 4] and found.parents.tolist() == [-1, 0, -1, 2]


def test_what_no_sampled_token_needs_costs_nothing() -> None:
    tree = TokenTree()
    add(tree, 1, 2, 8, 8, 8)  # a call that was cancelled
    calls = [call(tree, 0, [1, 2], [3]), call(tree, 1, [1, 2, 3, 9, 9], [])]
    found = forest(calls)
    assert found.token_ids.tolist() == [1, 2, 3] and found.parents.tolist() == [-1, 0, 1]
    assert spans(found) == [[2], []]


def test_a_forest_of_no_calls_is_empty() -> None:
    found = forest([])
    assert len(found.token_ids) == len(found.parents) == len(found.spans) == 0
