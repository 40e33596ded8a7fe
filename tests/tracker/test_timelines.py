"""Calls to timelines: what merges, what splits, and that every sampled token is trained once."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.tracker.record import Call, EpisodeClosed, EpisodeRecord, as_ids, canonical
from ajet.tracker.timelines import Timeline, timelines
from ajet.types import Generation

S, U, U2, X, Y, Z, EOS = [1, 2], [3, 4], [5], [10, 11], [12], [13], [9]


def record(*calls: tuple[list[int], list[int]], key: str = "t", trained: bool = True) -> EpisodeRecord:
    """An episode of (prompt ids, sampled ids) calls; a token's logprob is -token/100."""
    episode = EpisodeRecord()
    for number, (prompt, sampled) in enumerate(calls):
        at = episode.prompt_node(key, as_ids(prompt))
        ids = as_ids(sampled)
        generation = Generation(ids, (-ids / 100).astype(np.float32), np.zeros(len(ids), np.int32), "stop")
        end = episode.end_node(key, at, ids)
        call = Call(number, "agent", "policy", key, at, end, generation, 1.0, trained)
        episode.add(call, [{"role": "user", "content": str(number)}], {"role": "assistant", "content": ""})
    return episode


def shown(lines: list[Timeline]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Timelines as (ids, trained ids)."""
    return {(tuple(x.token_ids.tolist()), tuple(x.token_ids[x.mask].tolist())) for x in lines}


def test_a_continued_conversation_is_one_timeline() -> None:
    lines = timelines(record((S + U, X + EOS), (S + U + X + EOS + U2, Y + EOS)))
    assert shown(lines) == {(tuple(S + U + X + EOS + U2 + Y + EOS), tuple(X + EOS + Y + EOS))}
    assert [(s.start, s.end, s.call) for s in lines[0].spans] == [(4, 7, 0), (8, 10, 1)]


def test_an_end_that_was_not_sampled_is_not_trained() -> None:
    lines = timelines(record((S + U, X), (S + U + X + EOS + U2, Y + EOS)))
    assert shown(lines) == {(tuple(S + U + X + EOS + U2 + Y + EOS), tuple(X + Y + EOS))}


def test_the_same_prompt_with_two_outputs_gives_two_timelines() -> None:
    assert shown(timelines(record((U, X), (U, Z)))) == {(tuple(U + X), tuple(X)), (tuple(U + Z), tuple(Z))}


def test_the_same_prompt_with_equal_outputs_counts_both() -> None:
    lines = timelines(record((U, X), (U, X)))
    assert len(lines) == 2 and sum(int(x.mask.sum()) for x in lines) == 2 * len(X)


def test_a_fork_trains_the_shared_answer_once() -> None:
    lines = timelines(record((U, X), (U + X + [1], Y), (U + X + [2], Z)))
    assert len(lines) == 2
    assert Counter(t for x in lines for t in x.token_ids[x.mask].tolist()) == Counter(X + Y + Z)


def test_a_rewritten_history_starts_a_new_timeline() -> None:
    lines = timelines(record((U, X), (U + X + U2, Y), (S + U2, Z)))
    assert shown(lines) == {(tuple(U + X + U2 + Y), tuple(X + Y)), (tuple(S + U2 + Z), tuple(Z))}


def test_outputs_that_share_their_first_tokens_are_both_trained_whole() -> None:
    lines = timelines(record((U, [10, 11]), (U, [10, 12])))
    assert shown(lines) == {(tuple([*U, 10, 11]), (10, 11)), (tuple([*U, 10, 12]), (10, 12))}


def test_other_tool_lists_and_targets_never_share_a_timeline() -> None:
    first, second = record((U, X), key="a"), record((U + X, Y), key="b")
    assert len(timelines(first)) == len(timelines(second)) == 1


def test_untrained_calls_are_context_only() -> None:
    assert timelines(record((U, X), trained=False)) == []


def test_a_closed_record_takes_no_call() -> None:
    episode = record((U, X))
    episode.close()
    with pytest.raises(EpisodeClosed):
        episode.add(episode.calls[0], [{"role": "user"}], {"role": "assistant"})
    assert len(episode.calls) == 1


def test_order_of_completion_does_not_matter() -> None:
    calls = [(U, X), (U + X + U2, Y), (U + X + [6], Z), (S, Z)]
    results = {frozenset(shown(timelines(record(*order)))) for order in itertools.permutations(calls)}
    assert len({frozenset(ids for ids, _ in result) for result in results}) == 1


def test_arguments_spelt_otherwise_are_the_same_message() -> None:
    def message(arguments: Any) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}],
        }

    assert canonical(message('{"a":  1}')) == canonical(message('{"a": 1}')) == canonical(message({"a": 1}))
    assert canonical(message('{"a": 2}')) != canonical(message('{"a": 1}'))


tokens = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 5), tokens, tokens), min_size=1, max_size=8))
def test_any_graph_of_calls_trains_each_token_once_in_the_context_it_was_sampled_in(graph) -> None:
    calls: list[tuple[list[int], list[int]]] = []
    for parent, new, sampled in graph:
        before = [*calls[parent][0], *calls[parent][1]] if 0 <= parent < len(calls) else []
        calls.append((before + new, sampled))
    lines = timelines(record(*calls))
    trained = Counter()
    for line in lines:
        for span in line.spans:
            prompt, sampled = calls[span.call]
            trained[span.call] += 1
            assert line.token_ids[: span.end].tolist() == prompt + sampled
            assert line.mask[span.start : span.end].all()
        assert line.mask.sum() == sum(s.end - s.start for s in line.spans)
    assert trained == Counter(range(len(calls)))
