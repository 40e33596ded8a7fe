"""A run at Tinker learns, and each step has the gradient of the job's own loss."""

import copy
import shutil
from dataclasses import replace

import numpy as np
import pytest

import ajet
from ajet.interfaces.progress import Silent
from ajet.learning.algorithms import CISPO, DPO, GRPO, GSPO, RLOO, SFT, RejectionSampling
from ajet.learning.objective import objective
from ajet.learning.pairs import paired
from ajet.learning.settings import TrainSettings
from ajet.types import Batch, LossTokens, Sample, Span
from ajet_tinker.backbone import Tinker
from tests.patience import PATIENCE
from tests.plugins.tinker.conftest import KEY, NAME
from tests.plugins.tinker.local_service import _logprobs
from tests.tiers import fast

torch = pytest.importorskip("torch")
TASKS = [{"id": f"t{i}", "query": f"say {i}"} for i in range(4)]


async def talk(task, tuner):
    import httpx2

    headers = {"authorization": f"Bearer {tuner.api_key}"}
    ask = {"model": "any", "messages": [{"role": "user", "content": task.query}], "max_tokens": 8}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as client:
        answer = await client.post(f"{tuner.base_url}/chat/completions", json=ask)
        answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"] or ""


def share_of_digits(task, output):
    return sum(c in "0123456789" for c in output.response) / max(len(output.response), 8)


def job(folder, section, tmp_path, **keys):
    return {
        "workflow": talk,
        "tasks": TASKS,
        "judge": share_of_digits,
        "model": str(folder),
        "backbone": "tinker",
        "run_dir": tmp_path / "runs",
        "progress": False,
        "set": {
            "backbone.tinker": section,
            "train.batch_size": 2,
            "rollout.group_size": 2,
            "train.learning_rate": 2e-2,
            **keys,
        },
    }


@pytest.mark.slow
def test_reward_rises(folder, service, section, tmp_path):
    """What a step does is that of the job's own loss, as below, and the next step samples with it, as the logprobs show."""
    keys = {"train.batch_size": 4, "rollout.group_size": 8}
    run = ajet.run(**job(folder, section, tmp_path, **keys), steps=10)
    rewards = [line["reward"] for line in run.metrics]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2, rewards


@pytest.mark.whole
def test_logprobs_match_those_of_sampling_after_each_step(folder, service, section, tmp_path):
    run = ajet.run(**job(folder, section, tmp_path, **{"rollout.group_size": 4}), steps=3)
    for line in run.metrics:
        assert line["logprob_diff_max"] < 1e-3, "the service trains other logprobs than it sampled with"
        assert line["weight_version"] == line["step"]
    assert service.calls["optim_step"] == sum(line["optimizer_steps"] for line in run.metrics) > 0
    assert service.finished[-1] == "success"


@pytest.mark.whole
def test_keys_reach_the_service(folder, service, section, tmp_path):
    keys = {"train.weight_decay": 0.1, "train.max_grad_norm": 0.5, "train.adam_epsilon": 1e-6}
    own = {"train_mlp": False, "ttl_days": 2, "rank": 3}
    given = job(folder, {**section, **own}, tmp_path, **keys)
    ajet.run(**given | {"judge": lambda task, output, episode: float(episode.member)}, steps=1, seed=5)
    assert service.lora_configs == [
        {"rank": 3, "seed": 5, "train_mlp": False, "train_attn": True, "train_unembed": True}
    ]
    assert service.steps[0] | {"type": ""} == {
        "type": "",
        "learning_rate": 2e-2,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-6,
        "weight_decay": 0.1,
        "grad_clip_norm": 0.5,
    }
    assert service.ttls == [2 * 24 * 60 * 60]


def sample(seed, *, calls=2):
    """Twenty tokens: a prompt, an answer, a result, an answer (``calls`` 1: one answer), and a tail that is not trained."""
    rng = np.random.default_rng(seed)
    spans = [Span(5, 9, 0, "a", "policy"), Span(12, 16, 1, "a", "policy")][:calls]
    mask = np.zeros(20, dtype=bool)
    for span in spans:
        mask[span.start : span.end] = True
    old = np.where(mask, rng.normal(-3, 1, 20), np.nan)
    return Sample(
        token_ids=rng.integers(5, 60, 20).astype(np.int32),
        mask=mask,
        logprobs=old.astype(np.float32),
        advantages=np.where(mask, rng.normal(), 0).astype(np.float32),
        weights=np.where(mask, 0.1, 0).astype(np.float32),
        spans=tuple(spans),
        episode=f"e{seed}",
    )


