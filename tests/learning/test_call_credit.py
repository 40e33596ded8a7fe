"""Credit of calls: trees of forked episodes, rewards of calls, and what a token that forks share weighs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ajet.interfaces.algorithm import Algorithm
from ajet.learning.algorithms import DAPO, DPO, GRPO, GSPO, PPO, RLOO, SFT, DrGRPO, ReinforcePlusPlus
from ajet.learning.batch import Learning, RolloutBatch, build_batch
from ajet.learning.credit import advantages, call_advantages
from ajet.rollout.episode import Episode, Fork, Plan
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import AjetError, Generation, LossTokens, Task, WorkflowOutput


@dataclass(frozen=True)
class Judged:
    id: str
    reward: float
    calls: Sequence[int]
    fork: Fork | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    call_rewards: Mapping[int, float] = field(default_factory=dict)


def of_group(algorithm: Algorithm, group: Sequence[Judged], name: str = "", **how: Any) -> list[list[float]]:
    return [found[name] for found in call_advantages(algorithm, {0: group}, **how)[0]]


EXAMPLE = [
    Judged("a", 1.0, (0, 1, 2)),
    Judged("b", 0.0, (0, 1, 2)),
    Judged("c", 1.0, (0, 1, 2), Fork("a", 1)),
    Judged("d", 0.0, (0, 1, 2), Fork("a", 2)),
]
"""The example of docs/credit.md, by hand:

    task 1/2 ┬─ a0 ── 2/3 ┬─ a1 ── 1/2 ┬─ a2 ── 1
             │            │            └─ d2 ── 0
             │            └─ c1 ── c2 ───────── 1
             └─ b0 ── b1 ── b2 ──────────────── 0
"""
AFTER_A0 = (3 * 2 / 3 + 4 * 1 / 2) / 7
"""The node's three leaves, and four more with the group's mean."""
BY_HAND = [
    [2 / 3 - 1 / 2, 1 / 2 - AFTER_A0, 1 - 1 / 2],
    [0 - 1 / 2] * 3,
    [2 / 3 - 1 / 2, 1 - AFTER_A0, 1 - AFTER_A0],
    [2 / 3 - 1 / 2, 1 / 2 - AFTER_A0, 0 - 1 / 2],
]


def before(value: float, leaves: int, group: float) -> float:
    """The value of a node that the calls after it are compared with."""
    return (leaves * value + 4 * group) / (leaves + 4)


def test_a_call_has_the_value_after_its_segment_less_the_one_before_drawn_to_the_groups() -> None:
    found = of_group(DrGRPO(), EXAMPLE, credit="tree")
    np.testing.assert_allclose(found, BY_HAND, atol=1e-12)


def test_with_the_credit_of_episodes_a_shared_call_has_the_mean_of_the_episodes_with_it() -> None:
    found = of_group(DrGRPO(), EXAMPLE)
    assert found[0] == pytest.approx([2 / 3 - 1 / 2, 1 / 2 - 1 / 2, 1 - 1 / 2])
    assert found[2] == pytest.approx([2 / 3 - 1 / 2, 1 - 1 / 2, 1 - 1 / 2])


def test_parallel_calls_keep_their_rewards_in_forks_that_make_them_in_another_order() -> None:
    """A has the reward 1, B none. ``calls`` are in the parent's order; the second fork made B first."""
    both = [
        of_group(
            DrGRPO(),
            [
                Judged("p", 0.0, (0, 1, 2), call_rewards={0: 1.0}),
                Judged("f", 0.0, calls, Fork("p", 2), call_rewards={calls[0]: 1.0}),
                Judged("q", 0.0, (0, 1, 2)),
            ],
            credit="tree",
            discount=0.5,
        )
        for calls in [(0, 1, 2), (1, 0, 2)]
    ]
    assert both[0] == both[1] and both[0][0][1] == 0


