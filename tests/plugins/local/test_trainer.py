"""What the local trainer promises, beyond the protocol in `ajet.interfaces.backbone`."""

import asyncio
import errno
import resource
import signal
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ajet.interfaces.backbone import CheckpointDamaged  # noqa: E402
from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.job.models import generation_config  # noqa: E402
from ajet.learning.settings import TrainSettings  # noqa: E402
from ajet.types import AjetError, Batch, GenerateRequest, Sample, Sampling, Span  # noqa: E402
from ajet_local import Local  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.export import export  # noqa: E402
from ajet_local.modeling import load_model  # noqa: E402
from ajet_local.rows import micro_batches, trained_tokens  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402


def clipped(xp, tokens):
    ratio = xp.exp(tokens.new - tokens.old)
    return -xp.minimum(ratio * tokens.advantages, xp.clip(ratio, 0.8, 1.2) * tokens.advantages)


def negative_log_likelihood(xp, tokens):
    return -tokens.new * tokens.advantages


def make_sample(ids, start, advantage=1.0, temperature=1.0, old=np.nan):
    """Tokens from ``start`` on are trained, each with weight 1/T."""
    length = len(ids)
    mask = np.arange(length) >= start
    return Sample(
        token_ids=np.array(ids, dtype=np.int32),
        mask=mask,
        logprobs=np.where(mask, old, np.nan).astype(np.float32),
        advantages=np.full(length, advantage, dtype=np.float32),
        weights=np.full(length, 1 / (length - start), dtype=np.float32),
        spans=(Span(start, length, 0, "agent", "default", temperature),),
        episode=f"episode-{ids[-1]}",
    )


SAMPLES = [
    make_sample([300, 1, 2, 3, 40, 41, 42], start=4, advantage=1.0),
    make_sample([300, 1, 2, 3, 7, 8, 50, 51], start=6, advantage=-0.5),
    make_sample([300, 1, 2, 3, 60], start=4, advantage=2.0),
    make_sample([300, 1, 2, 3, 7, 8, 9, 10, 11, 12, 70, 71], start=10, advantage=-1.0),
]


def batch(samples, mini_batches=None, loss=negative_log_likelihood, learning_rate=1e-3):
    return Batch(samples, loss, mini_batches or [range(len(samples))], learning_rate)


@pytest.fixture
def trainer(model, tokenizer, engine):
    return LocalTrainer(model, tokenizer, engine)


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def gradients(model, micro_batches_of_samples):
    model.zero_grad(set_to_none=True)
    for samples in micro_batches_of_samples:
        tokens = trained_tokens(model, samples)
        (tokens.weights * -tokens.new * tokens.advantages).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.whole
def test_new_logprobs_are_those_the_engine_recorded_at_the_temperature(trainer, running):
    async def scenario(engine):
        samples = []
        for seed, temperature in enumerate((1.0, 0.6, 1.5)):
            prompt = np.array([300, 5, 6 + seed], dtype=np.int32)
            sampling = Sampling(temperature=temperature, max_tokens=10, seed=seed)
            got = await engine.generate(GenerateRequest(prompt, sampling))
            sample = make_sample([*prompt, *got.token_ids], start=3, temperature=temperature)
            sample.logprobs[3:] = got.logprobs
            samples.append(sample)
        tokens = trained_tokens(engine.model, samples)
        np.testing.assert_allclose(tokens.new.detach(), tokens.old, atol=1e-4)
        metrics = trainer.update(batch(samples, loss=clipped))
        assert 0 < metrics["logprob_diff_max"] < 1e-4

    running(scenario)


def test_padding_prefix_sharing_and_micro_batching_do_not_change_gradients(model):
    alone = gradients(model, [[s] for s in SAMPLES])
    for split in ([SAMPLES], [SAMPLES[:2], SAMPLES[2:]], micro_batches(SAMPLES, 16)):
        together = gradients(model, split)
        for name in alone:
            torch.testing.assert_close(together[name], alone[name], atol=1e-5, rtol=1e-4)


