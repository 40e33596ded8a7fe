"""PPO: advantages of tokens from rewards and values, and the loss, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ajet.learning.algorithms import PPO
from ajet.learning.critic import estimated
from ajet.learning.objective import objective
from ajet.learning.settings import TrainSettings
from ajet.types import LossTokens, Sample, Span

# ------------------------------------------------------------------ generalised advantage estimation


def test_generalised_advantages_by_hand() -> None:
    # γ = 0.5, λ = 0.8: δ = [0 + .5·2 - 1, 0 + .5·4 - 2, 3 - 4] = [0, 0, -1]; A = [.16·-1, .4·-1, -1].
    found = PPO(gamma=0.5, lam=0.8).estimate(np.array([0.0, 0.0, 3.0]), np.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(found, [-0.16, -0.4, -1.0])


def test_with_lambda_1_an_advantage_is_the_return_minus_the_value() -> None:
    values = np.array([0.3, -0.2, 0.9])
    found = PPO(lam=1.0).estimate(np.array([0.0, 0.0, 1.0]), values)
    np.testing.assert_allclose(found, 1.0 - values)


def test_with_lambda_0_an_advantage_is_the_error_of_one_value() -> None:
    found = PPO(lam=0.0).estimate(np.array([0.0, 0.0, 1.0]), np.array([0.3, -0.2, 0.9]))
    np.testing.assert_allclose(found, [-0.5, 1.1, 0.1])


def test_advantages_are_scaled_to_mean_0_and_sample_deviation_1() -> None:
    np.testing.assert_allclose(PPO().scale(np.array([1.0, 2.0, 3.0])), [-1, 0, 1], rtol=1e-6)
    np.testing.assert_array_equal(PPO().scale(np.array([5.0])), [0.0])
    np.testing.assert_array_equal(PPO().scale(np.array([2.0, 2.0])), [0.0, 0.0])


# ------------------------------------------------------------------ over timelines


def line(
    trained: Sequence[int],
    rewards: Sequence[float],
    values: Sequence[float],
    agents: str = "",
    adapter: str | None = None,
) -> Sample:
    """A timeline: 1 marks trained tokens, which have these rewards, values and agents (a letter each)."""
    mask = np.array(trained, np.bool_)
    places = np.flatnonzero(mask)
    arrays = np.zeros((2, len(mask)), np.float32)
    arrays[0, places], arrays[1, places] = rewards, values
    arrays[1, ~mask] = np.nan
    spans = tuple(
        Span(int(at), int(at) + 1, i, agent, "policy")
        for i, (at, agent) in enumerate(zip(places, agents or "a" * len(places), strict=True))
    )
    return Sample(
        token_ids=np.zeros(len(mask), np.int32),
        mask=mask,
        logprobs=np.full(len(mask), np.nan, np.float32),
        advantages=arrays[0],
        weights=mask.astype(np.float32),
        spans=spans,
        adapter=adapter,
        values=arrays[1],
    )


def returns(*samples: Sample, **fields: float) -> list[list[float]]:
    found, _ = estimated(PPO(**fields), samples)  # type: ignore[arg-type]
    return [s.returns[s.mask].tolist() for s in found if s.returns is not None]


def test_tokens_of_tools_are_skipped_the_value_of_the_next_trained_token_follows() -> None:
    together = line([0, 1, 1, 1], [1.0] * 3, [0.1, 0.2, 0.3])
    apart = line([0, 1, 0, 0, 1, 0, 1, 0], [1.0] * 3, [0.1, 0.2, 0.3])
    assert returns(apart) == returns(together)
    np.testing.assert_allclose(returns(apart, lam=0.0)[0], [0.2, 0.3, 1.0], rtol=1e-6)


def test_the_reward_comes_once_at_the_end_of_each_timeline() -> None:
    one, other = line([1, 1], [1.0] * 2, [0, 0]), line([0, 1, 1, 1], [0.5] * 3, [0, 0, 0])
    found = returns(one, other, gamma=0.9, lam=1.0)
    np.testing.assert_allclose(found[0], [0.9, 1.0], rtol=1e-6)
    np.testing.assert_allclose(found[1], [0.405, 0.45, 0.5], rtol=1e-6)


def test_agents_that_share_a_timeline_have_their_own_rewards() -> None:
    shared = line([1, 1, 1, 1], [1.0, 0.0, 1.0, 0.0], [0.1, 0.2, 0.3, 0.4], "abab")
    np.testing.assert_allclose(returns(shared, lam=0.0)[0], [0.3, 0.4, 1.0, 0.0], atol=1e-6)


def test_advantages_are_scaled_over_the_batch_and_apart_for_each_adapter() -> None:
    samples = [line([1], [r], [0.0], adapter=name) for name in ("x", "y") for r in (0.0, 1.0)]
    found, metrics = estimated(PPO(), samples)
    half = 1 / np.sqrt(2)
    np.testing.assert_allclose([s.advantages[0] for s in found], [-half, half] * 2, rtol=1e-6)
    assert metrics["explained_variance"] == pytest.approx(0.0)


def test_the_explained_variance_is_1_for_a_perfect_critic() -> None:
    samples = [line([1, 1], [r] * 2, [r, r]) for r in (0.0, 1.0)]
    assert estimated(PPO(), samples)[1]["explained_variance"] == pytest.approx(1.0)
    assert estimated(PPO(), samples[:1])[1] == {}, "there is no variance to explain"


# ------------------------------------------------------------------ the loss


def tokens(**given: Sequence[float]) -> LossTokens:
    arrays: dict[str, Any] = {name: np.array(value, float) for name, value in given.items()}
    return LossTokens(calls=np.arange(len(arrays["new"])), **arrays)


SEEN = tokens(
    new=np.log([0.5, 1.0, 0.25]),
    old=np.log([0.5, 0.5, 0.5]),
    advantages=[1.0, 1.0, -1.0],
    values=[0.5, 1.0, 0.0],
    old_values=[0.4, 0.0, 0.0],
    returns=[1.0, 0.5, 0.0],
)


def test_the_loss_is_the_clipped_policy_loss_and_the_clipped_value_loss_by_hand() -> None:
    # Ratios 1, 2, 0.5: the second is cut to 1.2, the third counts as 0.8 for a negative advantage.
    policy = np.array([-1.0, -1.2, 0.8])
    # The second value moved by 1 from 0, so its clipped self is 0.2: (0.2 - 0.5)² < (1 - 0.5)².
    values = np.array([0.25, 0.25, 0.0]) / 2
    np.testing.assert_allclose(PPO(value_weight=0.5).loss(np, SEEN), policy + 0.5 * values)
    parts = PPO().measures(np, SEEN)
    np.testing.assert_allclose(parts["policy_loss"], policy)
    np.testing.assert_allclose(parts["value_loss"], values)


def test_a_value_that_moved_far_towards_its_return_has_no_gradient() -> None:
    torch = pytest.importorskip("torch")
    value = torch.tensor([0.5, 0.1], requires_grad=True)
    zero = torch.zeros(2)
    seen = LossTokens(
        new=zero,
        old=zero,
        advantages=zero,
        calls=zero.long(),
        values=value,
        old_values=zero,
        returns=torch.tensor([1.0, 1.0]),
    )
    PPO(value_weight=1.0).loss(torch, seen).sum().backward()
    np.testing.assert_allclose(value.grad, [0.0, -0.9], err_msg="0.5 is beyond 0.2 from its old value")


def test_every_token_is_computed_because_the_critic_learns_from_it() -> None:
    whole = objective(PPO(), TrainSettings())
    assert whole.needs == {"values"} and not whole.zero_costs_nothing
