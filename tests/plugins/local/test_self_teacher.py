"""SDPO in the local trainer: the teacher's logprobs, gradients against a plain computation, and learning from words alone."""

import copy
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ajet.chat.renderer import Chat  # noqa: E402
from ajet.job.config import Layers  # noqa: E402
from ajet.job.prepare import prepare  # noqa: E402
from ajet.learning.algorithms import SDPO  # noqa: E402
from ajet.learning.objective import objective  # noqa: E402
from ajet.learning.settings import LoraSettings, TrainSettings  # noqa: E402
from ajet.learning.sft import FinishedChat, samples_of, sft_batch  # noqa: E402
from ajet.types import Batch, Hint, Sample, Span  # noqa: E402
from ajet_audit.files import Folder  # noqa: E402
from ajet_audit.steps import Audit  # noqa: E402
from ajet_local import tokens  # noqa: E402
from ajet_local.plan import plan  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402
from ajet_lora.adapters import prepare as with_adapters  # noqa: E402
from ajet_trees.head import Predictions  # noqa: E402
from tests.tiers import fast  # noqa: E402

pytestmark = pytest.mark.whole


def sample(ids, spans, hint, replaces, temperature=1.0):
    mask = np.zeros(len(ids), np.bool_)
    for start, end in spans:
        mask[start:end] = True
    on = mask.astype(np.float32)
    return Sample(
        token_ids=np.array(ids, np.int32),
        mask=mask,
        logprobs=np.where(mask, -2.0, np.nan).astype(np.float32),
        advantages=on,
        weights=on / np.float32(7),
        spans=tuple(
            Span(start, end, i, "agent", "policy", temperature) for i, (start, end) in enumerate(spans)
        ),
        episode=f"episode-{ids[-1]}",
        hint=Hint(np.array(hint, np.int32), replaces),
    )


SAMPLES = [
    sample([300, 1, 2, 3, 40, 41, 42, 43], [(2, 4), (7, 8)], [300, 1, 9, 9, 9, 5], 2),
    sample([300, 1, 2, 50, 51], [(3, 5)], [300, 8, 2], 3, temperature=0.7),
    sample([300, 1, 2, 7, 8, 60], [(3, 4), (5, 6)], [6], 3),
]


def batch(samples, algorithm, rate=1e-2, **more):
    whole = objective(algorithm, TrainSettings(**more))
    return Batch(
        samples,
        whole,
        [range(len(samples))],
        rate,
        whole.needs,
        whole.zero_costs_nothing,
        whole.measures,
        teacher_share=algorithm.teacher_share,
    )


@pytest.fixture
def first(model):
    """Other weights than the model's, as those at the beginning of a run are."""
    other = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        for i, parameter in enumerate(other.parameters()):
            parameter.add_(0.02 * torch.sin(torch.arange(parameter.numel()) + i).reshape(parameter.shape))
    return other


def distributions(model, ids, positions, temperatures):
    """float64[n, V]: the logprobs that predict the tokens at these positions, one row at a time."""
    logits = model(torch.tensor(np.array(ids)[None], dtype=torch.long)).logits[0, positions - 1].double()
    return (logits / torch.tensor(temperatures)[:, None]).log_softmax(-1)


def plain_loss(model, first, algorithm, most):
    """The loss of `SAMPLES` as the paper writes it: eq. 1 or its symmetric form, with the teacher of eq. 10, over the student's
    ``most`` likeliest tokens and the rest."""
    total = 0.0
    for s in SAMPLES:
        at = np.flatnonzero(s.mask)
        temperatures = np.array([s.spans[0].temperature] * len(at))
        student = distributions(model, s.token_ids, at, temperatures)
        ids = [*s.hint.token_ids, *s.token_ids[s.hint.replaces :]]
        moved = at + len(s.hint.token_ids) - s.hint.replaces
        with torch.no_grad():
            mixed = [
                share * distributions(network, ids, moved, temperatures)
                for share, network in ((algorithm.teacher_share, model), (1 - algorithm.teacher_share, first))
            ]
            teacher = sum(mixed).log_softmax(-1)
        for p, q in zip(student.exp(), teacher.exp(), strict=True):
            top = p.detach().argsort(descending=True)[:most]
            p, q = (torch.cat([x[top], 1 - x[top].sum()[None]]) for x in (p, q))
            if algorithm.divergence == "kl":
                found = (p * (p / q).log()).sum()
            else:
                m = (p + q) / 2
                found = ((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2
            total = total + found / 7
    return total


@pytest.mark.parametrize(
    ("divergence", "share", "trees"),
    fast({0, 9, 10}, [*itertools.product(["kl", "js"], [0.0, 0.3, 1.0], [True, False])]),
)
def test_loss_and_gradients_are_those_of_the_papers_formula(
    model, tokenizer, engine, first, monkeypatch, divergence, share, trees
):
    monkeypatch.setattr(tokens, "LIKELIEST", 5)
    monkeypatch.setattr(tokens, "LOGITS", 3 * 4 * len(tokenizer))  # three tokens at a time
    trainer = LocalTrainer(model, tokenizer, engine, reference=first, max_grad_norm=1e9)
    algorithm = SDPO(divergence=divergence, teacher_share=share)
    expected = plain_loss(model, first, algorithm, 5)
    expected.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    if not trees:
        monkeypatch.setattr("ajet_local.plan.has_trees", lambda model: False)
    seen = {}
    learner = trainer._learners[None]
    monkeypatch.setattr(
        learner.optimizer,
        "step",
        lambda: seen.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}),
    )
    metrics = trainer.update(batch(SAMPLES, algorithm))
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert metrics["tokens_trained"] == 7
    for name, gradient in wanted.items():
        torch.testing.assert_close(seen[name], gradient, atol=2e-5, rtol=1e-3)


