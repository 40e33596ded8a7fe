"""Credit: advantages over groups of episodes, weights over their tokens."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ajet.interfaces.reader import tasks_of_step
from ajet.learning.algorithms import GRPO, RejectionSampling
from ajet.learning.batch import Learning, TokenSelection, batch_of, build_batch
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.failures import Failure
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import Batch, Generation, Sample, Task, WorkflowOutput


def episode(
    group: int, member: int, reward: float, sampled: list[list[int]], failure: str | None = None
) -> Episode:
    """An episode whose calls have unrelated prompts: one timeline each."""
    record = EpisodeRecord()
    tree = record.tree("k")
    for number, tokens in enumerate(sampled):
        prompt = tree.extend(tree.root, as_ids([100 + number]))
        ids = as_ids(tokens)
        generation = Generation(
            ids, np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), "stop"
        )
        end = tree.extend(prompt, ids)
        record.add(Call(number, "a", "policy", "k", prompt, end, generation, 1.0, True))
    plan = Plan(f"1.{group}/t/{member}", "", Task("t"), member, group)
    failed = Failure.parse(failure, "") if failure else None
    return Episode(plan, 0, WorkflowOutput(), record, Counter(), failed, reward=reward)


def build(episodes: list[Episode], mini_batches: int = 1) -> Any:
    return build_batch(episodes, Learning(GRPO()), mini_batches=mini_batches, learning_rate=1.0, seed="s")


def test_neither_length_nor_number_of_timelines_changes_what_an_episode_counts() -> None:
    batch = build([episode(0, 0, 1.0, [[1, 2, 3]]), episode(0, 1, 0.0, [[1], [2, 3, 4], [5] * 6])])
    by_episode: Counter[str] = Counter()
    for sample in batch.batch.samples:
        by_episode[sample.episode] += float(sample.weights.sum())
    assert len(batch.batch.samples) == 4 and batch.sampled_tokens == 13
    np.testing.assert_allclose(list(by_episode.values()), [0.5, 0.5], rtol=1e-6)


def test_statistics_are_over_episodes_not_timelines() -> None:
    batch = build([episode(0, 0, 1.0, [[1]]), episode(0, 1, 0.0, [[i] for i in range(9)])])
    first = [s.advantages[s.mask][0] for s in batch.batch.samples]
    np.testing.assert_allclose([first[0], first[1]], [2**-0.5, -(2**-0.5)], rtol=1e-5)


def test_failed_members_leave_their_groups_statistics_finite() -> None:
    batch = build(
        [episode(0, 0, 1.0, [[1]]), episode(0, 1, 9.0, [[1]], failure="timeout"), episode(0, 2, 0.0, [[1]])]
    )
    assert {s.episode for s in batch.batch.samples} == {"1.0/t/0", "1.0/t/2"}
    assert all(np.isfinite(s.advantages).all() for s in batch.batch.samples)


@pytest.mark.parametrize("emptied", [(), (2, 3), (0,), (0, 3)])
def test_rejection_sampling_is_the_mean_over_what_it_imitates_whatever_filters_have_emptied(
    emptied: tuple[int, ...],
) -> None:
    episodes = [TokenSelection().learnable(episode(0, m, float(m < 2), [[1]])) for m in range(4)]
    left = [replace(e, lines=() if e.member in emptied else e.lines) for e in episodes if e]
    found = batch_of(left, Learning(RejectionSampling()), mini_batches=1, learning_rate=1.0, seed="s")
    assert found is not None
    assert sum(float((s.weights * s.advantages).sum()) for s in found.batch.samples) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("mask", "advantages", "weights", "expected"),
    [
        ([False, True], [0.0, 0.5], [0.0, 1.0], (True, True)),
        ([False, True], [0.5, 0.0], [1.0, 1.0], (False, True)),
        ([False, True], [0.0, 0.5], [1.0, 0.0], (False, True)),
        ([False, False], [0.5, 0.5], [1.0, 1.0], (False, False)),
    ],
    ids=["an advantage", "one of a token that is not trained", "a weight of 0", "no trained token"],
)
def test_a_sample_has_credit_if_a_trained_token_can_have_a_gradient(
    mask: list[bool], advantages: list[float], weights: list[float], expected: tuple[bool, bool]
) -> None:
    arrays = (np.array(numbers, np.float32) for numbers in ([-1.0, -1.0], advantages, weights))
    sample = Sample(np.array([1, 2], np.int32), np.array(mask), *arrays)
    batch = Batch([sample], GRPO().loss, [[0]], 1.0)
    assert (batch.has_credit(sample), replace(batch, zero_costs_nothing=False).has_credit(sample)) == expected


def test_no_judged_episode_means_no_batch() -> None:
    assert build([episode(0, 0, 1.0, [[1]], failure="timeout")]) is None


def test_mini_batches_share_whole_groups_and_weigh_one_each() -> None:
    batch = build(
        [episode(g, m, float(m), [[1, 2]]) for g in range(5) for m in range(2)], mini_batches=2
    ).batch
    assert sorted(i for mini in batch.mini_batches for i in mini) == list(range(10))
    for mini in batch.mini_batches:
        assert sum(float(batch.samples[i].weights.sum()) for i in mini) == pytest.approx(1.0)
        groups = Counter(batch.samples[i].episode.split("/")[0] for i in mini)
        assert set(groups.values()) == {2}


def test_tasks_come_in_seeded_epochs_that_need_no_state() -> None:
    tasks = [Task(str(i)) for i in range(5)]
    drawn = [t.id for step in range(5) for t in tasks_of_step(tasks, step, 3, seed=1)]
    assert [sorted(drawn[i : i + 5]) for i in (0, 5, 10)] == [["0", "1", "2", "3", "4"]] * 3
    assert drawn[:5] != drawn[5:10], "each epoch has its own order"
    assert drawn != [t.id for step in range(5) for t in tasks_of_step(tasks, step, 3, seed=2)]


def test_an_epoch_is_shuffled_once_a_step_however_large_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Task(str(i)) for i in range(5)]
    one_by_one = [tasks_of_step(tasks, position, 1, seed=1)[0] for position in range(24)]
    seeds: list[str] = []

    def counted(seed: str, plain: Any = random.Random) -> random.Random:
        seeds.append(seed)
        return plain(seed)

    monkeypatch.setattr(random, "Random", counted)
    assert tasks_of_step(tasks, 1, 12, seed=1) == one_by_one[12:]
    assert seeds == ["1:2", "1:3", "1:4"]
