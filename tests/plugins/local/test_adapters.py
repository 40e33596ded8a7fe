"""LoRA: one adapter for each target over one base, each of which learns as if it were alone."""

import asyncio
import copy
import hashlib
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.learning.algorithms import GRPO, SFT  # noqa: E402
from ajet.learning.settings import LoraSettings  # noqa: E402
from ajet.runs.runtime import adapter_of  # noqa: E402
from ajet.types import AjetError, Batch, ConfigError, GenerateRequest, Sample, Sampling, Span  # noqa: E402
from ajet_local import Local, LocalEnginePlugin  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402
from ajet_lora.adapters import Adapters  # noqa: E402

IDS = np.arange(300, 312, dtype=np.int32)


def sample(adapter, ids=IDS, advantage=1.0, scale=1.0):
    mask = np.arange(len(ids)) >= 4
    on = mask.astype(np.float32)
    return Sample(
        np.array(ids, np.int32),
        mask,
        np.where(mask, -3.0, np.nan).astype(np.float32),
        on * np.float32(advantage),
        on * np.float32(scale / on.sum()),
        (Span(4, len(ids), 0, "agent", adapter or "policy"),),
        f"episode of {adapter}",
        adapter,
    )


def batch(*samples, loss=None, **settings):
    return Batch(samples, loss or SFT().loss, [range(len(samples))], 1e-2, **settings)


def made(model, *names, trained=None, engine_twin=False, **settings):
    adapters = Adapters(model)
    for name in names:
        adapters.add(name, LoraSettings(rank=4), seed=0)
    engine = LocalEngine(model, None, adapters=adapters)
    if engine_twin:
        adapters = adapters.twin()
    return LocalTrainer(adapters.model, None, engine, adapters=adapters, trained=trained, **settings)


def weights(adapters, name):
    return {k: p.detach().clone() for k, p in adapters.model.named_parameters() if f"target-{name}." in k}


def base_weights(model):
    return {k: p.detach().clone() for k, p in model.named_parameters() if "lora_" not in k}


def same(one, other):
    assert one.keys() == other.keys() and one
    return all(torch.equal(one[k], other[k]) for k in one)


def test_a_new_adapter_changes_nothing_and_depends_on_seed_and_name_alone(model):
    ids = torch.arange(300, 320)[None]
    before = model(ids).logits
    adapters = Adapters(model)
    adapters.add("solver", LoraSettings(rank=4), seed=0)
    state = torch.random.get_rng_state()
    adapters.add("twin", LoraSettings(rank=4), seed=0)
    assert torch.equal(state, torch.random.get_rng_state())
    for name in (None, "solver", "twin"):
        adapters.activate(name)
        assert torch.equal(model(ids).logits, before)
    assert not same_values(weights(adapters, "solver"), weights(adapters, "twin"))


