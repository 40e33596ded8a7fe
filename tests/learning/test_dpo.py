"""DPO: pairs of a group, the loss of a pair worked out by hand, and which samples are a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ajet.learning.algorithms import DPO
from ajet.learning.batch import Learnable, Learning, RolloutBatch, batch_of
from ajet.learning.credit import batch_advantages
from ajet.learning.pairs import pair_numbers, together
from ajet.tracker.timelines import Timeline
from ajet.types import LossTokens, Sample, Span
from ajet_trees.packing import pack, split


def timeline(ids: Sequence[int], agent: str = "solver") -> Timeline:
    """Three tokens of a prompt, then the answer."""
    tokens = np.array([7, 8, 9, *ids], np.int32)
    mask = np.arange(len(tokens)) >= 3
    logprobs = np.where(mask, -1.0, np.nan).astype(np.float32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    return Timeline(tokens, mask, logprobs, versions, (Span(3, len(tokens), 0, agent, agent),))


def episode(
    group: int,
    member: int,
    reward: float,
    *lines: Timeline,
    rewards: Mapping[str, float] | None = None,
) -> Learnable:
    return Learnable(
        id=f"{group}/{member}",
        group=group,
        member=member,
        reward=reward,
        rewards=rewards or {},
        calls=sorted(span.call for line in lines for span in line.spans),
        lines=lines,
        sampled_tokens=sum(int(line.mask.sum()) for line in lines),
        call_tokens=10,
    )


def built(episodes: Sequence[Learnable], **more: Any) -> RolloutBatch:
    found = batch_of(episodes, Learning(DPO(), **more), mini_batches=1, learning_rate=1.0, seed="s")
    assert found is not None
    return found


def seen(new: Sequence[float], reference: Sequence[float], advantages: Sequence[float], pairs: Any) -> Any:
    values = [np.array(x, float) for x in (new, reference, advantages)]
    return LossTokens(
        new=values[0],
        old=values[0],
        advantages=values[2],
        calls=np.arange(len(new)),
        reference=values[1],
        pairs=np.array(pairs),
    )


# ------------------------------------------------------------------ the formula


def test_the_loss_of_a_pair_by_hand() -> None:
    # log π/π_ref: chosen 0.5 + 1.0, rejected -0.5. m = 2, and -log σ(0.5 · 2) = log(1 + e⁻¹).
    tokens = seen([-1.0, -1.0, -2.0], [-1.5, -2.0, -1.5], [1, 1, -1], [0, 0, 0])
    expected = np.log(1 + np.exp(-1.0))
    found = DPO(beta=0.5).loss(np, tokens)
    np.testing.assert_allclose(found, [expected / 3] * 3)
    measures = DPO(beta=0.5).measures(np, tokens)
    assert measures["preference_margin"].sum() == pytest.approx(1.0)
    assert measures["preference_accuracy"].sum() == pytest.approx(1.0)


def test_label_smoothing_gives_a_share_to_the_opposite_preference_by_hand() -> None:
    tokens = seen([-1.0, -1.0], [-2.0, 0.0], [1, -1], [0, 0])  # m = 1 - (-1) = 2
    right, wrong = np.log(1 + np.exp(-0.2)), np.log(1 + np.exp(0.2))
    found = DPO(beta=0.1, label_smoothing=0.25).loss(np, tokens)
    assert found.sum() == pytest.approx(0.75 * right + 0.25 * wrong)


def test_pairs_do_not_see_each_other_and_their_sum_is_the_mean_over_pairs() -> None:
    # The advantages are E / P = 4 / 2.
    tokens = seen([-1.0, -1.0, -1.0, -3.0], [-2.0, -1.0, -2.0, -3.0], [2, -2, -2, 2], [0, 0, 1, 1])
    weights = DPO().weights(np.ones(4))
    losses = weights * DPO(beta=1.0).loss(np, tokens)
    expected = [np.log(1 + np.exp(-1.0)), np.log(1 + np.exp(1.0))]
    assert losses.sum() == pytest.approx(np.mean(expected))
    accuracy = (weights * DPO(beta=1.0).measures(np, tokens)["preference_accuracy"]).sum()
    assert accuracy == pytest.approx(0.5)


def test_a_far_margin_overflows_nothing() -> None:
    for sign in (1, -1):
        tokens = seen([-1.0, -1.0], [-1.0 - 1e4 * sign, -1.0], [1, -1], [0, 0])
        assert DPO(beta=1.0).loss(np, tokens).sum() == pytest.approx(0 if sign > 0 else 1e4)


# ------------------------------------------------------------------ pairs of groups


def test_of_each_group_the_best_is_compared_with_the_worst_and_ties_are_skipped() -> None:
    rewards = {0: np.array([0.2, 1.0, 1.0, 0.0]), 1: np.ones(4)}
    found = batch_advantages(DPO(), rewards)
    np.testing.assert_array_equal(found[0], [0, 8, 0, -8])
    np.testing.assert_array_equal(found[1], [0, 0, 0, 0])


def test_a_batch_names_the_samples_of_a_pair_and_counts_groups_without_one() -> None:
    groups = [[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]]
    batch = built(
        [
            episode(g, m, reward, timeline([10 * g + m]))
            for g, rewards in enumerate(groups)
            for m, reward in enumerate(rewards)
        ]
    )
    assert {s.episode: s.pair for s in batch.batch.samples if s.pair is not None} == {"0/0": 0, "0/2": 0}
    assert batch.metrics["pairs"] == 1 and batch.metrics["groups_without_pair"] == 1
    assert batch.batch.needs == {"reference", "pairs"} and batch.batch.zero_costs_nothing


def test_all_timelines_of_an_episode_are_on_its_side_of_the_pair() -> None:
    batch = built(
        [episode(0, 0, 1.0, timeline([1]), timeline([2, 3])), episode(0, 1, 0.0, timeline([4]))]
    ).batch
    assert [s.pair for s in batch.samples] == [0, 0, 0]
    assert [float(s.advantages[-1]) for s in batch.samples] == [2, 2, -2]


def test_without_tokens_of_the_other_side_there_is_no_pair() -> None:
    batch = built([episode(0, 0, 1.0, timeline([1])), episode(0, 1, 0.0), episode(1, 0, 1.0, timeline([2]))])
    assert [s.pair for s in batch.batch.samples] == [None, None]
    assert not any(s.advantages.any() for s in batch.batch.samples)
    assert batch.metrics["groups_without_pair"] == 2 and batch.metrics["pairs"] == 0


def test_each_adapter_has_pairs_of_its_own() -> None:
    both = [timeline([1], "solver"), timeline([2], "critic")]
    batch = built(
        [episode(0, 0, 1.0, *both), episode(0, 1, 0.0, timeline([3], "solver"))],
        adapters=("solver", "critic"),
    )
    pairs = {(s.adapter, s.episode): s.pair for s in batch.batch.samples}
    assert pairs == {("solver", "0/0"): 0, ("solver", "0/1"): 0, ("critic", "0/0"): None}
    assert batch.metrics["pairs"] == 1


# ------------------------------------------------------------------ computed together


def sample(ids: Sequence[int], pair: int | None) -> Sample:
    mask = np.arange(len(ids)) > 0
    on = mask.astype(np.float32)
    return Sample(np.array(ids, np.int32), mask, on, on, on, pair=pair)


SAMPLES = [sample([1, 2, 3], 5), sample([1, 9, 9, 9], None), sample([8, 2], 5), sample([1, 2, 4], 2)]


def test_a_pair_is_one_unit_and_its_tokens_have_one_number() -> None:
    assert [[s.pair for s in unit] for unit in together(SAMPLES)] == [[5, 5], [None], [2]]
    assert pair_numbers(SAMPLES).tolist() == [0, 0, 3, 3, 3, 0, 1, 1]


@pytest.mark.parametrize("limit", [1, 6, 1000])
def test_a_split_into_trees_never_divides_a_pair(limit: int) -> None:
    groups = split(SAMPLES, limit)
    assert sum(map(len, groups)) == len(SAMPLES)
    holding = [i for i, group in enumerate(groups) for s in group if s.pair == 5]
    assert len(set(holding)) == 1
    assert all(len(together(g)) == 1 or len(pack(g).token_ids) <= limit for g in groups)
