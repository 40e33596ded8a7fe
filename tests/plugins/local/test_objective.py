"""What the trainer fills in for a loss: calls, the logprobs before, those of a reference, entropies."""

import asyncio
import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.job.config import Layers  # noqa: E402
from ajet.job.prepare import prepare  # noqa: E402
from ajet.learning.algorithms import GRPO, GSPO, Distillation  # noqa: E402
from ajet.learning.objective import Objective  # noqa: E402
from ajet.learning.settings import TrainSettings  # noqa: E402
from ajet.types import AjetError, Batch, ConfigError, Sample, Span  # noqa: E402
from ajet_local import Local  # noqa: E402
from ajet_local.plan import score  # noqa: E402
from ajet_local.rows import micro_batches, trained_tokens  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402


def sample(ids, spans, advantage=1.0):
    """The tokens of the spans are trained; each weighs 1/8."""
    mask = np.zeros(len(ids), np.bool_)
    for start, end in spans:
        mask[start:end] = True
    on = mask.astype(np.float32)
    return Sample(
        token_ids=np.array(ids, np.int32),
        mask=mask,
        logprobs=np.where(mask, -2.0, np.nan).astype(np.float32),
        advantages=on * np.float32(advantage),
        weights=on / np.float32(8),
        spans=tuple(Span(start, end, i, "agent", "policy") for i, (start, end) in enumerate(spans)),
        episode=f"episode-{ids[-1]}",
    )


SAMPLES = [
    sample([300, 1, 2, 3, 40, 41, 42, 43], [(2, 4), (4, 6), (7, 8)]),
    sample([300, 1, 2, 50, 51], [(3, 5)], advantage=-0.5),
    sample([300, 1, 2, 7, 8, 60], [(2, 3), (5, 6)], advantage=2.0),
]


def batch(samples, loss=None, mini_batches=None, rate=1e-3, **more):
    objective = loss or Objective(GRPO().loss, frozenset(), **more)
    needs = {"reference"} if more.get("kl") else {"entropy"} if more.get("entropy") else set()
    needs |= {"before"} if more.get("cap") else set()
    free = objective.zero_costs_nothing if isinstance(objective, Objective) else True
    minis = mini_batches or [range(len(samples))]
    return Batch(samples, objective, minis, rate, frozenset(needs), free)


@pytest.fixture
def trainer(model, tokenizer, engine):
    return LocalTrainer(model, tokenizer, engine, reference=copy.deepcopy(model).requires_grad_(False))


def gradients(model, groups, loss):
    model.zero_grad(set_to_none=True)
    for samples in groups:
        tokens = trained_tokens(model, samples, {"entropy"})
        (tokens.weights * loss(torch, tokens)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_calls_are_numbered_through_the_rows_each_token_with_its_own(model):
    tokens = trained_tokens(model, SAMPLES)
    assert tokens.calls.tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 5]


def test_a_loss_over_calls_has_the_same_gradients_however_the_rows_are_packed(model):
    loss = GSPO(clip_low=0.9, clip_high=50.0).loss
    alone = gradients(model, [[s] for s in SAMPLES], loss)
    for split in ([SAMPLES], [SAMPLES[::-1]], micro_batches(SAMPLES, 12)):
        for name, value in gradients(model, split, loss).items():
            torch.testing.assert_close(value, alone[name], atol=1e-5, rtol=1e-4)


def test_arrays_that_nobody_asked_for_are_not_computed(model):
    tokens = trained_tokens(model, SAMPLES)
    assert tokens.before is tokens.reference is tokens.entropy is None


def test_scores_are_the_engines(trainer, engine):
    for one, found in zip(SAMPLES, score(trainer.model, SAMPLES, 16), strict=True):
        expected = asyncio.run(engine.score(one.token_ids))
        np.testing.assert_allclose(found[one.mask], expected[one.mask], atol=1e-5)
        assert np.isnan(found[~one.mask]).all()


@pytest.mark.whole
def test_the_logprobs_before_stay_those_of_the_first_step_in_every_mini_batch(trainer):
    before = dict(zip([s.episode for s in SAMPLES], score(trainer.model, SAMPLES, 10**6), strict=True))
    seen = []

    def spy(xp, tokens):
        seen.append((tokens.before.clone(), tokens.new.detach().clone()))
        return Objective(GRPO().loss, frozenset({"before"}), cap=2.0)(xp, tokens)

    metrics = trainer.update(
        replace(batch(SAMPLES, spy, [[0], [1], [0], [2]], rate=0.05), needs=frozenset({"before"}))
    )
    assert metrics["optimizer_steps"] == 4 and metrics["tokens_trained"] == 5 + 2 + 5 + 2
    for i, (found, _) in zip([0, 1, 0, 2], seen, strict=True):
        np.testing.assert_allclose(found, before[SAMPLES[i].episode][SAMPLES[i].mask], atol=1e-5)
    assert (seen[2][1] - seen[2][0]).abs().max() > 0.01, "the weights have moved on"


@pytest.mark.whole
def test_with_one_step_the_logprobs_before_are_the_forwards_own(trainer):
    def spy(xp, tokens):
        assert torch.equal(tokens.before, tokens.new.detach()) and not tokens.before.requires_grad
        return GRPO().loss(xp, tokens)

    trainer.update(replace(batch(SAMPLES, spy), needs=frozenset({"before"})))