def same_values(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


def test_every_linear_layer_but_the_head_is_adapted_unless_modules_are_named(model):
    adapters = Adapters(model)
    adapters.add("all", LoraSettings(rank=2, alpha=3), seed=0)
    adapters.add("some", LoraSettings(rank=5, modules=("q_proj", "mlp.down_proj")), seed=0)
    layers = len(model.model.layers)
    assert len(adapters.parameters("all")) == 2 * 7 * layers
    assert len(adapters.parameters("some")) == 2 * 2 * layers
    assert {p.dtype for p in adapters.parameters("all")} == {torch.float32}
    layer = model.model.layers[0].self_attn.q_proj
    assert layer.scaling == {"target-all": 1.5, "target-some": 2.0}
    with pytest.raises(
        ConfigError, match=r"targets\.bad\.lora\.modules.*'query'; it has down_proj, .*v_proj"
    ):
        adapters.add("bad", LoraSettings(modules=("query",)), seed=0)


def test_adapters_of_a_bfloat16_model_are_float32(model):
    adapters = Adapters(model.to(torch.bfloat16))
    adapters.add("solver", LoraSettings(rank=2), seed=0)
    adapters.activate("solver")
    assert {p.dtype for p in adapters.parameters("solver")} == {torch.float32}
    assert model(torch.arange(300, 310)[None]).logits.dtype == torch.bfloat16


@pytest.mark.whole
def test_each_adapter_moves_only_from_its_own_targets_tokens(model):
    start = base_weights(model)
    trainer = made(model, "solver", "critic")
    before = {name: weights(trainer.adapters, name) for name in ("solver", "critic")}
    metrics = trainer.update(
        batch(sample("solver"), replace(sample("critic"), advantages=np.zeros(12, np.float32)))
    )
    assert (
        metrics["optimizer_steps"] == 1 and metrics["tokens_trained"] == metrics["tokens_zero_advantage"] == 8
    )
    assert not same(before["solver"], weights(trainer.adapters, "solver"))
    assert same(before["critic"], weights(trainer.adapters, "critic"))
    after = weights(trainer.adapters, "solver")
    trainer.update(batch(sample("critic")))
    assert same(after, weights(trainer.adapters, "solver"))  # its momentum rests, too
    assert not same(before["critic"], weights(trainer.adapters, "critic"))
    assert same(start, {k.replace(".base_layer", ""): v for k, v in base_weights(model).items()})


@pytest.mark.whole
def test_an_adapters_step_does_not_depend_on_the_others_samples(model):
    """Their gradients are clipped apart: the critic's is a hundred times the solver's."""
    found = []
    for others in ((), (sample("critic", ids=IDS[::-1], scale=100.0),)):
        trainer = made(copy.deepcopy(model), "solver", "critic", max_grad_norm=0.1)
        for _ in range(2):
            metrics = trainer.update(batch(sample("solver"), *others))
        found.append(weights(trainer.adapters, "solver"))
    assert same(*found)
    assert metrics["grad_norm/critic"] > 20 * metrics["grad_norm/solver"] > 0
    assert metrics["optimizer_steps"] == 2
    assert metrics["loss"] == pytest.approx((metrics["loss/solver"] + metrics["loss/critic"]) / 2)


@pytest.mark.whole
def test_a_frozen_adapter_keeps_its_bytes_and_still_answers(model, tokenizer, tmp_path):
    trainer = made(model, "solver", "critic", trained=["solver"])
    trainer.tokenizer = tokenizer
    for p in trainer.adapters.parameters("critic"):
        torch.nn.init.normal_(p, std=0.1)

    def digests(folder):
        trainer.save(folder)
        files = sorted((folder / "adapters").rglob("*.*"))
        return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}

    before = digests(tmp_path / "before")
    for _ in range(3):
        trainer.update(batch(sample("solver")))
    after = digests(tmp_path / "after")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"adapters/solver/adapter_model.safetensors"} and len(after) == 4
    assert trainer.engine.adapters == ("solver", "critic")
    with pytest.raises(ValueError, match="the adapter 'critic', which this trainer does not train"):
        trainer.update(batch(sample("critic")))


@pytest.mark.whole
def test_a_non_finite_loss_of_one_adapter_spares_both(model):
    trainer = made(model, "solver", "critic")
    before = [weights(trainer.adapters, name) for name in ("solver", "critic")]
    broken = sample("critic", advantage=np.inf)
    with pytest.raises(FloatingPointError, match="episode of critic"):
        trainer.update(batch(sample("solver"), broken))
    assert all(
        same(b, weights(trainer.adapters, n)) for b, n in zip(before, ("solver", "critic"), strict=True)
    )


@pytest.mark.whole
def test_the_engine_answers_each_request_by_its_adapter_as_the_trainer_scores_it(model):
    trainer = made(model, "solver", "critic")
    for number, name in enumerate(("solver", "critic")):
        for p in trainer.adapters.parameters(name):
            torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(number))

    async def scenario():
        engine = trainer.engine
        await engine.start()
        try:
            requests = [
                GenerateRequest(IDS[:6], Sampling(max_tokens=8, seed=5), adapter=a)
                for a in ("solver", "critic", "solver")
            ]
            return await asyncio.gather(*(engine.generate(r) for r in requests))
        finally:
            await engine.close()

    one, other, again = asyncio.run(scenario())
    assert one.token_ids.tolist() == again.token_ids.tolist()
    assert one.logprobs[0] != other.logprobs[0]
    samples = []
    for name, got in (("solver", one), ("critic", other)):
        ids = np.concatenate([IDS[:6], got.token_ids])
        made_ = sample(name, ids)
        made_.mask[:6] = False
        made_.logprobs[6:] = got.logprobs
        samples.append(made_)
    assert 0 < trainer.update(batch(*samples, loss=GRPO().loss))["logprob_diff_max"] < 1e-4


