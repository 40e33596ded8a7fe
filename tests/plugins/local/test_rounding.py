"""Weights that bfloat16 holds at each moment follow updates that are smaller than the distance of its numbers."""

from __future__ import annotations

import copy

import pytest
import torch

from ajet_local.rounding import round_after_steps

RATE = 3e-5
"""Below a fifth of half the distance between neighbours of a weight in [0.0625, 0.125): 2⁻¹² ≈ 2.4e-4."""
SHAPE = (96, 128)


def learner(rounds: bool = True) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """Weights that bfloat16 holds, as those of a checkpoint, and their optimizer."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter((0.0625 + 0.06 * torch.rand(SHAPE)).to(torch.bfloat16).float())
    optimizer = torch.optim.AdamW([weight], lr=RATE, weight_decay=0.0)
    if rounds:
        round_after_steps(optimizer, [weight])
    return weight, optimizer


def step(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, sign: float = -1.0) -> torch.Tensor:
    """One step of the rate, upwards by default; the weights after it."""
    weight.grad = torch.full(SHAPE, sign)
    optimizer.step()
    return weight.detach().clone()


def test_a_step_that_rounding_to_the_nearest_would_lose_moves_the_policy() -> None:
    plain, plain_optimizer = learner(rounds=False)
    before = plain.detach().clone()
    assert torch.equal(step(plain, plain_optimizer).bfloat16().float(), before)  # lost
    weight, optimizer = learner()
    for steps in range(1, 6):
        moved = (step(weight, optimizer) - before).mean().item()
        assert moved == pytest.approx(steps * RATE, rel=0.1)


def test_after_each_step_bfloat16_holds_the_weights_exactly_and_none_is_further_than_its_neighbour() -> None:
    weight, optimizer = learner()
    plain, plain_optimizer = learner(rounds=False)
    for number in range(40):
        sign = -1.0 if number % 5 else 1.0
        rounded, exact = step(weight, optimizer, sign), step(plain, plain_optimizer, sign)
        assert torch.equal(rounded, rounded.bfloat16().float())
        assert (
            rounded - exact
        ).abs().max() < 2**-10  # the distance in [0.125, 0.25); the noise does not grow


def test_the_optimizer_has_the_exact_weights() -> None:
    """A step without a change gives them back, and one that would be lost in their sum is not."""
    weight, optimizer = learner()
    plain, plain_optimizer = learner(rounds=False)
    for sign in (-1.0, 1.0, 1.0, -1.0, -1.0):
        away, exact = step(weight, optimizer, sign), step(plain, plain_optimizer, sign)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    seen: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(weight.detach().clone()))
    assert torch.equal(step(weight, optimizer), away)
    assert torch.equal(seen[0], exact)


def test_a_resumed_optimizer_goes_on_with_the_same_bits() -> None:
    weight, optimizer = learner()
    for _ in range(3):
        step(weight, optimizer)
    again, resumed = learner()
    with torch.no_grad():
        again.copy_(weight)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        assert torch.equal(step(weight, optimizer), step(again, resumed))


@pytest.mark.parametrize("shape", [(), (7,), (3, 1), (2, 3, 5)])
def test_every_shape_of_weights_is_rounded_and_negative_ones_like_positive_ones(
    shape: tuple[int, ...],
) -> None:
    found = []
    for sign in (1.0, -1.0):
        weight = torch.nn.Parameter(torch.full(shape, sign * 0.1).bfloat16().float())
        optimizer = torch.optim.AdamW([weight], lr=RATE, weight_decay=0.0)
        round_after_steps(optimizer, [weight])
        for _ in range(4):
            weight.grad = torch.full(shape, -sign)
            optimizer.step()
        assert not shape or torch.equal(weight, weight.bfloat16().float())
        found.append(weight.detach())
    assert torch.equal(found[0], -found[1])