def test_distributions_exist_for_a_few_tokens_at_a_time(model, tokenizer, engine, first, monkeypatch):
    monkeypatch.setattr(tokens, "LOGITS", 2 * 3 * 4 * len(tokenizer))
    sizes, whole = [], Predictions.whole
    monkeypatch.setattr(
        Predictions, "whole", lambda self, t, *more: sizes.append(len(t)) or whole(self, t, *more)
    )
    LocalTrainer(model, tokenizer, engine, reference=first).update(batch(SAMPLES, SDPO()))
    assert max(sizes) == 3


def test_the_teacher_reads_the_hint_and_trains_nothing(model, tokenizer, engine, first):
    (micro,) = plan(model, SAMPLES, 10**6)
    ids = [s.token_ids.tolist() for s in micro.hinted().samples]
    by_episode = dict(zip([s.episode for s in micro.samples], ids, strict=True))
    assert by_episode["episode-43"] == [300, 1, 9, 9, 9, 5, 2, 3, 40, 41, 42, 43]
    assert by_episode["episode-60"] == [6, 7, 8, 60]
    for one, other in zip(micro.samples, micro.hinted().samples, strict=True):
        assert one.token_ids[one.mask].tolist() == other.token_ids[other.mask].tolist()
    before = {name: p.clone() for name, p in first.named_parameters()}
    LocalTrainer(model, tokenizer, engine, reference=first).update(batch(SAMPLES, SDPO()))
    assert all(torch.equal(before[name], p) for name, p in first.named_parameters())


def test_a_sample_without_a_hint_costs_nothing_and_moves_nothing(model, tokenizer, engine, first, passes):
    trainer = LocalTrainer(model, tokenizer, engine, reference=first)
    untaught = replace(SAMPLES[0], hint=None, advantages=SAMPLES[0].advantages * 0)
    passes.clear()
    metrics = trainer.update(batch([untaught], SDPO()))
    assert (metrics["tokens_trained"], metrics["tokens_zero_advantage"], metrics["optimizer_steps"]) == (
        0,
        3,
        0,
    )
    assert passes == []
    # A KL penalty computes it, and then it is its own teacher.
    metrics = trainer.update(batch([untaught, SAMPLES[1]], SDPO(), kl=0.1))
    assert metrics["tokens_trained"] == 5 and np.isfinite(metrics["loss"])


def test_with_adapters_the_teacher_without_an_adapter_is_the_reference(model, tokenizer, engine):
    adapters = with_adapters(model, {}, {"policy": LoraSettings(rank=4)}, 0)
    trainer = LocalTrainer(model, tokenizer, engine, adapters=adapters)
    samples = [replace(s, adapter="policy") for s in SAMPLES]
    losses = [
        trainer.update(batch(samples, SDPO(teacher_share=0.0, divergence="kl"), 1e-2)) for _ in range(20)
    ]
    assert losses[-1]["teacher_kl"] < 0.5 * losses[0]["teacher_kl"]
    assert losses[0]["loss"] == pytest.approx(losses[0]["teacher_kl"])
    assert adapters.active == "policy"


# ----------------------------------------------------------------------------- learning from words alone

DIGITS = 6
AGENT = """
import httpx2
from ajet import JudgeOutput
CLIENT = httpx2.AsyncClient()

async def run(task):
    body = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
    answer = (await CLIENT.post("http://127.0.0.1:9/v1/chat/completions", json=body)).json()
    return answer["choices"][0]["message"]["content"]

def judge(task, output):
    right = task.metadata["answer"]
    return JudgeOutput(0.0, str(output.response).strip() == right, feedback=right if task.metadata["is_told"] else "")
"""
SETTINGS = {
    "task.reader": "tasks.jsonl",
    "task.validation": "tasks.jsonl",
    "workflow": "agent.py:run",
    "judge": "agent.py:judge",
    "model": "model",
    "rollout.group_size": 2,
    "rollout.sampling.max_tokens": 8,
    "train.algorithm": {"type": "sdpo", "template": " Say {feedback}."},
    "train.batch_size": DIGITS,
    "train.steps": 15,
    "train.learning_rate": 3e-3,
    "eval.repeats": 4,
    "run.dir": "runs",
    "run.deterministic": True,
    "backbone.local.device": "cpu",
}


