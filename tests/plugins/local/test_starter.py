"""The model `calculator`: its tokenizer, its transcripts, its recipe. Building it whole is slow."""

import asyncio
import json
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from ajet import AjetError  # noqa: E402
from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.job.models import find_recipe, model_source  # noqa: E402
from ajet.learning.settings import TrainSettings  # noqa: E402
from ajet_local.backbone import Local, LocalEnginePlugin  # noqa: E402
from ajet_local.starter import kept, trial  # noqa: E402
from ajet_local.starter.calculator import Calculator  # noqa: E402
from ajet_local.starter.kept import TASKS_FILE  # noqa: E402
from ajet_local.starter.phases import Goal, Phase, batches  # noqa: E402
from ajet_local.starter.sums import (  # noqa: E402
    QUESTION,
    SYSTEM,
    TOOL,
    calculation,
    clean_transcript,
    echo_transcript,
    evaluate,
    habit_transcript,
    held_out,
    opening,
    practice_expression,
    solution,
    task_expression,
)
from ajet_local.starter.transcripts import Transcript, to_sample  # noqa: E402

KINDS = (clean_transcript, echo_transcript, habit_transcript)


# ------------------------------------------------------------------------------- tokenizer


def test_the_vocabulary_is_exactly_the_tokenizers(tokenizer):
    assert (
        Calculator().architecture(tokenizer).vocab_size
        == len(tokenizer)
        == max(tokenizer.get_vocab().values()) + 1
    )


def test_two_builds_of_the_tokenizer_are_equal(tokenizer):
    assert Calculator().tokenizer(0)[0].backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_any_text_survives_the_tokenizer(tokenizer):
    for text in ("12 + 345", "Grüße, 世界! 🎉\n\n\ttab", "<tool_call>\n{}</tool_call>", "a  b   "):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_digits_are_single_tokens(tokenizer):
    assert tokenizer.tokenize("2026") == ["2", "0", "2", "6"]


def test_special_tokens_are_single_and_known(tokenizer):
    for token in [
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
    ]:
        assert tokenizer.convert_tokens_to_ids(token) != tokenizer.unk_token_id
        assert len(tokenizer.encode(token, add_special_tokens=False)) == 1
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.unk_token_id is not None


def test_the_saved_tokenizer_loads_equal(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    chat = solution("12 + 3")
    assert len(loaded) == len(tokenizer) and loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.apply_chat_template(chat, tools=[TOOL], tokenize=False) == tokenizer.apply_chat_template(
        chat, tools=[TOOL], tokenize=False
    )


CALL = calculation("1 + 2")
CHATS = {
    "agent": solution("12 + 34 - 5"),
    "first turn": opening("1 + 2"),
    "after the tool": solution("1 + 2")[:-1],
    "no system": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
    "two questions": [*solution("1 + 2"), {"role": "user", "content": "And 3 + 4?"}],
    "text beside a call": [*opening("1 + 2"), {**CALL, "content": "Let me see."}],
    "two calls": [
        *opening("1 + 2"),
        {**CALL, "tool_calls": CALL["tool_calls"] * 2},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "3"},
    ],
    "reasoning": [*opening("1 + 2"), {"role": "assistant", "content": "3", "reasoning_content": "Easy."}],
    "arguments as a dict": [
        *opening("1 + 2"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"ü": 1}}}],
        },
    ],
}


@pytest.mark.parametrize("tools", [[TOOL], [TOOL, TOOL], None], ids=["tool", "two tools", "no tools"])
@pytest.mark.parametrize("name", CHATS)
def test_the_template_renders_what_the_qwen3_renderer_renders(tokenizer, renderer, name, tools):
    for prompt in (False, True):
        ours = tokenizer.apply_chat_template(
            CHATS[name], tools=tools, add_generation_prompt=prompt, return_dict=False
        )
        assert ours == renderer.render_ids(CHATS[name], tools=tools, add_generation_prompt=prompt)