@pytest.mark.whole
def test_the_kl_penalty_draws_the_weights_back_to_the_reference(trainer):
    idle = [replace(s, advantages=0 * s.advantages) for s in SAMPLES]
    untouched = trainer.update(batch(idle, kl=1.0))
    assert untouched["loss"] == pytest.approx(0, abs=1e-6)
    assert untouched["tokens_trained"] == 9 and untouched["tokens_zero_advantage"] == 0
    trainer.update(batch(SAMPLES, kl=1e-9, rate=0.02))
    losses = [trainer.update(batch(idle, kl=1.0, rate=2e-3))["loss"] for _ in range(10)]
    assert losses[0] > 0.01 and losses[-1] < 0.5 * losses[0]


def test_the_reference_stands_still_while_the_model_moves(trainer):
    before = {name: value.clone() for name, value in trainer.reference.state_dict().items()}
    trainer.update(batch(SAMPLES, kl=0.1, rate=0.02))
    assert all(torch.equal(before[name], value) for name, value in trainer.reference.state_dict().items())
    assert not torch.equal(next(trainer.model.parameters()), next(trainer.reference.parameters()))


@pytest.mark.whole
def test_logprobs_that_a_sample_brings_are_taken_instead_of_the_references(trainer):
    given = [replace(s, reference=np.full(len(s.token_ids), -1.0, np.float32)) for s in SAMPLES]

    def spy(xp, tokens):
        assert (tokens.reference == -1).all()
        return Distillation().loss(xp, tokens)

    trainer.reference = None
    trainer.update(replace(batch(given, spy), needs=frozenset({"reference"})))


def test_without_a_reference_the_error_says_what_to_set(model, tokenizer, engine):
    with pytest.raises(AjetError, match=r"train\.kl or train\.reference"):
        LocalTrainer(model, tokenizer, engine).update(batch(SAMPLES, kl=0.1))


@pytest.mark.whole
def test_the_entropy_is_that_of_the_distribution_and_the_bonus_raises_it(trainer):
    found = trained_tokens(trainer.model, SAMPLES[1:2], {"entropy"}).entropy.detach()
    with torch.no_grad():
        logits = trainer.model(torch.tensor(SAMPLES[1].token_ids[None], dtype=torch.long)).logits[0, 2:4]
    torch.testing.assert_close(found, torch.distributions.Categorical(logits=logits).entropy())
    idle = [replace(s, advantages=0 * s.advantages) for s in SAMPLES]
    values = [trainer.update(batch(idle, entropy=1.0))["entropy"] for _ in range(5)]
    assert values[-1] > values[0]


# --------------------------------------------------------------------------- from the job

AGENT = """
import httpx2
from ajet import WorkflowOutput
CLIENT = httpx2.AsyncClient()

async def run(task):
    body = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
    text = (await CLIENT.post("http://127.0.0.1:9/v1/chat/completions", json=body)).text
    return WorkflowOutput(reward=float(len(text) % 3))
"""


@pytest.fixture
def run(model, tokenizer, tmp_path):
    """Run a job on the tiny model: ``run({"train.kl": 0.1})`` -> result, and the lines of its steps."""
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"query": "{i}+1?"}}\n' for i in range(6)))

    def go(settings, resume=None):
        values = {
            "task.reader": "tasks.jsonl",
            "workflow": "agent.py:run",
            "model": str(tmp_path / "model"),
            "rollout.group_size": 3,
            "rollout.sampling.max_tokens": 6,
            "train.batch_size": 2,
            "train.steps": 2,
            "train.save_every": 1,
            "train.learning_rate": 1e-2,
            "run.dir": str(tmp_path / "runs"),
            "backbone.local.device": "cpu",
        }
        layers = Layers()
        for key, value in (values | settings).items():
            layers.set(key, value, "test", tmp_path)
        job = prepare(layers, resume=resume)
        result = job.backbone.run(job)
        lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
        return result, [line for line in map(json.loads, lines) if line["type"] == "train"]

    return go


@pytest.mark.whole
def test_a_job_may_ask_for_everything_at_once(run):
    _, steps = run(
        {
            "train.algorithm": "gspo",
            "train.kl": 0.01,
            "train.entropy": 0.001,
            "train.correction": "truncated",
            "train.epochs": 2,
            "train.mini_batches": 2,
            "train.max_staleness": 0,
            "train.dynamic_sampling": 2,
            "run.deterministic": True,
        }
    )
    assert [step["optimizer_steps"] for step in steps] == [4, 4]
    for step in steps:
        assert step["entropy"] > 0 and np.isfinite(step["reference_kl"]) and step["staleness"] == 0
        assert step["groups_started"] if step["groups_skipped"] else step["groups"] == 2
    assert steps[1]["reference_kl"] != 0


@pytest.mark.whole
def test_a_resumed_run_keeps_the_first_weights_as_reference(run):
    settings = {"train.kl": 0.5, "run.deterministic": True, "train.steps": 2}
    whole, expected = run(settings)
    half, _ = run(settings | {"train.steps": 1})
    resumed, steps = run(settings, resume=half.run_dir)
    assert steps[-1]["reference_kl"] == expected[-1]["reference_kl"]
    one, other = (Path(r.checkpoint, "model.safetensors").read_bytes() for r in (whole, resumed))
    assert one == other


def test_a_teacher_with_another_tokenizer_is_refused_by_name(tmp_path, model, tokenizer):
    for name in ("student", "teacher"):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["zzz"])
    other.save_pretrained(tmp_path / "teacher")
    settings = TrainSettings(reference=str(tmp_path / "teacher"))
    with pytest.raises(ConfigError, match=r"train\.reference: .* another tokenizer"):
        Local(device="cpu").trainer(
            str(tmp_path / "student"), settings, seed=0, deterministic=False, progress=Silent()
        )