def expected_weights(run, batch, base):
    """The trained weights after the batch, by one graph over loss and model. ``run`` is left alone."""
    model, optimizer = copy.deepcopy((run.model, run.optimizer))
    samples = list(batch.samples)
    for i, one in enumerate(samples):
        with torch.no_grad():
            reference = _logprobs(base, one.token_ids[:-1], one.token_ids[1:]).numpy()
            before = _logprobs(model, one.token_ids[:-1], one.token_ids[1:]).numpy()
        samples[i] = replace(
            one, reference=np.array([np.nan, *reference]), before=np.array([np.nan, *before])
        )
    for group in optimizer.param_groups:
        group |= {"lr": batch.learning_rate, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    for indices in batch.mini_batches:
        total = 0
        for one in (samples[i] for i in indices):
            calls = np.zeros(20, dtype=np.int64)
            for number, span in enumerate(one.spans):
                calls[span.start : span.end] = number
            rows = {
                name: torch.tensor(np.asarray(value)[one.mask])
                for name, value in {
                    "old": one.logprobs,
                    "advantages": one.advantages,
                    "calls": calls,
                    "reference": one.reference.astype(np.float32),
                    "before": one.before.astype(np.float32),
                }.items()
            }
            new = _logprobs(model, one.token_ids[:-1], one.token_ids[1:])[torch.tensor(one.mask[1:])]
            losses = batch.loss(torch, LossTokens(new=new, **rows))
            total = total + (losses * torch.tensor(one.weights[one.mask])).sum()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    fast(
        {0, 4, 8},
        [
            (GRPO(), {}),
            (GSPO(), {}),
            (CISPO(), {}),
            (RLOO(), {}),
            (SFT(), {}),
            (RejectionSampling(), {}),
            (GRPO(), {"kl": 0.3}),
            (GRPO(), {"correction": "truncated"}),
            (GSPO(), {"kl": 0.1, "correction": "truncated"}),
        ],
    ),
    ids=lambda given: getattr(given, "name", None) or "+".join(given) or "plain",
)
@pytest.mark.kept
def test_a_step_is_that_of_the_jobs_own_loss(algorithm, settings, base, folder, service, section):
    train = TrainSettings(**settings)
    trainer = Tinker(**section).trainer(str(folder), train, seed=3, deterministic=False, progress=Silent())
    loss = objective(algorithm, train)
    samples = [sample(0), sample(1, calls=1), sample(2)]

    def batch(*, seed):
        return Batch(samples, loss, [[0, 1], [2]], 1e-2, loss.needs, loss.zero_costs_nothing)

    try:
        trainer.update(batch(seed=0))  # so that the LoRA differs from the base model
        run = next(iter(service.runs.values()))
        expected = expected_weights(run, batch(seed=1), base[0])
        metrics = trainer.update(batch(seed=1))
        found = [p for p in run.model.parameters() if p.requires_grad]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
        assert metrics["optimizer_steps"] == 2 and metrics["tokens_trained"] == 20
    finally:
        trainer.service.close()


@pytest.mark.whole
def test_samples_without_credit_are_not_sent(folder, service, section):
    trainer = Tinker(**section).trainer(
        str(folder), TrainSettings(), seed=0, deterministic=False, progress=Silent()
    )
    idle = replace(sample(0), advantages=np.zeros(20, np.float32))
    try:
        metrics = trainer.update(Batch([idle, sample(1)], GRPO().loss, [[0], [1]], 1e-2))
    finally:
        trainer.service.close()
    assert metrics["tokens_zero_advantage"] == 8 and metrics["tokens_trained"] == 8
    assert service.calls["optim_step"] == service.calls["forward_backward"] == 1


@pytest.mark.whole
def test_a_loss_that_is_not_finite_takes_no_step(folder, service, section):
    trainer = Tinker(**section).trainer(
        str(folder), TrainSettings(), seed=0, deterministic=False, progress=Silent()
    )
    bad = replace(sample(0), advantages=np.full(20, np.nan, np.float32))
    try:
        with pytest.raises(FloatingPointError, match="the loss is nan in mini-batch 1 of 1; no step"):
            trainer.update(Batch([bad], GRPO().loss, [[0]], 1e-2))
    finally:
        trainer.service.close()
    assert service.calls["optim_step"] == 0


@pytest.mark.whole
def test_a_checkpoint_is_evaluated(folder, service, section, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": [0]}')
    trained = ajet.run(**job(folder, section, tmp_path), steps=1)
    assert (trained.checkpoint / "generation_config.json").read_text() == '{"eos_token_id": [0]}'
    found = ajet.evaluate(
        workflow=talk,
        tasks=TASKS,
        judge=share_of_digits,
        model=trained.checkpoint,
        run_dir=tmp_path / "evaluations",
        set={"backbone.tinker.base_url": service.url},
        progress=False,
    )
    assert len(found.episodes()) == 4
    assert NAME in (trained.checkpoint / "tinker.json").read_text()
    assert KEY not in "".join(f.read_text() for f in trained.dir.rglob("*.json*"))


@pytest.mark.whole
def test_both_sides_of_a_pair_are_in_one_loss(folder, service, section):
    train, algorithm = TrainSettings(), DPO()
    trainer = Tinker(**section).trainer(str(folder), train, seed=3, deterministic=False, progress=Silent())
    loss = objective(algorithm, train)
    sides = [
        replace(s, advantages=s.mask * np.float32(sign), weights=s.mask / np.float32(1))
        for s, sign in ((sample(0), 1), (sample(1), -1))
    ]
    pair = Batch(
        paired(sides, [0, 0]),
        loss,
        [[0, 1]],
        1e-2,
        loss.needs,
        loss.zero_costs_nothing,
        loss.measures,
    )
    try:
        metrics = [trainer.update(pair) for _ in range(4)]
    finally:
        trainer.service.close()
    assert metrics[0]["loss"] == pytest.approx(np.log(2), abs=1e-4), "the first model is the reference"
    margin = metrics[-1]["preference_margin"]
    assert margin > 0.01 and metrics[-1]["preference_accuracy"] == pytest.approx(1)
    assert metrics[-1]["loss"] == pytest.approx(np.log1p(np.exp(-margin)), abs=1e-4)