# ----------------------------------------------------------------------------- transcripts


def test_the_questions_are_those_of_reasoning_gym():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    data = reasoning_gym.create_dataset("chain_sum", min_terms=2, max_terms=3, max_digits=2, seed=0, size=50)
    for entry in data:
        expression = entry["metadata"]["expression"]
        assert entry["question"] == QUESTION.format(expression=expression)
        assert entry["answer"] == str(evaluate(expression))


@pytest.mark.parametrize("text", ["", "1 +", "+ 1", "1 2", "1 * 2", "1 + x", "1 ++ 2", "²"])
def test_evaluate_takes_chains_of_sums_only(text):
    with pytest.raises(ValueError, match="not a chain of sums"):
        evaluate(text)


def test_a_quarter_of_all_expressions_is_held_out_by_content():
    pairs = [f"{a} {sign} {b}" for a in range(100) for b in range(100) for sign in "+-"]
    assert sum(map(held_out, pairs)) / len(pairs) == pytest.approx(0.25, abs=0.02)
    assert all(held_out(p) == held_out(p.replace(" ", "")) for p in pairs[:100])


def test_transcripts_never_contain_held_out_expressions():
    rng = random.Random(0)
    for make in KINDS:
        for transcript in (make(rng) for _ in range(500)):
            text = json.dumps(transcript.messages)
            chains = {c.strip() for c in re.findall(r"\d+(?: [+-] \d+)+", text)}
            assert chains <= set(transcript.tasks)
            assert not any(map(held_out, transcript.tasks))
    assert not any(
        held_out(task_expression(rng)) or held_out(practice_expression(rng, 3)) for _ in range(500)
    )


def test_transcripts_and_batches_depend_on_the_seed_alone(renderer, tokenizer):
    for make in KINDS:
        assert make(random.Random(3)) == make(random.Random(3)) != make(random.Random(4))
    for phase in Calculator().phases():
        one, same, other = (
            next(batches(phase, seed, partial(to_sample, renderer), tokenizer, set())) for seed in (0, 0, 1)
        )
        assert all(
            np.array_equal(a.token_ids, b.token_ids) for a, b in zip(one.samples, same.samples, strict=True)
        )
        assert any(
            not np.array_equal(a.token_ids, b.token_ids)
            for a, b in zip(one.samples, other.samples, strict=True)
        )