def question(digit, hint=None):
    return f"{digit}+{digit}=" + (f" Say {hint}." if hint is not None else "")


@pytest.fixture
def folder(model, tokenizer, tmp_path):
    """A folder with the tiny model and an agent."""
    (tmp_path / "agent.py").write_text(AGENT)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path


@pytest.fixture
def obeys(folder, model, tokenizer, engine):
    """The folder of a model that says a digit if it is told which, else any."""
    chat, rng = Chat(tokenizer, "qwen3"), np.random.default_rng(0)

    def shown(asked, answer, hint=None):
        turns = [("user", question(asked, hint)), ("assistant", str(answer))]
        (sample,) = samples_of(chat, FinishedChat([{"role": r, "content": c} for r, c in turns]))
        return sample

    trainer = LocalTrainer(model, tokenizer, engine)
    for _ in range(80):
        pairs = rng.integers(DIGITS, size=(24, 2)).tolist()
        told = [shown(asked, answer, answer) for asked, answer in pairs[:16]]
        trainer.update(sft_batch([*told, *(shown(*pair) for pair in pairs[16:])], 3e-3))
    model.save_pretrained(folder / "model")
    return folder


def run(folder, tasks, settings=None):
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    layers = Layers()
    for key, value in (SETTINGS | (settings or {})).items():
        layers.set(key, value, "test", folder)
    job = prepare(layers)
    result = job.backbone.run(job)
    lines = map(json.loads, (result.run_dir / "metrics.jsonl").read_text().splitlines())
    return result, [line for line in lines if line["type"] == "train"]


def tasks(is_told):
    return [
        {"id": str(d), "query": question(d), "answer": str((d * 5 + 2) % DIGITS), "is_told": is_told(d)}
        for d in range(DIGITS)
    ]


@pytest.mark.slow
def test_where_every_reward_is_0_a_model_learns_from_what_the_judge_says(obeys):
    result, steps = run(obeys, tasks(lambda digit: True))
    assert all(step["reward"] == 0 for step in steps)
    assert result.before["accuracy"] < 0.5 and result.after["accuracy"] > 0.8
    assert steps[-1]["teacher_kl"] < 0.2 * steps[0]["teacher_kl"]
    assert steps[0]["episodes_without_feedback"] == steps[0]["timelines_without_teacher"] == 0


def test_episodes_without_feedback_teach_nothing_and_are_counted(folder):
    settings = {"train.steps": 2, "task.validation": None, "train.mini_batches": 2}
    result, steps = run(folder, tasks(lambda digit: digit < 2), settings)
    assert all(step["episodes_without_feedback"] == 2 * (DIGITS - 2) for step in steps)
    assert all(step["tokens_trained"] > 0 < step["tokens_zero_advantage"] for step in steps)
    found = Audit(Folder(result.run_dir)).run()
    assert not found.faults and found.excluded["no_credit"] == sum(s["tokens_zero_advantage"] for s in steps)


def test_a_step_without_any_feedback_changes_no_weight_and_the_first_one_is_reported(folder, caplog):
    _, steps = run(folder, tasks(lambda digit: False), {"train.steps": 2, "task.validation": None})
    assert [step["optimizer_steps"] for step in steps] == [0, 0]
    assert [step["weight_version"] for step in steps] == [1, 2]
    (said,) = [r.message for r in caplog.records if "teaches nothing" in r.message]
    assert "JudgeOutput(feedback=...)" in said


def test_the_answer_of_a_sibling_is_feedback_where_the_job_wants_it(folder):
    algorithm = {
        "type": "sdpo",
        "template": " Say {feedback}.",
        "solution": 0.0,
        "solution_template": "{answer}",
    }
    settings = {"train.steps": 1, "task.validation": None, "train.algorithm": algorithm}
    _, steps = run(folder, tasks(lambda digit: digit < 2), settings)
    assert steps[0]["episodes_without_feedback"] == 0


@pytest.mark.slow
def test_a_deterministic_run_repeats_bit_for_bit(folder):
    runs = [
        run(folder, tasks(lambda digit: True), {"train.steps": 2, "task.validation": None}) for _ in range(2)
    ]
    one, other = ((result.checkpoint / "model.safetensors").read_bytes() for result, _ in runs)
    assert one == other
