"""Whose reward is whose: of an episode, of an agent, of a target; and what several targets weigh."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from ajet.learning.algorithms import GRPO, RLOO
from ajet.learning.batch import Learning, RolloutBatch, build_batch
from ajet.learning.credit import advantage_of, advantages
from ajet.rollout.episode import Episode, Plan
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import Generation, Task, WorkflowOutput


@dataclass(frozen=True)
class Judged:
    reward: float
    rewards: dict[str, float] = field(default_factory=dict)


def test_without_rewards_by_name_there_is_the_episodes_alone() -> None:
    found = advantages(RLOO(), {"g": [Judged(1.0), Judged(0.0), Judged(0.5)]})
    assert [list(episode) for episode in found["g"]] == [[""]] * 3
    assert [episode[""] for episode in found["g"]] == pytest.approx([0.75, -0.75, 0.0])


def test_a_name_is_compared_with_itself_and_where_it_has_no_reward_with_the_episodes() -> None:
    group = [Judged(1.0, {"critic": 0.2}), Judged(0.0, {"critic": 0.8}), Judged(0.5)]
    found = advantages(RLOO(), {"g": group})["g"]
    assert [e[""] for e in found] == pytest.approx([0.75, -0.75, 0.0])
    assert [e["critic"] for e in found] == pytest.approx([0.2 - 0.65, 0.8 - 0.35, 0.0])


def test_equal_rewards_of_a_name_teach_it_nothing_whatever_the_others_learn() -> None:
    found = advantages(GRPO(), {"g": [Judged(1.0, {"critic": 0.3}), Judged(0.0, {"critic": 0.3})]})["g"]
    assert [e["critic"] for e in found] == [0.0, 0.0]
    assert found[0][""] == -found[1][""] > 0


def test_groups_that_never_name_an_agent_do_not_have_it() -> None:
    found = advantages(GRPO(), {0: [Judged(1.0, {"a": 1.0}), Judged(0.0)], 1: [Judged(1.0), Judged(0.0)]})
    assert "a" in found[0][0] and "a" not in found[1][0]


def test_tokens_count_by_their_agent_else_by_their_target_else_by_the_episode() -> None:
    found = {"": 1.0, "solver": 2.0, "team": 3.0}
    assert advantage_of(found, "solver", "team") == 2.0
    assert advantage_of(found, "writer", "team") == 3.0
    assert advantage_of(found, "writer", "other") == 1.0


def batch_of(
    rewards: Sequence[tuple[float, dict[str, float]]], adapters: Collection[str] = ()
) -> RolloutBatch:
    """One group. Each episode has a call of three tokens by the solver and one of two by the critic, who are
    targets of the same names."""
    episodes = []
    for member, (reward, by_name) in enumerate(rewards):
        record = EpisodeRecord()
        for number, (name, tokens) in enumerate((("solver", [1, 2, 3]), ("critic", [4, 5]))):
            tree = record.tree(name)
            prompt = tree.extend(tree.root, as_ids([100]))
            ids = as_ids(tokens)
            generation = Generation(
                ids, np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), "stop"
            )
            end = tree.extend(prompt, ids)
            record.add(Call(number, name, name, name, prompt, end, generation, 1.0, True))
        plan = Plan(f"e{member}", "", Task("t"), member, 0)
        episodes.append(Episode(plan, 0, WorkflowOutput(), record, reward=reward, rewards=by_name))
    batch = build_batch(
        episodes, Learning(GRPO(), adapters=adapters), mini_batches=1, learning_rate=1.0, seed="s"
    )
    assert batch
    return batch


def test_the_rewards_of_agents_reach_their_own_tokens() -> None:
    batch = batch_of([(1.0, {"critic": 0.0}), (0.0, {"critic": 1.0})])
    for sample in batch.batch.samples:
        for span in sample.spans:
            reward_won = (span.agent == "solver") == (sample.episode == "e0")
            assert (np.sign(sample.advantages[span.start : span.end]) == (1 if reward_won else -1)).all()


def test_targets_with_adapters_are_weighed_each_by_itself() -> None:
    batch = batch_of([(1.0, {}), (0.0, {})], adapters=("critic",)).batch
    assert {s.adapter for s in batch.samples} == {None, "critic"}
    for adapter in (None, "critic"):
        own = [s for s in batch.samples if s.adapter == adapter]
        assert sum(s.weights.sum() for s in own) == pytest.approx(1.0), "a mean over its own episodes"


def test_a_reward_for_a_name_that_nobody_has_is_counted() -> None:
    metrics = batch_of([(1.0, {"critik": 0.0}), (0.0, {})]).metrics
    assert metrics["unmatched_reward_names"] == 1
    assert "unmatched_reward_names" not in batch_of([(1.0, {"critic": 0.0}), (0.0, {})]).metrics
