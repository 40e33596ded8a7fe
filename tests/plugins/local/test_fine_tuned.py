"""Recipes that fine-tune another recipe's model on chats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ajet import Recipe
from ajet.interfaces.backbone import Batch
from ajet.interfaces.progress import Progress
from ajet_local.cpu import native_bfloat16
from ajet_local.fine_tuned import FineTuned
from ajet_local.starter import kept
from ajet_local.starter.calculator import Calculator
from ajet_local.starter.transcripts import Transcript
from ajet_local.trainer import LocalTrainer
from tests.tiny import save_tiny_model

NAMES = ("Ada", "Alan", "Grace", "Kurt")


class Base(Recipe):
    name = "tiny-base"

    def tokenizer(self, seed: int) -> tuple[Any, str]:
        return Calculator().tokenizer(0)

    def build(self, folder: Path, seed: int, progress: Progress) -> None:
        save_tiny_model(folder, self.tokenizer(seed)[0])


class Polite(FineTuned):
    name = "polite"
    base = Base
    peak_rate = 1e-2

    def chats(self, seed: int) -> Sequence[Sequence[Transcript]]:
        return [[hello(NAMES[step % 4]), hello(NAMES[(step + seed + 1) % 4])] for step in range(6)]


def hello(name: str) -> Transcript:
    chat = [{"role": "user", "content": f"I am {name}."}, {"role": "assistant", "content": f"Hello, {name}!"}]
    return Transcript(chat, tasks=(name,))


class Stages:
    """What a build reports, interrupted after some steps."""

    def __init__(self, steps: int = 99) -> None:
        self.seen: list[float] = []
        self.said: list[str] = []
        self.steps = steps

    def stage(self, name: str, fraction: float, metrics: Any) -> None:
        if "loss" in metrics:
            self.seen.append(metrics["loss"])
        if len(self.seen) == self.steps:
            raise KeyboardInterrupt

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the base model is, built once for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_CACHE", str(cache))


def built(folder: Path, seed: int = 0, progress: Any = None) -> dict[str, bytes]:
    """The files that a build leaves."""
    folder.mkdir(exist_ok=True)
    Polite().build(folder, seed, progress or Stages())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.whole
def test_it_learns_what_its_chats_say_and_lists_their_tasks(tmp_path: Path) -> None:
    progress = Stages()
    files = built(tmp_path / "model", progress=progress)
    assert len(progress.seen) == 6 and progress.seen[-1] < 0.8 * progress.seen[0]
    minutes = 5 if native_bfloat16() else 10
    assert progress.said == [
        f"model polite: fine-tuning tiny-base on 12 chats, once for seed 0; about {minutes} minutes on one idle thread"
    ]
    assert files["tasks.txt"].decode().split() == sorted(NAMES)
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    } <= files.keys() and "checkpoints" not in files


@pytest.mark.slow  # as the starter's recipes continue: test_starter.py
def test_an_interrupted_build_continues_to_the_same_weights_and_another_seed_gives_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "KEEP_EVERY", 0.0)
    whole, rest = Stages(), Stages()
    expected = built(tmp_path / "whole", progress=whole)
    with pytest.raises(KeyboardInterrupt):
        built(tmp_path / "parts", progress=Stages(2))
    assert built(tmp_path / "parts", progress=rest) == expected
    assert rest.seen == whole.seen[1:]
    assert built(tmp_path / "other", seed=1)["model.safetensors"] != expected["model.safetensors"]


@pytest.mark.whole
def test_only_answers_are_trained_and_the_rate_rises_and_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[Batch] = []
    update = LocalTrainer.update

    def seen(trainer: LocalTrainer, batch: Batch) -> Any:
        batches.append(batch)
        return update(trainer, batch)

    monkeypatch.setattr(LocalTrainer, "update", seen)
    built(tmp_path / "model")
    tokenizer = Base().tokenizer(0)[0]
    trained = {tokenizer.decode(s.token_ids[s.mask]) for batch in batches for s in batch.samples}
    no_thoughts = "<think>\n\n</think>\n\n"  # as Qwen3's template writes the last answer of a chat
    assert trained == {f"{no_thoughts}Hello, {name}!<|im_end|>" for name in NAMES}
    rates = [batch.learning_rate for batch in batches]
    assert rates[0] == 0.5e-2 and rates[1:] == sorted(rates[1:], reverse=True) and rates[-1] > 0.1e-2


@pytest.mark.whole
def test_frozen_layers_and_the_embeddings_keep_their_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Polite, "frozen", 1)
    built(tmp_path / "model")
    (before,) = (tmp_path / "cache").glob("tiny-base-*/model.safetensors")
    after = load_file(tmp_path / "model" / "model.safetensors")
    changed = {name for name, weight in load_file(before).items() if not weight.bfloat16().equal(after[name])}
    assert changed and all(name.startswith(("model.layers.1.", "model.norm.")) for name in changed)


@pytest.mark.whole
def test_another_base_model_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Base):
        word: ClassVar[str] = "other"

        def key(self, seed: int) -> str:
            return "0" * 16

    before = Polite().key(0)
    monkeypatch.setattr(Polite, "base", Other)
    assert len(before) == 16 and Polite().key(0) not in (before, Polite().key(1))
