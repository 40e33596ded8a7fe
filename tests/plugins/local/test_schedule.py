"""The learning rates of `TrainSettings.rate_at` are those of transformers' `get_scheduler`."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import get_scheduler  # noqa: E402

from ajet.learning.settings import TrainSettings  # noqa: E402
from ajet.types import Batch, Sample, Span  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.modeling import load_model  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402
from tests.tiers import fast  # noqa: E402

PEAK = 3e-4


def settings(schedule, steps=12, warmup=0, share=None):
    return TrainSettings(
        learning_rate=PEAK, schedule=schedule, steps=steps, warmup_steps=warmup, final_share=share
    )


def scheduler(train):
    """transformers' scheduler for these settings, on an optimizer without anything to train.

    Its first rate is 0 where it warms up; AgentJet's first step has the second rate, as a step at rate 0 learns nothing. Without a
    warm-up, AgentJet's first step has the full rate and its last one the final share, as after a warm-up of one step.
    """
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    name, options = {
        "constant": ("constant_with_warmup", None),
        "linear": ("polynomial", {"lr_end": train.last_share * PEAK, "power": 1.0}),
        "cosine": ("cosine_with_min_lr", {"min_lr_rate": train.last_share}),
    }[train.schedule]
    if train.schedule == "linear" and not train.last_share:
        name, options = "linear", None
    return get_scheduler(name, optimizer, max(train.warmup_steps, 1), train.steps, options)


def expected_rates(train):
    of_transformers = scheduler(train)
    for _ in range(train.steps):
        of_transformers.optimizer.step()
        of_transformers.step()
        yield of_transformers.get_last_lr()[0]


@pytest.mark.parametrize("warmup", [0, 1, 4])
@pytest.mark.parametrize(
    ("schedule", "share"),
    [("constant", None), *itertools.product(["linear", "cosine"], [None, 0.0, 0.3])],
)
def test_rates_are_those_of_transformers_get_scheduler(schedule, share, warmup):
    train = settings(schedule, warmup=warmup, share=share)
    rates = [train.rate_at(step) for step in range(1, train.steps + 1)]
    np.testing.assert_allclose(rates, [*expected_rates(train)], rtol=1e-12, atol=1e-18)
    assert len(set(rates)) > 1 or (schedule, warmup) in {("constant", 0), ("constant", 1)}


def batch(rate):
    ids = np.array([300, 5, 6, 7], dtype=np.int32)
    ones, mask = np.ones(4, dtype=np.float32), np.arange(4) >= 2
    sample = Sample(ids, mask, np.full(4, np.nan, np.float32), ones, ones, (Span(2, 4, 0, "a", "t"),))
    return Batch([sample], lambda xp, tokens: -tokens.new, [range(1)], rate)


def recorded(trainer):
    """The learning rates of the trainer's optimizer steps, from now on."""
    rates = []
    (learner,) = trainer._learners.values()
    learner.optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.extend(group["lr"] for group in optimizer.param_groups)
    )
    return rates


@pytest.mark.whole
@pytest.mark.parametrize("schedule", fast({2}, ["constant", "linear", "cosine"]))
def test_a_resumed_trainer_steps_at_the_rates_of_an_uninterrupted_scheduler(
    schedule, model, tokenizer, engine, tmp_path
):
    train = settings(schedule, steps=7, warmup=2)
    first = LocalTrainer(model, tokenizer, engine)
    before = recorded(first)
    for step in range(1, 4):
        first.update(batch(train.rate_at(step)))
    first.save(tmp_path / "saved")

    loaded, tokenizer = load_model(tmp_path / "saved", "cpu")
    second = LocalTrainer(loaded, tokenizer, LocalEngine(loaded, tokenizer))
    second.load(tmp_path / "saved")
    after = recorded(second)
    for step in range(4, 8):
        second.update(batch(train.rate_at(step)))
    np.testing.assert_allclose([*before, *after], [*expected_rates(train)], rtol=1e-12)
