"""Every algorithm against a case worked out by hand: advantages, weights, loss, and the terms of the job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ajet
from ajet.interfaces.algorithm import Algorithm
from ajet.learning import algorithms as a
from ajet.learning.credit import batch_advantages
from ajet.learning.objective import Objective, k2, k3, objective
from ajet.learning.settings import TrainSettings
from ajet.plugins import load_plugins
from ajet.types import LossTokens
from tests.pages import blocks

FOUR = np.array([1.0, 0.0, 0.0, 0.0])
"""Rewards with mean 1/4 and sample standard deviation 1/2."""
LENGTHS = np.array([2.0, 6.0])
"""Trained tokens of two episodes."""
INSTALLED: dict[str, type[Any]] = {
    name: found.cls
    for (kind, name), found in load_plugins().classes.items()
    if kind == "algorithm" and found.distribution == "ajet"
}
CENTRED = ["grpo", "dapo", "dr_grpo", "rloo", "reinforce++", "gspo", "cispo", "rejection_sampling", "dpo"]


def tokens(
    ratios: list[float], advantages: list[float] | float, calls: list[int] | None = None, **more: Any
) -> LossTokens:
    """Tokens that were sampled with probability 1/2 and have so many times that now."""
    old = np.full(len(ratios), np.log(0.5))
    given = {name: np.array(value, int if name == "pairs" else float) for name, value in more.items()}
    return LossTokens(
        new=old + np.log(ratios),
        old=old,
        advantages=np.broadcast_to(np.array(advantages, float), old.shape),
        calls=np.array(calls if calls is not None else range(len(ratios))),
        **given,
    )


def loss(algorithm: Algorithm, seen: LossTokens) -> Any:
    return algorithm.loss(np, seen)


# --------------------------------------------------------------------------- advantages


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (a.GRPO(), [1.5, -0.5, -0.5, -0.5]),
        (a.DAPO(), [1.5, -0.5, -0.5, -0.5]),
        (a.GSPO(), [1.5, -0.5, -0.5, -0.5]),
        (a.CISPO(), [1.5, -0.5, -0.5, -0.5]),
        (a.DrGRPO(), [0.75, -0.25, -0.25, -0.25]),
        (a.RLOO(), [1, -1 / 3, -1 / 3, -1 / 3]),
        (a.ReinforcePlusPlus(), [0.75, -0.25, -0.25, -0.25]),
        (a.ReinforcePlusPlus(group_baseline=False), [1, 0, 0, 0]),
        (a.SFT(), [1, 1, 1, 1]),
        (a.RejectionSampling(), [1, 0, 0, 0]),
        (a.RejectionSampling(threshold=0.0), [1, 1, 1, 1]),
        (a.Distillation(), [1, 1, 1, 1]),
        (a.SDPO(), [1, 1, 1, 1]),
        (a.DPO(), [1, -1, 0, 0]),
        (a.PPO(), [1, 0, 0, 0]),
    ],
)
def test_advantages_by_hand(algorithm: Algorithm, expected: list[float]) -> None:
    np.testing.assert_allclose(algorithm.advantages(FOUR), expected, rtol=1e-5)


@pytest.mark.parametrize("name", CENTRED)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, -7.7])
def test_equal_rewards_have_advantage_exactly_zero_whatever_the_other_groups_have(
    name: str, reward: float
) -> None:
    algorithm = INSTALLED[name]()
    assert (algorithm.advantages(np.array([reward])) == 0).all()
    found = batch_advantages(algorithm, {"equal": np.full(8, reward), "other": FOUR, "more": FOUR[:3]})
    assert (found["equal"] == 0).all() and found["other"].any()


def test_rloo_is_the_reward_minus_the_mean_of_the_others() -> None:
    rewards = np.array([0.3, 1.0, -0.5])
    others = [(1.0 - 0.5) / 2, (0.3 - 0.5) / 2, (0.3 + 1.0) / 2]
    np.testing.assert_allclose(a.RLOO().advantages(rewards), rewards - others)


def test_reinforce_plus_plus_divides_by_the_deviation_of_the_whole_batch() -> None:
    rewards = {0: np.array([2.0, 0.0]), 1: np.array([1.0, 1.0])}
    found = batch_advantages(a.ReinforcePlusPlus(), rewards)
    std = np.sqrt(2 / 3)  # of 1, -1, 0, 0
    np.testing.assert_allclose(found[0], [1 / std, -1 / std], rtol=1e-5)
    np.testing.assert_array_equal(found[1], [0, 0])
    plain = batch_advantages(a.ReinforcePlusPlus(group_baseline=False), rewards)
    np.testing.assert_allclose(plain[0], [1 / std, -1 / std], rtol=1e-5)
    np.testing.assert_allclose(plain[1], [0, 0], atol=1e-12)


def test_rejection_sampling_keeps_all_of_the_best() -> None:
    np.testing.assert_array_equal(a.RejectionSampling().advantages(np.array([1.0, 0.5, 1.0])), [1, 0, 1])
    np.testing.assert_array_equal(
        a.RejectionSampling(threshold=0.5).advantages(np.array([1.0, 0.5, 0.4])), [1, 1, 0]
    )


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([[1, 0, 0, 0], [0, 0, 0, 0]], [[8, 0, 0, 0], [0, 0, 0, 0]]),
        ([[1, 1, 1, 0], [1, 0, 0, 0]], [[2, 2, 2, 0], [2, 0, 0, 0]]),
        ([[1, 1, 1, 1], [0, 0, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]),
    ],
    ids=["one of eight", "four of eight", "none"],
)
def test_rejection_sampling_is_the_mean_over_what_it_imitates_by_hand(
    rewards: list[list[float]], expected: list[list[float]]
) -> None:
    algorithm = a.RejectionSampling()
    found = batch_advantages(algorithm, {n: np.array(group, float) for n, group in enumerate(rewards)})
    np.testing.assert_allclose([found[0], found[1]], expected)
    advantages = np.concatenate(list(found.values()))
    lengths = np.arange(1.0, 9.0)
    credit = (algorithm.weights(lengths) * lengths * advantages).sum()
    assert credit == pytest.approx(1 if advantages.any() else 0), "whatever the acceptance rate"


# --------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (a.GRPO(), [1 / 4, 1 / 12]),
        (a.GSPO(), [1 / 4, 1 / 12]),
        (a.SFT(), [1 / 4, 1 / 12]),
        (a.Distillation(), [1 / 4, 1 / 12]),
        (a.DAPO(), [1 / 8, 1 / 8]),
        (a.CISPO(), [1 / 8, 1 / 8]),
        (a.ReinforcePlusPlus(), [1 / 8, 1 / 8]),
        (a.PPO(), [1 / 8, 1 / 8]),
        (a.DPO(), [1 / 2, 1 / 2]),
        (a.DrGRPO(divisor=10), [1 / 20, 1 / 20]),
        (a.RLOO(), [1 / 2, 1 / 2]),
    ],
)
def test_weights_by_hand(algorithm: Algorithm, expected: list[float]) -> None:
    np.testing.assert_allclose(algorithm.weights(LENGTHS), expected)


# --------------------------------------------------------------------------- losses


def test_the_clipped_ratio_by_hand() -> None:
    seen = tokens([1.5, 0.5, 1.5, 0.5, 1.1], [1.0, 1.0, -1.0, -1.0, 2.0])
    np.testing.assert_allclose(loss(a.GRPO(), seen), [-1.2, -0.5, 1.5, 0.8, -2.2])
    np.testing.assert_allclose(loss(a.DrGRPO(), seen), [-1.2, -0.5, 1.5, 0.8, -2.2])
    np.testing.assert_allclose(loss(a.ReinforcePlusPlus(), seen), [-1.2, -0.5, 1.5, 0.8, -2.2])
    np.testing.assert_allclose(loss(a.DAPO(), seen), [-1.28, -0.5, 1.5, 0.8, -2.2])


def test_rloo_clips_nothing() -> None:
    np.testing.assert_allclose(loss(a.RLOO(), tokens([1.5, 0.5], [2.0, -1.0])), [-3.0, 0.5])


def test_gspo_has_one_ratio_for_a_call_and_clips_it_as_one() -> None:
    seen = tokens([4.0, 1.0, 1.1, 1.0, 1.0], 1.0, calls=[0, 0, 1, 1, 2])
    mild, first = 1.1**0.5, 4.0**0.5  # geometric means
    found = loss(a.GSPO(clip_low=0.2, clip_high=0.2), seen)
    np.testing.assert_allclose(found, [-1.2, -1.2, -mild, -mild, -1.0])
    seen = tokens([4.0, 1.0], -1.0, calls=[0, 0])
    np.testing.assert_allclose(loss(a.GSPO(), seen), [first, first])


def test_cispo_bounds_the_weight_and_keeps_every_tokens_logprob() -> None:
    seen = tokens([8.0, 0.5], [1.0, -1.0])
    np.testing.assert_allclose(loss(a.CISPO(), seen), [-5 * np.log(4.0), 0.5 * np.log(0.25)])


def test_sft_is_the_cross_entropy() -> None:
    seen = tokens([1.5, 0.5], [1.0, 0.0])
    np.testing.assert_allclose(loss(a.SFT(), seen), [-np.log(0.75), 0.0])
    np.testing.assert_allclose(loss(a.RejectionSampling(), seen), [-np.log(0.75), 0.0])


def test_distillation_rewards_what_the_teacher_finds_likelier() -> None:
    seen = tokens([1.0, 1.0, 1.2], 1.0, reference=np.log([1.0, 0.25, 0.5]))
    np.testing.assert_allclose(loss(a.Distillation(), seen), [-np.log(2), np.log(2), 0.0], atol=1e-12)


def gradient(algorithm: Algorithm, ratios: list[float], advantages: list[float], calls: list[int]) -> Any:
    torch = pytest.importorskip("torch")
    count = len(ratios)
    values = {"values": [0.5] * count, "old_values": [0.5] * count, "returns": [0.5] * count}
    seen = tokens(ratios, advantages, calls, reference=np.log([0.3] * count), pairs=calls, **values)
    new = torch.tensor(seen.new, requires_grad=True)
    as_torch = LossTokens(
        new=new,
        old=torch.tensor(seen.old),
        advantages=torch.tensor(np.array(seen.advantages)),
        calls=torch.tensor(seen.calls),
        reference=torch.tensor(seen.reference),
        pairs=torch.tensor(calls),
        **{name: torch.tensor(getattr(seen, name)) for name in values},
    )
    found = algorithm.loss(torch, as_torch)
    np.testing.assert_allclose(found.detach(), loss(algorithm, seen))
    found.sum().backward()
    return new.grad.numpy()


@pytest.mark.parametrize("name", sorted(INSTALLED.keys() - {"sdpo"}))  # its gradients are in test_sdpo.py
def test_torch_and_numpy_agree_and_the_first_step_is_reinforce(name: str) -> None:
    worth = np.array([1.0, -2.0, 0.5])
    expected = -worth * (np.log(0.3) - np.log(0.5)) if name == "distillation" else -worth
    if name == "gspo":
        expected = -np.array([-0.5, -0.5, 0.5])  # the mean over the call of two tokens
    if name == "dpo":  # β σ(-β m), with m = 0 where a chosen token and a rejected one are as likely
        alone = 0.1 / (1 + (0.5 / 0.3) ** 0.1)
        expected = -np.array([1.5 * 0.05, -1.5 * 0.05, 0.5 * alone])
    np.testing.assert_allclose(gradient(INSTALLED[name](), [1.0] * 3, list(worth), [0, 0, 1]), expected)


def test_off_policy_gradients_by_hand() -> None:
    def gradients(algorithm: Algorithm) -> Any:
        return gradient(algorithm, [8.0, 0.5, 1.1], [1.0, 1.0, 1.0], [0, 1, 2])

    np.testing.assert_allclose(gradients(a.GRPO()), [0, -0.5, -1.1], err_msg="clipped tokens drop out")
    np.testing.assert_allclose(gradients(a.CISPO()), [-5, -0.5, -1.1], err_msg="bounded, but all there")
    np.testing.assert_allclose(gradients(a.RLOO()), [-8, -0.5, -1.1])
    pair = gradient(a.GSPO(clip_low=0.5, clip_high=0.5), [1.44, 1.0], [1.0, 1.0], [0, 0])
    np.testing.assert_allclose(pair, [-1.2, -1.2], err_msg="each token moves the ratio of both")


# --------------------------------------------------------------------------- what a job adds


def test_by_default_the_loss_is_the_algorithms_own_and_needs_nothing() -> None:
    whole = objective(a.GRPO(), TrainSettings())
    seen = tokens([1.5, 0.5, 1.1], [1.0, -1.0, 2.0])
    np.testing.assert_array_equal(whole(np, seen), loss(a.GRPO(), seen))
    assert whole.needs == frozenset() and whole.zero_costs_nothing


def test_the_kl_penalty_is_k3() -> None:
    new, reference = np.log([0.5, 0.5, 0.2]), np.log([0.5, 0.25, 0.4])
    expected = [0.0, 0.5 - np.log(0.5) - 1, 2.0 - np.log(2.0) - 1]
    np.testing.assert_allclose(k3(np, new, reference), expected, atol=1e-12)
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose((p * k3(np, np.log(p), np.log(q))).sum(), (p * np.log(p / q)).sum())
    whole = objective(a.GRPO(), TrainSettings(kl=0.1))
    seen = tokens([1.0, 1.0], 0.0, reference=np.log([0.5, 0.25]))
    np.testing.assert_allclose(whole(np, seen), [0.0, 0.1 * expected[1]], atol=1e-12)
    assert whole.needs == {"reference"} and not whole.zero_costs_nothing


def test_the_kl_penalty_of_reinforce_plus_plus_is_k2_by_hand() -> None:
    new, reference = np.log([0.5, 0.5, 0.2]), np.log([0.5, 0.25, 0.4])
    expected = [0.0, np.log(2) ** 2 / 2, np.log(2) ** 2 / 2]
    np.testing.assert_allclose(k2(np, new, reference), expected, atol=1e-12)
    whole = objective(a.ReinforcePlusPlus(), TrainSettings(kl=0.1))
    seen = tokens([1.0, 1.0], 0.0, reference=np.log([0.5, 0.25]))
    np.testing.assert_allclose(whole(np, seen), [0.0, 0.1 * expected[1]], atol=1e-12)


def test_the_expected_gradient_of_k2_is_that_of_the_kl_and_that_of_k3_is_not() -> None:
    torch = pytest.importorskip("torch")
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

    def gradient(loss: Any) -> Any:
        return torch.autograd.grad(loss, logits)[0]

    log_p = torch.log_softmax(logits, 0)
    sampled = log_p.exp().detach()  # tokens are drawn, not differentiated
    true = gradient((log_p.exp() * (log_p - q.log())).sum())
    of_k2 = gradient((sampled * k2(torch, torch.log_softmax(logits, 0), q.log())).sum())
    of_k3 = gradient((sampled * k3(torch, torch.log_softmax(logits, 0), q.log())).sum())
    torch.testing.assert_close(of_k2, true)
    assert not torch.allclose(of_k3, true, rtol=0.05)


def test_the_entropy_bonus_lowers_the_loss() -> None:
    whole = objective(a.GRPO(), TrainSettings(entropy=0.5))
    seen = tokens([1.0, 1.0], [1.0, 0.0], entropy=[0.2, 0.6])
    np.testing.assert_allclose(whole(np, seen), [-1.1, -0.3])
    assert whole.needs == {"entropy"} and not whole.zero_costs_nothing


def test_the_correction_weighs_by_trainer_over_engine_up_to_the_cap_and_moves_the_ratio() -> None:
    whole = objective(a.GRPO(), TrainSettings(correction="truncated"))
    # Sampled with 1/2; the trainer had .6, .9 and .05 before the update, and has .66, 1.8 · .9 and .05 now.
    before = np.log([0.6, 0.9, 0.05])
    seen = tokens([0.66 / 0.5, 1.62 / 0.5, 0.1], [1.0, 1.0, -1.0], before=before)
    np.testing.assert_allclose(whole(np, seen), [-1.2 * 1.1, -1.8 * 1.2, 0.1 * 1.0])
    assert whole.needs == {"before"} and whole.zero_costs_nothing
    far = tokens([9.0], [1.0], before=np.log([3.0]))
    np.testing.assert_allclose(whole(np, far), [-2.0 * 1.2], err_msg="weight 6 is cut to 2")
    wider = objective(a.GRPO(), TrainSettings(correction="truncated", correction_cap=4.0))
    np.testing.assert_allclose(wider(np, far), [-4.0 * 1.2])


def test_the_correction_serves_every_ratio() -> None:
    seen = tokens([1.2, 1.2], 1.0, calls=[0, 0], before=np.log([0.6, 0.6]))
    for algorithm in (a.GRPO(), a.GSPO(), a.RLOO()):
        whole = Objective(algorithm.loss, frozenset({"before"}), cap=2.0)
        np.testing.assert_allclose(whole(np, seen), [-1.2, -1.2], err_msg=algorithm.name)


# --------------------------------------------------------------------------- docs/algorithms.md


PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


def test_the_page_lists_every_algorithm_with_its_paper() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w+]+)` \| (.+?) \|", page, re.MULTILINE))
    assert set(rows) == set(INSTALLED)
    for name, cls in INSTALLED.items():
        papers = set(re.findall(r"\d{4}\.\d{5}", cls.__doc__ or ""))
        assert papers or name == "sft", f"{name} cites no paper"
        assert not papers or papers & set(re.findall(r"\d{4}\.\d{5}", rows[name])), name


def test_the_pages_own_algorithm_works() -> None:
    (code,) = blocks(PAGE.read_text(encoding="utf-8"), "python")
    space: dict[str, Any] = {"ajet": ajet}
    exec(compile(code, "algorithms.md", "exec"), space)
    mine = space["Mine"]()
    np.testing.assert_allclose(mine.advantages(FOUR), [0.75, -0.25, -0.25, -0.25])
    np.testing.assert_allclose(loss(mine, tokens([2.0], 0.5)), [-1.0])