def test_micro_batches_hold_every_sample_once_within_the_limit():
    groups = micro_batches(SAMPLES, 16)
    assert sorted(s.episode for g in groups for s in g) == sorted(s.episode for s in SAMPLES)
    assert all(len(g) == 1 or len(g) * max(len(s.token_ids) for s in g) <= 16 for g in groups)
    assert [len(g) for g in micro_batches(SAMPLES, 1)] == [1, 1, 1, 1]


@pytest.mark.whole
def test_the_micro_batch_size_does_not_change_the_update(model, tokenizer, engine):
    start = {name: value.clone() for name, value in model.state_dict().items()}
    results = []
    for limit in (12, 10_000):
        model.load_state_dict(start)
        trainer = LocalTrainer(model, tokenizer, engine, micro_batch_tokens=limit)
        results.append((trainer.update(batch(SAMPLES)), weights(trainer)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    for name, value in results[0][1].items():
        torch.testing.assert_close(value, results[1][1][name], atol=5e-5, rtol=0)


@pytest.mark.whole
def test_supervised_training_learns_its_samples(trainer):
    losses = [trainer.update(batch([replace(s, advantages=abs(s.advantages)) for s in SAMPLES]))["loss"]]
    losses += [trainer.update(batch(SAMPLES[:1]))["loss"] for _ in range(30)]
    assert losses[-1] < 0.2 * losses[1]


def test_reinforcement_raises_what_has_positive_advantage_and_lowers_the_rest(trainer):
    before = trained_tokens(trainer.model, SAMPLES[:2])
    old = before.new.detach().numpy()
    good = replace(SAMPLES[0], logprobs=np.full(7, old[0], np.float32), advantages=np.ones(7, np.float32))
    bad = replace(SAMPLES[1], logprobs=np.full(8, old[3], np.float32), advantages=-np.ones(8, np.float32))
    good.logprobs[4:], bad.logprobs[6:] = old[:3], old[3:]
    trainer.update(batch([good, bad], loss=clipped, learning_rate=1e-4))
    change = trained_tokens(trainer.model, [good, bad]).new.detach().numpy() - old
    assert change[:3].sum() > 0 > change[3:].sum()


def test_one_optimizer_step_per_mini_batch(trainer):
    metrics = trainer.update(batch(SAMPLES, [[0, 1], [2], [3]]))
    assert metrics["optimizer_steps"] == 3


def test_zero_advantages_leave_the_weights_bit_equal_even_under_momentum(trainer):
    trainer.update(batch(SAMPLES))
    before = weights(trainer)
    metrics = trainer.update(
        batch([replace(s, advantages=0 * s.advantages) for s in SAMPLES], [[0, 1], [2, 3]])
    )
    assert equal(before, weights(trainer))
    assert metrics["optimizer_steps"] == 0 and metrics["tokens_trained"] == 0


def test_a_mini_batch_without_a_trained_token_takes_no_step_whatever_the_loss(trainer):
    before = weights(trainer)
    untrained = replace(SAMPLES[0], mask=np.zeros_like(SAMPLES[0].mask))
    metrics = trainer.update(replace(batch([untrained]), zero_costs_nothing=False))
    assert metrics["optimizer_steps"] == 0 and equal(before, trainer.model.state_dict())


@pytest.mark.whole
def test_samples_without_credit_are_skipped_and_counted(trainer, model, tokenizer):
    zero = replace(SAMPLES[3], advantages=0 * SAMPLES[3].advantages)
    start = weights(trainer)
    metrics = trainer.update(batch([*SAMPLES[:3], zero]))
    with_zero = weights(trainer)
    model.load_state_dict(start)
    LocalTrainer(model, tokenizer, trainer.engine).update(batch(SAMPLES[:3]))
    assert equal(with_zero, model.state_dict())
    masked = sum(int(s.mask.sum()) for s in SAMPLES)
    assert metrics["tokens_trained"] + metrics["tokens_zero_advantage"] == masked
    assert metrics["tokens_zero_advantage"] == 2


def test_a_non_finite_loss_names_its_place_and_spares_the_weights(trainer):
    broken = replace(SAMPLES[1], advantages=SAMPLES[1].advantages.copy())
    broken.advantages[7] = np.inf
    before = weights(trainer)
    with pytest.raises(FloatingPointError, match=r"mini-batch 1 of 1, episode 'episode-51', token 7 of 8"):
        trainer.update(batch([SAMPLES[0], broken]))
    assert equal(before, weights(trainer))


def test_publish_raises_the_engines_version(trainer):
    assert trainer.version == 0
    assert asyncio.run(trainer.publish()) == 1
    assert trainer.version == trainer.engine.version == 1


@pytest.mark.kept
def test_save_and_load_are_bit_exact_and_training_continues_equally(trainer, tokenizer, tmp_path):
    trainer.update(batch(SAMPLES))
    asyncio.run(trainer.publish())
    trainer.save(tmp_path / "saved")
    at_save = weights(trainer)
    trainer.update(batch(SAMPLES[:2]))
    expected = weights(trainer)

    fresh, loaded_tokenizer = load_model(tmp_path / "saved", "cpu")
    other = LocalTrainer(fresh, loaded_tokenizer, LocalEngine(fresh, loaded_tokenizer))
    with torch.no_grad():
        next(fresh.parameters()).zero_()
    other.load(tmp_path / "saved")
    assert equal(at_save, weights(other)) and other.version == 1
    assert loaded_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert generation_config(loaded_tokenizer.name_or_path), "which names tokens that end an answer"
    other.update(batch(SAMPLES[:2]))
    assert equal(expected, weights(other))


def test_a_resumed_run_has_the_settings_that_its_job_says_now(trainer, tmp_path):
    trainer.update(batch(SAMPLES))
    trainer.save(tmp_path / "saved")
    model, tokenizer = load_model(tmp_path / "saved", "cpu")
    other = LocalTrainer(
        model, tokenizer, LocalEngine(model, tokenizer), weight_decay=0.5, adam_epsilon=1e-4, betas=(0.8, 0.9)
    )
    other.load(tmp_path / "saved")
    (group,) = other._learners[None].optimizer.param_groups
    assert (group["weight_decay"], group["eps"], group["betas"]) == (0.5, 1e-4, (0.8, 0.9))


def test_loading_a_folder_that_is_no_checkpoint_says_so(trainer, tmp_path):
    with pytest.raises(AjetError, match=r"trainer\.pt"):
        trainer.load(tmp_path)


def garbled(file):
    """A file of the same size whose contents cannot be read."""
    file.write_bytes(b"\xff" * file.stat().st_size)


@pytest.mark.parametrize("name", ["trainer.pt", "model.safetensors", "config.json"])
def test_a_damaged_file_of_a_checkpoint_is_named(trainer, tmp_path, name):
    trainer.save(tmp_path / "saved")
    garbled(tmp_path / "saved" / name)
    with pytest.raises(CheckpointDamaged, match="saved"):
        trainer.load(tmp_path / "saved")


def test_a_checkpoint_of_another_model_is_not_called_damaged(trainer, tmp_path):
    trainer.save(tmp_path / "saved")
    state = torch.load(tmp_path / "saved" / "trainer.pt")
    torch.save({**state, "optimizers": {"solver": {}}}, tmp_path / "saved" / "trainer.pt")
    with pytest.raises(AjetError, match="contains the training of the adapter 'solver'") as refused:
        trainer.load(tmp_path / "saved")
    assert not isinstance(refused.value, CheckpointDamaged)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt"])
def test_a_refusal_of_the_disk_is_an_error_of_the_system_whatever_library_writes(trainer, tmp_path, name):
    trainer.update(batch(SAMPLES))
    trainer.save(tmp_path / "small enough")
    size = (tmp_path / "small enough" / name).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, before[1]))
    try:
        with pytest.raises(OSError) as refused:
            trainer.save(tmp_path / "saved")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert refused.value.errno == errno.EFBIG
    assert (tmp_path / "saved" / "model.safetensors").exists() == (name == "trainer.pt")


