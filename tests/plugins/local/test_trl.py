"""DPO and PPO beside TRL on the same batches: losses, gradients, advantages and returns agree within 1e-4.

TRL 1.12 is the last version with PPO.
"""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl", minversion="1.12")
ppo_trainer = pytest.importorskip("trl.experimental.ppo.ppo_trainer")

from datasets import Dataset  # noqa: E402
from transformers import AutoModelForSequenceClassification  # noqa: E402
from trl.experimental.ppo import PPOConfig, PPOTrainer  # noqa: E402

from ajet.learning.algorithms import DPO, PPO  # noqa: E402
from ajet.learning.critic import estimated  # noqa: E402
from ajet.learning.objective import objective  # noqa: E402
from ajet.learning.pairs import paired  # noqa: E402
from ajet.learning.settings import TrainSettings  # noqa: E402
from ajet.types import Batch, LossTokens, Sample, Span  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.rows import trained_tokens  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402

WITHIN = {"rtol": 1e-4, "atol": 1e-4}
QUIET = {"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True, "save_strategy": "no"}


def sample(prompt, answer, advantage, weight, values=None):
    ids = np.array([*prompt, *answer], np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    on = mask.astype(np.float32)
    whole = np.full(len(ids), np.nan, np.float32)
    if values is not None:
        whole[mask] = values
    return Sample(
        token_ids=ids,
        mask=mask,
        logprobs=np.full(len(ids), np.nan, np.float32),
        advantages=on * np.float32(advantage),
        weights=on * np.float32(weight),
        spans=(Span(len(prompt), len(ids), 0, "agent", "policy"),),
        values=whole,
    )


# ------------------------------------------------------------------ DPO


PAIRS = {
    "prompt": ["1+1=", "2+3=", "4+4="],
    "chosen": ["2", "5 it is", "8"],
    "rejected": ["3 or 4", "1", "9 9 9"],
}


@pytest.fixture
def pairs_in_trl(model, tokenizer, tmp_path):
    """TRL's trainer, a batch of it, and the ids of the batch's pairs."""
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.1)
    arguments = trl.DPOConfig(
        str(tmp_path), beta=0.3, gradient_checkpointing=False, per_device_train_batch_size=3, **QUIET
    )
    trainer = trl.DPOTrainer(
        model, reference, arguments, train_dataset=Dataset.from_dict(PAIRS), processing_class=tokenizer
    )
    rows = [trainer.train_dataset[i] for i in range(3)]
    return trainer, reference, rows


def pair_samples(rows):
    sides = [
        sample(row["prompt_ids"], row[name], sign, 1 / len(rows))
        for row in rows
        for name, sign in (("chosen_ids", 1.0), ("rejected_ids", -1.0))
    ]
    return paired(sides, [i // 2 for i in range(len(sides))])


@pytest.mark.whole
def test_dpo_has_the_loss_the_gradients_and_the_metrics_of_trl(pairs_in_trl, tokenizer):
    theirs, reference, rows = pairs_in_trl
    model = theirs.model
    model.eval()
    model.zero_grad()
    expected = theirs.compute_loss(model, theirs.data_collator(rows))
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}

    samples, algorithm = pair_samples(rows), DPO(beta=0.3)
    whole = objective(algorithm, TrainSettings())
    batch = Batch(
        samples,
        whole,
        [range(len(samples))],
        1e-9,
        whole.needs,
        whole.zero_costs_nothing,
        whole.measures,
    )
    trainer = LocalTrainer(
        model, tokenizer, LocalEngine(model, tokenizer), reference=reference.requires_grad_(False).eval()
    )
    prepared = trainer._prepared(batch)
    model.zero_grad()
    tokens = trained_tokens(model, prepared, whole.needs)
    (tokens.weights * whole(torch, tokens)).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], **WITHIN, msg=name)
    metrics = trainer.update(batch)
    logged = {name: values[-1] for name, values in theirs._metrics["eval"].items()}
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-4)
    assert metrics["preference_margin"] == pytest.approx(logged["rewards/margins"], abs=1e-4)
    assert metrics["preference_accuracy"] == pytest.approx(logged["rewards/accuracies"], abs=1e-4)
    assert abs(expected.item() - np.log(2)) > 1e-2, "the reference differs from the model"