# --------------------------------------------------------------------------- reference, asynchronous runs


@pytest.mark.whole
def test_the_reference_is_the_model_without_an_adapter(model):
    class Recorded:
        def __call__(self, xp, tokens):
            seen.append(tokens.reference.clone())
            return -tokens.new * tokens.advantages + 0.1 * (tokens.new - tokens.reference) ** 2

    seen = []
    base = copy.deepcopy(model)
    trainer = made(model, "solver")
    for _ in range(3):
        metrics = trainer.update(batch(sample("solver"), loss=Recorded(), needs=frozenset({"reference"})))
    ids = torch.as_tensor(IDS, dtype=torch.long)[None]
    expected = torch.log_softmax(base(ids).logits[0, 3:-1], -1).gather(1, ids[0, 4:, None])[:, 0]
    for reference in seen:
        torch.testing.assert_close(reference, expected.detach(), atol=1e-5, rtol=0)
    assert metrics["reference_kl"] > 1e-3


def test_a_twin_shares_the_base_and_nothing_else_until_it_is_published(model):
    trainer = made(model, "solver", engine_twin=True)
    theirs, ours = trainer.engine.model, trainer.model
    assert theirs is not ours and theirs.config is not ours.config
    assert theirs.model.layers[0].self_attn.config is theirs.config
    shared = {id(p) for p in theirs.parameters()} & {id(p) for p in ours.parameters()}
    assert len(shared) == len(base_weights(ours)) == len(base_weights(theirs))
    trainer.adapters.activate("solver")
    assert theirs.model.layers[0].self_attn.q_proj.disable_adapters  # the switch is the twin's own
    before = weights(trainer.engine._adapters, "solver")
    trainer.update(batch(sample("solver")))
    assert same(before, weights(trainer.engine._adapters, "solver"))
    asyncio.run(trainer.publish())
    assert same(weights(trainer.adapters, "solver"), weights(trainer.engine._adapters, "solver"))


@pytest.mark.whole
def test_sampling_beside_an_update_is_not_disturbed(model):
    """One thread trains the solver over and over while another samples as both targets."""
    trainer = made(model, "solver", "critic", engine_twin=True)
    for p in trainer.engine._adapters.parameters("critic"):
        torch.nn.init.normal_(p, std=0.1)

    async def scenario():
        engine = trainer.engine
        await engine.start()

        async def sampled():
            requests = [
                GenerateRequest(IDS[:6], Sampling(max_tokens=12, seed=n), adapter=a)
                for n in range(4)
                for a in ("solver", "critic", None)
            ]
            got = await asyncio.gather(*(engine.generate(r) for r in requests))
            return [(g.token_ids.tolist(), g.logprobs.tolist()) for g in got]

        try:
            alone = await sampled()
            engine.version = 0  # forget what is cached
            update = asyncio.to_thread(
                lambda: [trainer.update(batch(sample("solver"), sample("critic"))) for _ in range(8)]
            )
            beside, _ = await asyncio.gather(sampled(), update)
        finally:
            await engine.close()
        return alone, beside

    alone, beside = asyncio.run(scenario())
    assert [ids for ids, _ in alone] == [ids for ids, _ in beside]
    for (_, one), (_, other) in zip(alone, beside, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


# --------------------------------------------------------------------------- checkpoints


@pytest.fixture
def folder(model, tokenizer, tmp_path):
    """The model as a folder."""
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def from_folder(folder, *names, trained=None, **train):
    from ajet.learning.settings import TrainSettings

    return Local(device="cpu").trainer(
        str(folder),
        TrainSettings(**train),
        seed=0,
        deterministic=False,
        progress=Silent(),
        adapters={name: LoraSettings(rank=4) for name in names},
        trained=trained,
    )


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(torch.as_tensor(ids, dtype=torch.long)[None]).logits


@pytest.mark.whole
def test_a_checkpoint_is_in_pefts_layout(folder, tmp_path):
    trainer = from_folder(folder, "solver", "critic")
    trainer.update(batch(sample("solver"), sample("critic", advantage=-1.0)))
    trainer.save(tmp_path / "saved")
    for name in ("solver", "critic"):
        loaded = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(folder), tmp_path / "saved/adapters" / name
        )
        trainer.adapters.activate(name)
        assert torch.equal(logits(loaded), logits(trainer.model))
    assert not (tmp_path / "saved/model.safetensors").exists()