def test_a_model_folder_says_what_it_lacks(trainer, tmp_path):
    with pytest.raises(AjetError, match="no such folder"):
        load_model(tmp_path / "missing", "cpu")
    with pytest.raises(AjetError, match=r"no config\.json"):
        load_model(tmp_path, "cpu")
    trainer.model.save_pretrained(tmp_path)
    with pytest.raises(AjetError, match="no tokenizer") as caught:
        load_model(tmp_path, "cpu")
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    trainer.tokenizer.save_pretrained(tmp_path)
    load_model(tmp_path, "cpu")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(AjetError, match="no weights"):
        load_model(tmp_path, "cpu")


# --------------------------------------------------------------------------- bfloat16


@pytest.mark.whole
def test_bfloat16_trains_float32_weights_and_samples_from_a_copy(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    updates = {}
    for dtype in ("float32", "bfloat16"):
        made = Local(device="cpu", dtype=dtype).trainer(
            str(tmp_path / "model"),
            TrainSettings(kl=0.1, adam_epsilon=1.0),
            seed=0,
            deterministic=False,
            progress=Silent(),
        )
        before = weights(made)
        assert {p.dtype for p in made.model.parameters()} == {torch.float32}
        loss = batch(SAMPLES, loss=negative_log_likelihood, learning_rate=4.0)
        metrics = made.update(replace(loss, needs=frozenset({"reference"})))
        assert np.isfinite(metrics["loss"]) and metrics["optimizer_steps"] == 1
        asyncio.run(made.publish())
        sampled = made.engine.model
        assert {p.dtype for p in sampled.parameters()} == {getattr(torch, dtype)}
        for theirs, ours in zip(sampled.parameters(), made.model.parameters(), strict=True):
            torch.testing.assert_close(theirs, ours.to(theirs.dtype), atol=0, rtol=0)
        updates[dtype] = torch.cat([(p - before[n]).flatten() for n, p in weights(made).items()])
    difference = (updates["bfloat16"] - updates["float32"]).norm() / updates["float32"].norm()
    assert 0 < difference < 0.1


@pytest.mark.whole
def test_positions_of_the_sampled_copy_are_not_rounded(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    made = Local(device="cpu", dtype="bfloat16").trainer(
        str(tmp_path), TrainSettings(kl=0.1), seed=0, deterministic=False, progress=Silent()
    )
    exact = dict(made.model.named_buffers())
    assert exact
    for copied in (made.engine.model, made.reference):
        assert {p.dtype for p in copied.parameters()} == {torch.bfloat16}
        for name, buffer in copied.named_buffers():
            assert torch.equal(buffer, exact[name]) and buffer.dtype == exact[name].dtype, name


@pytest.mark.whole
def test_bfloat16_samples_and_trains_by_trees_and_rows_alike(model, tokenizer, tmp_path, monkeypatch):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    losses = []
    for blocks in (-1e12, 1e12):
        monkeypatch.setattr("ajet_trees.cost.BLOCK_FLOPS", blocks)
        made = Local(device="cpu", dtype="bfloat16").trainer(
            str(tmp_path / "model"), TrainSettings(), seed=0, deterministic=False, progress=Silent()
        )

        async def scenario(engine=made.engine):
            await engine.start()
            request = GenerateRequest(np.array([300, 5, 6], np.int32), Sampling(max_tokens=5, seed=1))
            try:
                return await engine.generate(request)
            finally:
                await engine.close()

        assert len(asyncio.run(scenario()).token_ids)
        losses.append(made.update(batch(SAMPLES))["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_an_export_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AjetError, match=r"^output .*file/out: its folder cannot be created"):
        export(tmp_path / "checkpoint", tmp_path / "file" / "out", None)
