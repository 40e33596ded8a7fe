"""What bfloat16 holds of weights follows updates that are smaller than the distance of its numbers."""

from __future__ import annotations

import copy

import pytest
import torch

from ajet_local.optimizers import show_small_updates

RATE = 3e-5
"""An eighth of half the distance between neighbours of a weight in [0.0625, 0.125), which is 2⁻¹² ≈ 2.4e-4."""
SHAPE = (96, 128)


def learner(moves: bool = True) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """Weights that bfloat16 holds, as those of a checkpoint, and their optimizer."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter((0.0625 + 0.06 * torch.rand(SHAPE)).to(torch.bfloat16).float())
    optimizer = torch.optim.AdamW([weight], lr=RATE, weight_decay=0.0)
    if moves:
        show_small_updates(optimizer, [weight])
    return weight, optimizer


def step(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, sign: float = -1.0) -> torch.Tensor:
    """One step of the rate, upwards by default; the weights after it."""
    weight.grad = torch.full(SHAPE, sign)
    optimizer.step()
    return weight.detach().clone()


def shown(weight: torch.Tensor) -> torch.Tensor:
    """What bfloat16 holds of it, as float32."""
    return weight.bfloat16().float()


def test_a_step_that_rounding_to_the_nearest_would_lose_moves_the_policy() -> None:
    plain, plain_optimizer = learner(moves=False)
    before = plain.detach().clone()
    assert torch.equal(shown(step(plain, plain_optimizer)), before)  # lost
    weight, optimizer = learner()
    for steps in range(1, 6):
        moved = (shown(step(weight, optimizer)) - before).mean().item()
        assert moved == pytest.approx(steps * RATE, rel=0.1)


def test_the_policy_is_never_further_from_the_exact_weights_than_the_neighbours_in_bfloat16() -> None:
    weight, optimizer = learner()
    plain, plain_optimizer = learner(moves=False)
    for number in range(40):
        sign = -1.0 if number % 5 else 1.0
        policy, exact = shown(step(weight, optimizer, sign)), step(plain, plain_optimizer, sign)
        assert (policy - exact).abs().max() < 2**-10  # the distance in [0.125, 0.25); the noise does not grow


def test_the_optimizer_has_the_exact_weights() -> None:
    """A step without a change gives back what there was, bit by bit."""
    weight, optimizer = learner()
    plain, plain_optimizer = learner(moves=False)
    for sign in (-1.0, 1.0, 1.0, -1.0, -1.0):
        away, exact = step(weight, optimizer, sign), step(plain, plain_optimizer, sign)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    seen: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(weight.detach().clone()))
    assert torch.equal(step(weight, optimizer), away)
    assert torch.equal(seen[0], exact)


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_the_first_step_moves_nothing_that_it_does_not_train_also_in_runs_from_checkpoints(runs: int) -> None:
    weight, _ = learner()
    before = weight.detach().clone()
    for _ in range(runs):
        optimizer = torch.optim.AdamW([weight], lr=0.0)
        show_small_updates(optimizer, [weight])
        assert torch.equal(shown(step(weight, optimizer)), before)


def test_a_resumed_optimizer_goes_on_with_the_same_bits_also_from_one_that_moved_nothing() -> None:
    for moves in (True, False):
        weight, optimizer = learner(moves)
        for _ in range(3):
            step(weight, optimizer)
        again, resumed = learner()
        with torch.no_grad():
            again.copy_(weight)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if not moves:
            show_small_updates(optimizer, [weight])
        for _ in range(3):
            assert torch.equal(step(weight, optimizer), step(again, resumed))


@pytest.mark.parametrize("shape", [(), (7,), (3, 1), (2, 3, 5)])
def test_weights_of_every_shape_move_negative_ones_like_positive_ones_and_zero_stays(
    shape: tuple[int, ...],
) -> None:
    found = []
    for start in (0.1, -0.1, 0.0, -0.0):
        weight = torch.nn.Parameter(torch.full(shape, start).bfloat16().float())
        optimizer = torch.optim.AdamW([weight], lr=RATE if start else 0.0, weight_decay=0.0)
        show_small_updates(optimizer, [weight])
        for _ in range(4):
            weight.grad = torch.full(shape, -start)
            optimizer.step()
        found.append(weight.detach())
    assert torch.equal(found[0], -found[1])
    assert torch.equal(found[2], torch.zeros(shape)) and torch.equal(found[3], torch.zeros(shape))