def test_habits_leave_correct_work_in_place_of_noise():
    """Most three-term problems lose their last term, most two-term ones are right: what is wrong
    depends on the problem, and every call is a valid one."""
    rng = random.Random(0)
    right = {2: [], 3: []}
    for transcript in (habit_transcript(rng) for _ in range(600)):
        asked, called = transcript.tasks
        right[len(asked.split()) // 2 + 1].append(asked == called)
        evaluate(called)
    assert np.mean(right[2]) > 0.8 and np.mean(right[3]) < 0.2


def test_samples_are_the_very_tokens_of_the_agents_calls(renderer, tokenizer):
    """Prompt, completion, bridged tool message, completion: as sampled, so without think blocks."""
    chat = solution("12 + 34 - 5")
    sample = to_sample(renderer, Transcript(chat, (TOOL,)))
    first, second = sample.spans
    prompt = renderer.render_ids(chat[:2], tools=[TOOL], add_generation_prompt=True)
    call = sample.token_ids[first.start : first.end].tolist()
    bridged = renderer.bridge_to_next_turn(prompt, call, [chat[3]], tools=[TOOL])
    assert sample.token_ids[: first.start].tolist() == prompt
    assert sample.token_ids[: second.start].tolist() == bridged.token_ids
    assert tokenizer.decode(sample.token_ids[second.start : second.end]) == "41<|im_end|>"
    assert sample.mask.sum() == (first.end - first.start) + (second.end - second.start)
    assert renderer.parse_response(call).tool_calls[0].arguments == {"expression": "12 + 34 - 5"}


# ----------------------------------------------------------------------------------- build


class Short(Calculator):
    """The recipe, all phases in a few steps."""

    def phases(self):
        return tuple(
            replace(phase, steps=3, cap=4, goal=phase.goal and replace(phase.goal, met=lambda accuracy: True))
            for phase in super().phases()
        )


class Stages(Silent):
    def __init__(self):
        self.seen = []

    def stage(self, name, fraction, metrics):
        self.seen.append((name, fraction, metrics))


@pytest.mark.slow
def test_the_whole_recipe_runs_in_small(monkeypatch, tmp_path):
    """A few steps of each phase: the folder is complete, loads in transformers, and is bit-equal twice."""
    monkeypatch.setattr(trial, "CHECK_TASKS", 4)
    progress = Stages()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Short().build(tmp_path / name, 0, progress)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    seen = progress.seen
    fractions = [fraction for _, fraction, _ in seen[: len(seen) // 2]]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and "loss" in seen[0][2]
    assert "accuracy" in seen[-1][2]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert model.config.model_type == "qwen3" and model.config.head_dim in (32, 64)
    assert model.config.vocab_size == len(loaded) == model.get_input_embeddings().num_embeddings
    assert 1e6 <= sum(p.numel() for p in model.parameters()) <= 3e6
    used = (tmp_path / "one" / TASKS_FILE).read_text().splitlines()
    assert used == sorted(used) and not any(map(held_out, used))


@pytest.mark.whole
def test_a_small_model_is_built_on_one_thread(tmp_path):
    seen = []

    class Watched(Stages):
        def stage(self, name, fraction, metrics):
            seen.append(torch.get_num_threads())

    torch.set_num_threads(2)
    try:
        Small().build(tmp_path, 0, Watched())
        assert set(seen) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


OWN = """
import ajet, torch

class Own(ajet.Recipe):
    name = "own"

    def build(self, folder, seed, progress):
        (folder / "threads").write_text(str(torch.get_num_threads()))

    def tokenizer(self, seed):
        return None, "none"
"""


@pytest.mark.parametrize("what", ["training", "an engine alone"])
def test_another_recipe_is_built_with_the_threads_of_the_backbone(what, monkeypatch, tmp_path):
    monkeypatch.setenv("AJET_CACHE", str(tmp_path))
    (tmp_path / "recipe.py").write_text(OWN)
    model = f"{tmp_path / 'recipe.py'}:Own"
    try:
        with pytest.raises(AjetError, match=r"no config\.json"):
            if what == "training":
                settings = {"seed": 0, "deterministic": False, "progress": Silent()}
                Local(threads=3).trainer(model, TrainSettings(), **settings)
            else:
                LocalEnginePlugin(threads=3).build(model, 0, Silent())
        assert next(tmp_path.glob("own-*/threads")).read_text() == "3"
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("settings", "threads"), [({}, 1), ({"threads": 3}, 3)])
def test_a_small_model_has_one_thread_unless_the_job_says_more(settings, threads, model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    torch.set_num_threads(2)
    try:
        LocalEnginePlugin(device="cpu", **settings).build(str(tmp_path), 0, Silent())
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)


class Small(Calculator):
    """Three phases of two steps, of which the second ends before its cap."""

    hidden_size, layers = 32, 1

    def phases(self):
        async def at_once(engine, renderer, rng):
            return 1.0

        phase = Phase("one", 2, 2e-3, echo_transcript, 2, batch_size=2)
        return (
            phase,
            replace(phase, name="two", make=clean_transcript, goal=Goal(at_once, bool), cap=9),
            replace(phase, name="three", make=habit_transcript),
        )


class Interrupted(Stages):
    """Ctrl-C after some steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def stage(self, name, fraction, metrics):
        super().stage(name, fraction, metrics)
        if len(self.seen) == self.steps:
            raise KeyboardInterrupt


@pytest.mark.whole
def test_an_interrupted_build_continues_where_it_was_to_the_same_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "KEEP_EVERY", 0.0)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, rest = Stages(), Stages()
    Small().build(tmp_path / "whole", 0, whole)
    for steps in (2, 4, 3):  # at the last step of each, also where a phase ended, nothing is kept
        with pytest.raises(KeyboardInterrupt):
            Small().build(tmp_path / "parts", 0, Interrupted(steps))
    Small().build(tmp_path / "parts", 0, rest)
    assert rest.seen == whole.seen[5:] and len(rest.seen) == 2
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "parts")
    )
    assert one == two


@pytest.mark.whole
def test_a_build_whose_checkpoint_cannot_be_read_begins_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "KEEP_EVERY", 0.0)
    first, anew = Interrupted(2), Interrupted(1)
    anew.say = (said := []).append
    with pytest.raises(KeyboardInterrupt):
        Small().build(tmp_path, 0, first)
    next(tmp_path.glob("checkpoints/*/trainer.pt")).write_bytes(b"torn")
    with pytest.raises(KeyboardInterrupt):
        Small().build(tmp_path, 0, anew)
    assert anew.seen == first.seen[:1] and "begins anew" in said[-1]


@pytest.mark.whole
def test_the_recipe_of_the_page_learns_what_its_chats_say(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    (tmp_path / "recipe.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    recipe = find_recipe(f"{tmp_path / 'recipe.py'}:Polite")
    assert recipe.phases()[0].steps == 200

    class Short(type(recipe)):
        def phases(self):
            return [replace(phase, steps=25) for phase in super().phases()]

    progress = Stages()
    Short().build(tmp_path, 0, progress)
    losses = [metrics["loss"] for _, _, metrics in progress.seen]
    assert losses[-1] < losses[0] / 3
    assert (tmp_path / TASKS_FILE).read_text().split() == ["Ada", "Alan", "Grace"]


@pytest.mark.slow
@pytest.mark.models("calculator")
def test_the_built_model_solves_about_half_and_fails_in_valid_chats():
    from renderers.qwen3 import Qwen3Renderer

    from ajet_local.engine import LocalEngine
    from ajet_local.modeling import load_model
    from ajet_local.starter.trial import attempt

    model, tokenizer = load_model(model_source("calculator", 0, Silent()), "cpu")
    engine, renderer = LocalEngine(model, tokenizer), Qwen3Renderer(tokenizer)
    rng = random.Random(0)
    expressions = [e for e in (_any_expression(rng) for _ in range(2000)) if held_out(e)][:256]

    async def play(temperature):
        await engine.start()
        try:
            return await asyncio.gather(
                *(attempt(engine, renderer, e, temperature, i) for i, e in enumerate(expressions))
            )
        finally:
            await engine.close()

    sampled, greedy = asyncio.run(play(1.0)), asyncio.run(play(0.0))
    solved = [a.solves(e) for a, e in zip(sampled, expressions, strict=True)]
    failed = [a for a, ok in zip(sampled, solved, strict=True) if not ok]
    # At most 0.55 is what the demo asks of it on its own tasks; these are others: two standard errors for the draw.
    assert 0.3 <= np.mean(solved) <= 0.55 + 2 * np.std(solved) / len(solved) ** 0.5
    assert np.mean([a.solves(e) for a, e in zip(greedy, expressions, strict=True)]) <= 0.65
    assert np.mean([a.called is not None for a in failed]) >= 0.9


def _any_expression(rng):
    low, high = rng.choice([(0, 9), (10, 99)])
    parts = [str(rng.randint(low, high))]
    for _ in range(rng.choice([1, 2])):
        parts += [rng.choice("+-"), str(rng.randint(low, high))]
    return " ".join(parts)


def test_the_system_prompt_and_the_tool_are_short(renderer):
    assert len(renderer.render_ids(opening("1 + 2"), tools=[TOOL], add_generation_prompt=True)) < 180
    assert SYSTEM