@pytest.mark.whole
def test_training_goes_on_bit_exactly_after_a_checkpoint(folder, tmp_path):
    steps = [batch(sample("solver"), sample("critic", IDS[::-1])), batch(sample("solver", IDS[::-1]))]
    trainer = from_folder(folder, "solver", "critic")
    trainer.update(steps[0])
    asyncio.run(trainer.publish())
    trainer.save(tmp_path / "saved")
    trainer.update(steps[1])
    other = from_folder(folder, "solver", "critic")
    other.load(tmp_path / "saved")
    assert other.version == 1
    other.update(steps[1])
    for name in ("solver", "critic"):
        assert same(weights(trainer.adapters, name), weights(other.adapters, name))
    with pytest.raises(
        AjetError, match="'solver', the adapter 'critic', but the job trains the adapter 'solver'"
    ):
        from_folder(folder, "solver").load(tmp_path / "saved")


@pytest.mark.whole
def test_a_job_goes_on_from_the_adapters_of_a_checkpoint(folder, tmp_path):
    trainer = from_folder(folder, "solver", "critic")
    trainer.update(batch(sample("solver"), sample("critic", IDS[::-1])))
    trainer.save(tmp_path / "saved")
    further = from_folder(tmp_path / "saved", "solver", "new", trained=["new"])
    assert same(weights(further.adapters, "solver"), weights(trainer.adapters, "solver"))
    assert further.adapters.names == ("solver", "new")
    with pytest.raises(ConfigError, match="but no target of the job with a lora has such a name"):
        from_folder(tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"targets\.solver\.lora\.rank: is 2, but the adapter in .* has 4"):
        Local(device="cpu").load(tmp_path / "saved", 0, {"solver": LoraSettings(rank=2)}, torch.float32)
    with pytest.raises(
        ConfigError, match=r"targets\.solver\.lora\.modules: .* other layers: down_proj, .*v_proj\."
    ):
        settings = LoraSettings(rank=4, modules=("q_proj",))
        Local(device="cpu").load(tmp_path / "saved", 0, {"solver": settings}, torch.float32)


@pytest.mark.parametrize("more", [{"use_rslora": True}, {"rank_pattern": {"q_proj": 2}}])
def test_an_adapter_whose_scale_no_setting_tells_is_not_trained_but_exported_as_peft_computes_it(
    folder, tmp_path, more
):
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], init_lora_weights=False, **more)
    foreign = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    foreign.save_pretrained(tmp_path / "saved")
    with pytest.raises(
        ConfigError, match=rf"targets\.saved\.lora: the adapter in .* has {next(iter(more))}=.*export"
    ):
        Local(device="cpu").load(tmp_path / "saved", 0, {"saved": LoraSettings(rank=4)}, torch.float32)
    Local().export(tmp_path / "saved", tmp_path / "out", None)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(merged), logits(foreign), atol=1e-4, rtol=1e-4)


def test_an_adapter_of_named_modules_goes_on_where_the_job_names_them(folder, tmp_path):
    local = Local(device="cpu")
    settings = {"solver": LoraSettings(rank=4, modules=("q_proj", "mlp.down_proj"))}
    _, _, adapters = local.load(folder, 0, settings, torch.float32)
    adapters.save("solver", tmp_path / "saved")
    _, _, further = local.load(tmp_path / "saved", 0, {"saved": settings["solver"]}, torch.float32)
    assert same_values(weights(further, "saved"), weights(adapters, "solver"))