# ------------------------------------------------------------------ PPO


@pytest.fixture
def ppo_in_trl(model, tokenizer, tmp_path, monkeypatch):
    """What TRL computed in a PPO step of three epochs over one batch of answers of equal length.

    In answers of other lengths, TRL gives the reward one position after the last token.
    """
    seen = SimpleNamespace(rewards=[], whitened=[], logprobs=[], forwards=[], losses=[])

    def recording(name, into):
        original = getattr(ppo_trainer, name)

        def call(*args, **options):
            found = original(*args, **options)
            into.append((args, found))
            return found

        monkeypatch.setattr(ppo_trainer, name, call)

    recording("get_reward", seen.rewards)
    recording("masked_whiten", seen.whitened)
    recording("selective_log_softmax", seen.logprobs)
    recording("forward", seen.forwards)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    critics = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        critics.append(AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1))
        torch.nn.init.normal_(critics[-1].score.weight, std=0.05)
    queries = [[300, 1, 2, n] for n in range(10, 18)]
    arguments = PPOConfig(
        str(tmp_path / "trl"),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        total_episodes=8,
        num_ppo_epochs=3,
        num_sample_generations=0,
        response_length=6,
        temperature=1.0,
        kl_coef=0.0,
        gamma=0.97,
        lam=0.9,
        learning_rate=0.01,
        gradient_checkpointing=False,
        **QUIET,
    )
    trainer = PPOTrainer(
        arguments,
        tokenizer,
        model,
        copy.deepcopy(model),
        critics[0],
        Dataset.from_dict({"input_ids": queries}),
        critics[1],
    )
    backward = trainer.accelerator.backward

    def losing(loss):
        seen.losses.append(loss.item())
        backward(loss)

    trainer.accelerator.backward = losing
    trainer.train()
    return seen


def test_ppo_has_the_advantages_the_returns_and_the_losses_of_trl(ppo_in_trl, tokenizer):
    seen, algorithm = ppo_in_trl, PPO(gamma=0.97, lam=0.9)
    (value_arguments, (values, _, _)), (_, (_, scores, _)) = seen.rewards
    answers = value_arguments[1]
    assert not (answers == tokenizer.pad_token_id).any(), "all answers are whole"
    values = values[:, 3:-1, 0].detach()
    samples = [
        sample(ids[:4], ids[4:], score, 1 / answers[:, 4:].numel(), value)
        for ids, score, value in zip(answers.tolist(), scores.tolist(), values.numpy(), strict=True)
    ]
    ours, _ = estimated(algorithm, samples)
    ((raw, _), whitened) = seen.whitened[-1]
    for one, advantages, returns in zip(ours, whitened, raw + values, strict=True):
        np.testing.assert_allclose(one.advantages[one.mask], advantages, **WITHIN)
        np.testing.assert_allclose(one.returns[one.mask], returns, **WITHIN)

    old = seen.logprobs[0][1]
    new = [found for _, found in seen.logprobs[2:]]
    updates = [(args[1], found) for args, found in seen.forwards[1:]]
    assert len(new) == len(updates) == len(seen.losses) == 3
    ratios = []
    for logprobs, (rows, (_, predicted)), expected in zip(new, updates, seen.losses, strict=True):
        order = [answers.tolist().index(row) for row in rows.tolist()]

        def flat(name, order=order):
            return torch.tensor(np.stack([getattr(ours[i], name)[ours[i].mask] for i in order]))

        tokens = LossTokens(
            new=logprobs.detach(),
            old=old[order],
            advantages=flat("advantages"),
            calls=None,
            values=predicted[:, 3:-1, 0].detach(),
            old_values=flat("values"),
            returns=flat("returns"),
        )
        losses = algorithm.loss(torch, tokens) / answers[:, 4:].numel()
        assert losses.sum().item() == pytest.approx(expected, abs=1e-4)
        ratios.append(torch.exp(tokens.new - tokens.old))
    moved = (ratios[-1] - 1).abs() > 0.2
    assert moved.any() and not moved.all(), "some tokens are clipped, others are not"
