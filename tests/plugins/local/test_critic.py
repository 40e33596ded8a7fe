"""The critic of the local trainer: values, advantages from them, checkpoints; and pairs that stay together."""

import asyncio
import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.learning.algorithms import DPO, PPO  # noqa: E402
from ajet.learning.critic import estimated  # noqa: E402
from ajet.learning.objective import objective  # noqa: E402
from ajet.learning.pairs import paired  # noqa: E402
from ajet.learning.settings import LoraSettings, TrainSettings  # noqa: E402
from ajet.types import AjetError, Batch, ConfigError, Sample, Span  # noqa: E402
from ajet_local import Local  # noqa: E402
from ajet_local.critic import ValueHead  # noqa: E402
from ajet_local.export import export  # noqa: E402
from ajet_local.plan import plan, score, values  # noqa: E402
from ajet_local.rows import trained_tokens  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402
from tests.tiers import fast  # noqa: E402


def sample(ids, start, reward, weight=1 / 11, adapter=None):
    mask = np.arange(len(ids)) >= start
    on = mask.astype(np.float32)
    return Sample(
        token_ids=np.array(ids, np.int32),
        mask=mask,
        logprobs=np.where(mask, -2.0, np.nan).astype(np.float32),
        advantages=on * np.float32(reward),
        weights=on * np.float32(weight),
        spans=(Span(start, len(ids), 0, "agent", "policy"),),
        episode=f"episode-{ids[-1]}",
        adapter=adapter,
    )


SAMPLES = [
    sample([300, 1, 2, 3, 40, 41, 42], 4, 1.0),
    sample([300, 1, 2, 3, 7, 8, 50, 51], 6, 0.0),
    sample([300, 1, 5, 60, 61, 62], 3, 1.0),
    sample([300, 1, 5, 9, 70, 71, 72], 4, 0.0),
]


def ppo_batch(samples=SAMPLES, rate=1e-2, algorithm=None, mini_batches=None):
    algorithm = algorithm or PPO()
    whole = objective(algorithm, TrainSettings())
    return Batch(
        samples,
        whole,
        mini_batches or [range(len(samples))],
        rate,
        whole.needs,
        whole.zero_costs_nothing,
        whole.measures,
        partial(estimated, algorithm),
    )


@pytest.fixture
def trainer(model, tokenizer, engine):
    return LocalTrainer(model, tokenizer, engine, critic=True)


def random_head(trainer, seed=0):
    (learner,) = trainer._learners.values()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        learner.head.weight.normal_()
    return learner.head


def weights(trainer):
    heads = [p for learner in trainer._learners.values() for p in learner.head.parameters()]
    return [p.detach().clone() for p in (*trainer.model.parameters(), *heads)]


def same(one, other):
    return all(torch.equal(p, q) for p, q in zip(one, other, strict=True))


# ------------------------------------------------------------------ values


def test_a_value_is_the_heads_of_the_last_hidden_state_before_its_token(trainer):
    head = random_head(trainer)
    found = values(trainer.model, head, SAMPLES, 64)
    for one, numbers in zip(SAMPLES, found, strict=True):
        ids = torch.as_tensor(one.token_ids, dtype=torch.long)[None]
        with torch.no_grad():
            states = trainer.model.base_model(input_ids=ids).last_hidden_state[0]
            expected = states @ head.weight + head.bias
        np.testing.assert_allclose(numbers[one.mask], expected[np.flatnonzero(one.mask) - 1], atol=1e-4)
        assert np.isnan(numbers[~one.mask]).all()