@pytest.mark.parametrize(
    ("algorithm", "scale"),
    [
        (GRPO(), 1 / (np.std([1, 0, 1, 0], ddof=1) + 1e-6)),
        (GSPO(), 1 / (np.std([1, 0, 1, 0], ddof=1) + 1e-6)),
        (RLOO(), 4 / 3),
        (ReinforcePlusPlus(), 1 / (np.std([1, 0, 1, 0], ddof=1) + 1e-6)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_differences_of_values_are_scaled_as_the_algorithm_scales(algorithm: Algorithm, scale: float) -> None:
    found = of_group(algorithm, EXAMPLE, credit="tree")
    np.testing.assert_allclose(found, np.array(BY_HAND) * scale, rtol=1e-5)


@pytest.mark.parametrize(
    "algorithm", [GRPO(), RLOO(), ReinforcePlusPlus(), ReinforcePlusPlus(group_baseline=False)], ids=repr
)
def test_without_forks_every_call_has_the_episodes_advantage(algorithm: Algorithm) -> None:
    group = [Judged(str(i), reward, range(i + 1)) for i, reward in enumerate((0.1, 0.7, 0.4))]
    whole = advantages(algorithm, {0: group})[0]
    for credit in ("episode", "tree"):
        for found, own in zip(of_group(algorithm, group, credit=credit), whole, strict=True):
            assert found == pytest.approx([own[""]] * len(found))


def test_names_with_rewards_of_their_own_have_values_of_their_own() -> None:
    group = [
        Judged("a", 1.0, (0, 1), rewards={"critic": 0.0}),
        Judged("b", 0.0, (0, 1)),
        Judged("c", 1.0, (0, 1), Fork("a", 1), rewards={"critic": 1.0}),
    ]
    found = of_group(DrGRPO(), group, "critic", credit="tree")
    assert found[0] == pytest.approx([1 / 2 - 1 / 3, 0 - before(1 / 2, 2, 1 / 3)])
    assert found[2][1] == pytest.approx(1 - before(1 / 2, 2, 1 / 3))


def test_a_fork_whose_parent_failed_still_shares_its_calls_with_the_others() -> None:
    group = [
        Judged("b", 0.0, (0, 1)),
        Judged("c", 1.0, (0, 1), Fork("a", 1)),
        Judged("d", 0.5, (0, 1), Fork("a", 1)),
    ]
    found = of_group(DrGRPO(), group, credit="tree")
    start = before(0.75, 2, 0.5)
    assert found[1] == pytest.approx([0.25, 1 - start]) and found[2] == pytest.approx([0.25, 0.5 - start])


def test_a_fork_of_a_fork_can_leave_where_both_still_follow_the_first() -> None:
    group = [
        Judged("a", 1.0, (0, 1, 2)),
        Judged("b", 0.0, (0, 1, 2), Fork("a", 2)),
        Judged("c", 0.0, (0, 1, 2), Fork("b", 1)),
    ]
    found = of_group(DrGRPO(), group, credit="tree")
    assert found[0] == pytest.approx([0.0, 1 / 2 - 1 / 3, 1 - before(1 / 2, 2, 1 / 3)])
    assert found[2] == pytest.approx([0.0, 0 - 1 / 3, 0 - 1 / 3])


# ---------------------------------------------------------------------- rewards of calls


def test_a_call_gets_what_follows_it_discounted_against_the_group_at_the_same_place() -> None:
    group = [
        Judged("a", 1.0, (0, 1, 2), call_rewards={0: 0.5, 1: 1.0}),
        Judged("b", 0.0, (0, 1), call_rewards={1: 2.0}),
    ]
    returns_a = [0.5 + 0.5 * (1.0 + 0.5 * 1.0), 1.0 + 0.5 * 1.0, 1.0]
    returns_b = [0.5 * 2.0, 2.0, 0.0]  # after its end an episode has only its reward
    found = of_group(DrGRPO(), group, discount=0.5)
    expected = [(a - b) / 2 for a, b in zip(returns_a, returns_b, strict=True)]
    assert found[0] == pytest.approx(expected)
    assert found[1] == pytest.approx([-e for e in expected[:2]])


def test_a_call_that_no_engine_answered_is_no_step_of_the_discount_whether_it_has_a_reward_or_not() -> None:
    """The group's other episode has returns of 0."""
    for frozen in (0.0, 0.25):
        group = [Judged("a", 1.0, (0, 2), call_rewards={1: frozen, 3: 0.0}), Judged("b", 0.0, (0, 2))]
        found = of_group(DrGRPO(), group, discount=0.5)
        assert found[0] == pytest.approx([(frozen + 0.5 * 1.0) / 2, 1.0 / 2])


def test_rewards_of_calls_without_a_discount_are_summed_from_the_call_on() -> None:
    group = [Judged("a", 0.0, (0, 1), call_rewards={0: 1.0}), Judged("b", 0.0, (0, 1), call_rewards={1: 1.0})]
    found = of_group(DrGRPO(), group)
    assert found == [pytest.approx([0.0, -0.5]), pytest.approx([0.0, 0.5])]


def test_rewards_of_calls_and_forks_share_one_path() -> None:
    group = [
        Judged("a", 0.0, (0, 1), call_rewards={1: 1.0}),
        Judged("b", 0.0, (0, 1)),
        Judged("c", 0.0, (0, 1), Fork("a", 1), call_rewards={1: 3.0}),
    ]
    found = of_group(DrGRPO(), group, credit="tree")
    start = before(2, 2, 4 / 3)
    assert found[0] == pytest.approx([2 - 4 / 3, 1 - start]) and found[2][1] == pytest.approx(3 - start)


@pytest.mark.parametrize("algorithm", [PPO(), DPO(), SFT()], ids=lambda a: a.name)
def test_algorithms_without_relative_advantages_refuse_rewards_of_calls(algorithm: Algorithm) -> None:
    with pytest.raises(AjetError, match=f"call_rewards: the algorithm '{algorithm.name}' cannot learn"):
        of_group(algorithm, [Judged("a", 1.0, (0,), call_rewards={0: 1.0}), Judged("b", 0.0, (0,))])


# ---------------------------------------------------------------------- batches

VOCABULARY = 11


def run(
    member: int,
    reward: float,
    calls: Sequence[Sequence[int]],
    fork: Fork | None = None,
    parent: Episode | None = None,
) -> Episode:
    """An episode of one growing conversation: each call's prompt is what came before and one new token."""
    record = EpisodeRecord()
    tree = record.tree("k")
    at = tree.extend(tree.root, as_ids([0]))
    for number, tokens in enumerate(calls):
        prompt = tree.extend(at, as_ids([number + 1]))
        ids = as_ids(tokens)
        generation = Generation(
            ids, np.full(len(ids), -1.5, np.float32), np.zeros(len(ids), np.int32), "stop"
        )
        at = tree.extend(prompt, ids)
        replayed = fork is not None and number < fork.calls
        record.add(
            Call(number, "a", "policy", "k", prompt, at, generation, 1.0, not replayed, replayed=replayed)
        )
    return Episode(
        Plan(f"e{member}", "", Task("t"), member, 0, fork), 0, WorkflowOutput(), record, reward=reward
    )


def forked_group() -> list[Episode]:
    """`EXAMPLE` with tokens."""
    return [
        run(0, 1.0, [[1, 2, 3], [4, 5], [6]]),
        run(1, 0.0, [[7], [8, 9], [10, 1, 2, 3]]),
        run(2, 1.0, [[1, 2, 3], [9], [8, 7, 6, 5]], Fork("e0", 1)),
        run(3, 0.0, [[1, 2, 3], [4, 5], [3, 3]], Fork("e0", 2)),
    ]


def built(episodes: Sequence[Episode], algorithm: Algorithm, **how: Any) -> RolloutBatch:
    found = build_batch(episodes, Learning(algorithm, **how), mini_batches=1, learning_rate=1.0, seed="s")
    assert found
    return found


def test_every_sampled_token_of_a_forked_group_is_trained_exactly_once() -> None:
    batch = built(forked_group(), GRPO(), credit="tree")
    assert sum(int(s.mask.sum()) for s in batch.batch.samples) == batch.sampled_tokens == 6 + 7 + 5 + 2
    spans = {s.episode: [span.call for span in s.spans] for s in batch.batch.samples}
    assert spans == {"e0": [0, 1, 2], "e1": [0, 1, 2], "e2": [1, 2], "e3": [2]}


@pytest.mark.parametrize("credit", ["episode", "tree"])
@pytest.mark.parametrize(
    "algorithm", [GRPO(), DAPO(), DrGRPO(), RLOO(), GSPO(), ReinforcePlusPlus()], ids=lambda a: a.name
)
def test_gradients_equal_those_of_whole_rows_for_every_call_of_every_path(
    algorithm: Algorithm, credit: str
) -> None:
    """The reference trains each call of each episode, also what it replayed, in a row of its own with its whole context, with the
    algorithm's weights of whole episodes."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, 8), torch.nn.GRU(8, 8, batch_first=True)
    ).double()
    head = torch.nn.Linear(8, VOCABULARY).double()

    def logprobs(ids: Sequence[int]) -> Any:
        """Of each token but the first, given those before it."""
        states, _ = model(torch.tensor([list(ids)]))
        found = head(states)[0, :-1].log_softmax(-1)
        return found.gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0]

    def loss_of(new: Any, advantage: Any) -> Any:
        count = len(new)
        old = torch.full((count,), -1.5, dtype=torch.float64)
        calls = torch.zeros(count, dtype=torch.int64)
        return algorithm.loss(torch, LossTokens(new=new, old=old, advantages=advantage, calls=calls))

    def gradient(total: Any) -> Any:
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(total, [*model.parameters(), *head.parameters()])]
        )

    episodes = forked_group()
    total = torch.zeros((), dtype=torch.float64)
    for sample in built(episodes, algorithm, credit=credit).batch.samples:
        new = logprobs(sample.token_ids.tolist())
        for span in sample.spans:
            own = slice(span.start, span.end)
            advantage = torch.tensor(sample.advantages[own], dtype=torch.float64)
            losses = loss_of(new[span.start - 1 : span.end - 1], advantage)
            total = total + (torch.tensor(sample.weights[own], dtype=torch.float64) * losses).sum()

    scale = {"grpo": 1 / np.std([1, 0, 1, 0], ddof=1), "rloo": 4 / 3, "dr_grpo": 1.0}
    factor = scale.get(algorithm.name, scale["grpo"])
    over_root = [[2 / 3, 1 / 2, 1], [0, 0, 0], [2 / 3, 1, 1], [2 / 3, 1 / 2, 0]]
    values = BY_HAND if credit == "tree" else (np.array(over_root) - 1 / 2).tolist()
    lengths = np.array(
        [sum(len(c.generation.token_ids) for c in e.record.calls) for e in episodes], np.float64
    )
    reference = torch.zeros((), dtype=torch.float64)
    for episode, of_calls, weight in zip(episodes, values, algorithm.weights(lengths), strict=True):
        for call, advantage in zip(episode.record.calls, of_calls, strict=True):
            start, end = call.prompt.length, call.end.length
            new = logprobs(call.end.ids().tolist())[start - 1 : end - 1]
            wanted = torch.full((end - start,), advantage * factor, dtype=torch.float64)
            reference = reference + float(weight) * loss_of(new, wanted).sum()
    found, expected = gradient(total), gradient(reference)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


def test_weights_add_up_as_if_each_episode_had_its_whole_path() -> None:
    batch = built(forked_group(), GRPO(), credit="tree")
    assert sum(float(s.weights.sum()) for s in batch.batch.samples) == pytest.approx(1.0)
    shared = next(s for s in batch.batch.samples if s.episode == "e0")
    assert shared.weights[shared.spans[0].start] == pytest.approx((1 / 6 + 1 / 8 + 1 / 7) / 4)


def test_a_learnable_fork_travels_without_the_record_of_its_parent() -> None:
    from dataclasses import replace

    from ajet.learning.batch import TokenSelection

    episodes = forked_group()
    fork = episodes[2]
    fork.plan = replace(fork.plan, fork=Fork("e0", 1, episodes[0].record))
    found = TokenSelection().learnable(fork)
    assert found and found.fork == Fork("e0", 1) and found.fork.record is None
