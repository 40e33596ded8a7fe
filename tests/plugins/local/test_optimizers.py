"""AdamW with moments of 8 bits: it learns as AdamW does, with a quarter of the memory, and goes on after a checkpoint."""

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ajet.estimate.layout import ModelSizes  # noqa: E402
from ajet.learning.algorithms import SFT  # noqa: E402
from ajet.types import AjetError, Batch, Sample, Span  # noqa: E402
from ajet_local import quantization  # noqa: E402
from ajet_local.demand import Demand, refuse  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.memory import shape_of_model  # noqa: E402
from ajet_local.modeling import load_model  # noqa: E402
from ajet_local.optimizers import make_optimizer  # noqa: E402
from ajet_local.trainer import STATE_FILE, LocalTrainer  # noqa: E402

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")


def trainer(model, tokenizer=None, optimizer="adamw_8bit"):
    return LocalTrainer(model, tokenizer, LocalEngine(model, tokenizer), optimizer=optimizer)


def batch(*starts, learning_rate=1e-3):
    """Sequences of 12 tokens to learn by heart."""
    on = (np.arange(12) >= 1).astype(np.float32)
    samples = [
        Sample(
            np.arange(start, start + 12, dtype=np.int32),
            on > 0,
            on,
            on,
            on / 11 / len(starts),
            (Span(1, 12, 0, "agent", "policy"),),
        )
        for start in starts
    ]
    return Batch(samples, SFT().loss, [range(len(samples))], learning_rate)


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.whole
def test_it_learns_as_adamw_does(model):
    losses = {
        name: [trainer.update(batch(1, 40))["loss"] for _ in range(12)]
        for name, trainer in (
            ("adamw", trainer(model, optimizer="adamw")),
            ("adamw_8bit", trainer(copy.deepcopy(model))),
        )
    }
    assert losses["adamw"][0] == losses["adamw_8bit"][0]
    assert losses["adamw_8bit"][-1] < losses["adamw_8bit"][0] / 2
    assert losses["adamw_8bit"] == pytest.approx(losses["adamw"], rel=0.1)


def test_its_moments_take_what_the_estimate_says(model):
    groups = [{"params": list(model.parameters())}]
    optimizer = make_optimizer("adamw_8bit", groups, betas=(0.9, 0.999), weight_decay=0.0, epsilon=1e-8)
    model(torch.arange(9)[None]).logits.sum().backward()
    optimizer.step()
    measured = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for name, value in state.items()
        if name in ("state1", "state2", "absmax1", "absmax2")
    )
    sizes = ModelSizes(shape=shape_of_model(model), adapters={}, trained=[])
    plain, eight_bits = (Demand.of(sizes, 4, eight_bits=some).training.moments for some in (False, True))
    assert measured == pytest.approx(eight_bits, rel=0.05)
    assert eight_bits == pytest.approx(plain / 4, rel=0.02)


@pytest.mark.whole
def test_training_goes_on_bit_exactly_after_a_checkpoint(model, tokenizer, tmp_path):
    first = trainer(model, tokenizer)
    first.update(batch(1, 40))
    first.save(tmp_path / "saved")
    first.update(batch(2, 50))
    second = trainer(load_model(tmp_path / "saved", "cpu")[0], tokenizer)
    second.load(tmp_path / "saved")
    second.update(batch(2, 50))
    expected = weights(first)
    assert all(torch.equal(value, expected[name]) for name, value in weights(second).items())


@pytest.mark.whole
def test_a_checkpoint_of_another_optimizer_is_refused(model, tokenizer, tmp_path):
    trainer(model, tokenizer, "adamw").save(tmp_path)
    with pytest.raises(AjetError, match=r"contains the state of adamw, but the job sets .*: adamw_8bit"):
        trainer(model, tokenizer).load(tmp_path)
    state = torch.load(tmp_path / STATE_FILE, weights_only=True)
    torch.save({k: v for k, v in state.items() if k != "optimizer"}, tmp_path / STATE_FILE)
    trainer(model, tokenizer, "adamw").load(tmp_path)  # written before there was a choice


def test_without_bitsandbytes_the_error_says_how_to_install_it(model, monkeypatch):
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    with pytest.raises(AjetError, match=r"^backbone\.local\.optimizer: needs bitsandbytes: pip install"):
        trainer(model)


def test_it_is_advised_where_it_makes_a_job_fit(model):
    sizes = ModelSizes(shape=shape_of_model(model), adapters={}, trained=[])
    demand = replace(Demand.of(sizes, 4).checkpointed(True), tokens=256)
    limit = demand.total - demand.training.moments // 2
    assert "optimizer: adamw_8bit" in str(refuse(demand, limit, "memory_limit"))