def test_values_are_the_same_over_trees_and_over_rows(trainer, monkeypatch):
    monkeypatch.setattr("ajet_trees.cost.BLOCK_FLOPS", -1e12)  # trees wherever the model has them
    head = random_head(trainer)
    assert any(micro_batch.tree for micro_batch in plan(trainer.model, SAMPLES, 1000))
    of_trees = values(trainer.model, head, SAMPLES, 1000)
    trainer.model.set_attn_implementation("sdpa")
    for one, other in zip(of_trees, values(trainer.model, head, SAMPLES, 1000), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_model_in_bfloat16_has_values_in_float32(model):
    head = ValueHead.on(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tokens = trained_tokens(model, SAMPLES, {"values"}, head)
    assert tokens.values.dtype == torch.float32 and (tokens.values == 0).all(), "a new head says 0"


def test_the_values_gradient_reaches_the_model_and_the_head(trainer):
    head = random_head(trainer)
    trainer.model.zero_grad()
    trained_tokens(trainer.model, SAMPLES, {"values"}, head).values.sum().backward()
    assert head.weight.grad.abs().sum() > 0 and head.bias.grad == sum(s.mask.sum() for s in SAMPLES)
    assert trainer.model.get_input_embeddings().weight.grad.abs().sum() > 0


# ------------------------------------------------------------------ updates


def test_an_update_learns_from_the_advantages_that_the_critic_gave_before_it(trainer):
    head = random_head(trainer)
    found = values(trainer.model, head, SAMPLES, 1000)
    valued = [replace(s, values=v) for s, v in zip(SAMPLES, found, strict=True)]
    expected, critic = estimated(PPO(), valued)
    seen = []
    batch = ppo_batch(mini_batches=[[0, 1], [2, 3], [0, 1]])

    def spy(xp, tokens):
        seen.append((tokens.advantages, tokens.returns, tokens.old_values, tokens.values.detach()))
        return PPO().loss(xp, tokens)

    metrics = trainer.update(replace(batch, loss=spy))
    by_episode = {s.episode: s for s in expected}
    for (advantages, returns, old, _), indices in zip(seen, [[0, 1], [2, 3], [0, 1]], strict=True):
        chosen = sorted((by_episode[SAMPLES[i].episode] for i in indices), key=lambda s: len(s.token_ids))
        for tensor, name in ((advantages, "advantages"), (returns, "returns"), (old, "values")):
            wanted = np.concatenate([getattr(s, name)[s.mask] for s in chosen])
            np.testing.assert_allclose(sorted(tensor), sorted(wanted), atol=1e-4, err_msg=name)
    assert not torch.allclose(seen[2][2], seen[2][3], atol=1e-3), "the values have moved on"
    assert metrics["explained_variance"] == pytest.approx(critic["explained_variance"], abs=1e-4)
    assert metrics["optimizer_steps"] == 3


@pytest.mark.whole
def test_the_critic_learns_to_tell_good_from_bad(trainer):
    # Rewards follow from the third token, so a critic can know them.
    first = trainer.update(ppo_batch(rate=3e-3, algorithm=PPO(value_weight=1.0, value_clip=10.0)))
    for _ in range(40):
        last = trainer.update(ppo_batch(rate=3e-3, algorithm=PPO(value_weight=1.0, value_clip=10.0)))
    assert first["explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert last["explained_variance"] > 0.9 and last["value_loss"] < 0.1 * first["value_loss"]


def test_metrics_add_up_to_the_loss(trainer):
    metrics = trainer.update(ppo_batch())
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] + 0.1 * metrics["value_loss"], abs=1e-6)


def test_without_a_critic_the_update_is_refused(model, tokenizer, engine):
    with pytest.raises(AjetError, match="the loss needs a critic"):
        LocalTrainer(model, tokenizer, engine).update(ppo_batch())


# ------------------------------------------------------------------ checkpoints


def test_a_restored_trainer_continues_bit_for_bit(trainer, tmp_path, tokenizer):
    for _ in range(2):
        trainer.update(ppo_batch())
    trainer.save(tmp_path / "saved")
    trainer.update(ppo_batch())
    after = weights(trainer)
    trainer.load(tmp_path / "saved")
    assert not same(weights(trainer), after)
    trainer.update(ppo_batch())
    assert same(weights(trainer), after)


def test_a_checkpoint_without_a_critic_does_not_fit_and_the_other_way_round(
    trainer, tmp_path, model, tokenizer, engine
):
    plain = LocalTrainer(copy.deepcopy(model), tokenizer, engine)
    plain.save(tmp_path / "plain")
    trainer.save(tmp_path / "critic")
    with pytest.raises(AjetError, match="contains no critic, but the job's algorithm needs a critic"):
        trainer.load(tmp_path / "plain")
    with pytest.raises(AjetError, match="contains a critic, but the job's algorithm needs no critic"):
        plain.load(tmp_path / "critic")


def test_an_exported_model_has_no_head(trainer, tmp_path):
    trainer.update(ppo_batch())
    trainer.save(tmp_path / "saved")
    export(tmp_path / "saved", tmp_path / "model", None)
    from transformers import AutoModelForCausalLM

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert exported.state_dict().keys() == trainer.model.state_dict().keys()
    assert "trainer.pt" not in {file.name for file in (tmp_path / "model").iterdir()}


# ------------------------------------------------------------------ adapters and references


def from_folder(folder, needs, *names, **train):
    return Local(device="cpu").trainer(
        str(folder),
        TrainSettings(**train),
        seed=0,
        deterministic=False,
        progress=Silent(),
        needs=needs,
        adapters={name: LoraSettings(rank=4) for name in names},
    )


@pytest.fixture
def folder(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.whole
def test_each_adapter_has_a_critic_of_its_own(folder, tmp_path):
    trainer = from_folder(folder, {"values"}, "solver", "writer")
    of_solver = [replace(s, adapter="solver") for s in SAMPLES]
    trainer.update(ppo_batch(of_solver))
    solver, writer = (trainer._learners[name].head.weight for name in ("solver", "writer"))
    assert solver.abs().sum() > 0 and writer.abs().sum() == 0
    trainer.save(tmp_path / "saved")
    trainer.update(ppo_batch(of_solver))
    after = weights(trainer)
    trainer.load(tmp_path / "saved")
    trainer.update(ppo_batch(of_solver))
    assert same(weights(trainer), after)


def dpo_batch(adapter=None):
    """The first two samples are a pair, and the last two: each mini-batch has one."""
    signs = [1.0, -1.0, -1.0, 1.0]
    samples = [
        replace(s, advantages=s.mask * np.float32(sign), weights=s.mask / np.float32(2), adapter=adapter)
        for s, sign in zip(SAMPLES, signs, strict=True)
    ]
    whole = objective(DPO(), TrainSettings())
    return Batch(
        paired(samples, [0, 0, 1, 1]),
        whole,
        [range(4)],
        1e-3,
        whole.needs,
        whole.zero_costs_nothing,
        whole.measures,
    )


@pytest.mark.whole
@pytest.mark.parametrize("adapters", [(), ("solver",)], ids=["all weights", "an adapter"])
def test_the_reference_of_pairs_is_the_first_model_and_the_margin_grows_from_0(folder, adapters):
    trainer = from_folder(folder, {"reference", "pairs"}, *adapters)
    assert (trainer.reference is None) == bool(adapters), "an adapter's base model is not copied"
    batch = dpo_batch(adapters[0] if adapters else None)
    metrics = [trainer.update(batch) for _ in range(6)]
    assert metrics[0]["loss"] == pytest.approx(np.log(2), abs=1e-4)
    assert metrics[0]["preference_margin"] == pytest.approx(0, abs=1e-4)
    assert metrics[-1]["preference_margin"] > 0.1 and metrics[-1]["preference_accuracy"] == 1.0


@pytest.mark.whole
@pytest.mark.parametrize("tokens", fast({0}, [1, 20, 1000]))
def test_pairs_have_the_same_gradients_however_small_the_micro_batches(model, tokenizer, engine, tokens):
    reference = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.1)
    start = copy.deepcopy(model)
    steps = []
    for size in (tokens, 10**6):
        model.load_state_dict(start.state_dict())
        trainer = LocalTrainer(
            model, tokenizer, engine, reference=reference, adam_epsilon=1e-2, micro_batch_tokens=size
        )
        metrics = trainer.update(dpo_batch())
        steps.append(metrics)
    assert steps[0] == pytest.approx(steps[1], rel=1e-4, abs=1e-6)
    assert steps[0]["grad_norm"] > 0.01


def test_a_micro_batch_holds_both_sides_of_a_pair(model):
    for micro_batch in plan(model, dpo_batch().samples, 1):
        assert len({s.pair for s in micro_batch.samples}) == 1 and len(micro_batch.samples) == 2


def test_scores_of_pairs_are_those_of_the_samples(model):
    alone = score(model, SAMPLES, 1000)
    for one, other in zip(alone, score(model, dpo_batch().samples, 1), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


# ------------------------------------------------------------------ jobs


def test_the_engine_samples_from_the_model_as_before(trainer, running):
    from ajet.types import GenerateRequest, Sampling

    request = GenerateRequest(np.array([300, 1, 2], np.int32), Sampling(temperature=0.0, max_tokens=4))
    before = running(lambda engine: engine.generate(request)).token_ids
    random_head(trainer)
    asyncio.run(trainer.publish())
    np.testing.assert_array_equal(running(lambda engine: engine.generate(request)).token_ids, before)


@pytest.mark.parametrize(("algorithm", "words"), [("ppo", "a critic"), ("dpo", "both episodes of a pair")])
def test_a_backbone_that_cannot_is_refused_in_one_line(tmp_path, algorithm, words):
    from ajet.job.config import Layers
    from ajet.job.prepare import prepare

    (tmp_path / "tasks.jsonl").write_text('{"id": "1", "query": "1+1=", "answer": 2}\n')
    (tmp_path / "agent.py").write_text("async def run(task):\n    return None\n")
    layers = Layers()
    for key, value in {
        "task.reader": str(tmp_path / "tasks.jsonl"),
        "workflow": f"{tmp_path / 'agent.py'}:run",
        "model": "starter",
        "train.algorithm": algorithm,
        "backbone.name": "verl",
    }.items():
        layers.set(key, value, "test", tmp_path)
    with pytest.raises(ConfigError) as caught:
        prepare(layers)
    assert f"train.algorithm: '{algorithm}' needs {words}" in str(caught.value)
    assert "the backbone 'verl' does not have" in str(caught.value)
    assert "\n" not in str(caught.value)