@pytest.mark.whole
def test_an_engine_elsewhere_gets_the_adapters_alone(folder, tmp_path):
    learning, sampling = (from_folder(folder, "one", "two") for _ in range(2))
    learning.update(batch(sample("one"), sample("two")))
    for name in ("one", "two"):
        learning.adapters.save(name, tmp_path / "sent" / name)
    before = [weights(sampling.adapters, name) for name in ("one", "two")]
    assert asyncio.run(sampling.engine.load_adapters(tmp_path / "sent", 3)) == sampling.engine.version == 3
    for name, old in zip(("one", "two"), before, strict=True):
        assert same(weights(sampling.adapters, name), weights(learning.adapters, name))
        assert not same(weights(sampling.adapters, name), old)


@pytest.mark.whole
def test_export_merges_an_adapter_into_a_whole_model(folder, tmp_path):
    trainer = from_folder(folder, "solver", "critic")
    for _ in range(5):
        trainer.update(batch(sample("solver"), sample("critic", IDS[::-1])))
    trainer.save(tmp_path / "saved")
    Local().export(tmp_path / "saved", tmp_path / "out", "solver")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not any("lora" in name for name in merged.state_dict())
    trainer.adapters.activate("solver")
    torch.testing.assert_close(logits(merged), logits(trainer.model), atol=1e-4, rtol=1e-4)
    assert (logits(merged) - logits(AutoModelForCausalLM.from_pretrained(folder))).abs().max() > 1e-2
    with pytest.raises(ConfigError, match=r"of critic, solver\. Choose one \(--target NAME\)"):
        Local().export(tmp_path / "saved", tmp_path / "other", None)
    with pytest.raises(ConfigError, match="has no adapter 'judge'; it has critic, solver"):
        Local().export(tmp_path / "saved", tmp_path / "other", "judge")
    with pytest.raises(ConfigError, match="already exists"):
        Local().export(tmp_path / "saved", tmp_path / "out", "solver")
    assert not (tmp_path / "other").exists()


@pytest.mark.whole
def test_export_copies_a_whole_model_without_what_belongs_to_training(folder, tmp_path):
    trainer = from_folder(folder)
    trainer.update(batch(sample(None)))
    trainer.save(tmp_path / "saved")
    Local().export(tmp_path / "saved", tmp_path / "out", None)
    assert (tmp_path / "out/model.safetensors").read_bytes() == (
        tmp_path / "saved/model.safetensors"
    ).read_bytes()
    assert (tmp_path / "out/tokenizer.json").is_file() and not (tmp_path / "out/trainer.pt").exists()
    with pytest.raises(ConfigError, match="without adapters"):
        Local().export(tmp_path / "saved", tmp_path / "other", "solver")


def test_a_missing_base_model_is_named(folder, tmp_path):
    trainer = from_folder(folder, "solver")
    trainer.save(tmp_path / "saved")
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(AjetError, match=r"its base model .*base does not exist.*base_model_name_or_path"):
        LocalEnginePlugin(device="cpu").build(str(tmp_path / "saved"), 0, Silent())


def with_those_of_a_checkpoint(folder, saved, *names):
    """The engine of a checkpoint with these adapters."""
    from_folder(folder, *names).save(saved)
    return LocalEnginePlugin(device="cpu").build(str(saved), 0, Silent())


@pytest.mark.whole
def test_a_target_is_answered_by_the_only_adapter_or_by_none_if_there_is_none(folder, tmp_path):
    engine = with_those_of_a_checkpoint(folder, tmp_path / "saved", "solver")
    assert adapter_of("policy", engine, named=False) == "solver"
    engine = LocalEnginePlugin(device="cpu").build(str(folder), 0, Silent())
    assert adapter_of("policy", engine, named=False) is adapter_of("solver", engine, named=True) is None


@pytest.mark.whole
def test_of_several_adapters_a_target_is_answered_by_its_own_and_it_is_an_error_if_that_is_not_clear(
    folder, tmp_path
):
    engine = with_those_of_a_checkpoint(folder, tmp_path / "saved", "solver", "critic")
    assert adapter_of("critic", engine, named=True) == "critic"
    for target, named in (("policy", False), ("judge", True)):
        with pytest.raises(ConfigError, match="contains the adapters of critic, solver"):
            adapter_of(target, engine, named=named)
