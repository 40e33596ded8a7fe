"""`smollm2-tools`: SmolLM2-135M-Instruct, fine-tuned so that it calls tools, also those that it has never seen.

The base model calls none, so reinforcement learning with tools would have nothing to begin with. It learns from chats about invented
tools (`tool_chats`). Only the upper half of the layers is trained, which takes two thirds of the time.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet import Recipe, model_source
from ajet_local.smollm2.recipe import SmolLM2

if TYPE_CHECKING:
    from ajet.backbones import Batch, Sample
    from ajet.interfaces.progress import Progress
    from ajet_local.smollm2.tool_chats import Chat

STEPS = 26
GROUPS, GROUP = 4, 5
"""Sets of tools in a step, and chats with each, which share its prompt."""
PEAK_RATE, LOWEST_RATE, WARM_UP = 6e-4, 0.1, 3
"""The learning rate rises over the first steps, and falls in a line to a share of its peak."""
BETAS = (0.9, 0.95)
FROZEN = 15
"""The lowest layers, which are not trained."""
NAME_WEIGHT = 3.0
FINDING = 0.05
"""Share of the sets in which one call finds what the next one needs."""


class SmolLM2Tools(Recipe):
    """SmolLM2-135M-Instruct that calls tools, also those that it has never seen: `smollm2`, fine-tuned on this machine in minutes."""

    name = "smollm2-tools"

    def key(self, seed: int) -> str:
        """See `Recipe.key`; the base model counts, too."""
        return hashlib.sha256(f"{super().key(seed)} {SmolLM2().key(seed)}".encode()).hexdigest()[:16]

    def tokenizer(self, seed: int) -> tuple[Any, str]:
        """See `Recipe.tokenizer`."""
        return SmolLM2().tokenizer(seed)

    def build(self, folder: Path, seed: int, progress: Progress) -> None:
        """Fine-tune `smollm2`. Equal seeds give the same weights on one machine; an interrupted build is continued, to the same
        weights."""
        import torch
        from transformers.utils.logging import disable_progress_bar

        base = model_source(SmolLM2.name, seed, progress)
        progress.say(
            f"model {self.name}: fine-tuning SmolLM2-135M-Instruct on {STEPS * GROUPS * GROUP} chats with invented tools, once; "
            "about 5 minutes on one thread"
        )
        disable_progress_bar()  # a recipe reports its own progress
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._build(base, folder, seed, progress)
        finally:
            torch.set_num_threads(threads)

    def _build(self, base: str, folder: Path, seed: int, progress: Progress) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from ajet_local.cpu import native_bfloat16
        from ajet_local.engine import LocalEngine
        from ajet_local.modeling import load_tokenizer
        from ajet_local.starter.kept import Kept
        from ajet_local.trainer import LocalTrainer

        tokenizer, _ = load_tokenizer(base)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        model.get_input_embeddings().requires_grad_(False)
        for layer in model.model.layers[:FROZEN]:
            layer.requires_grad_(False)
        autocast = torch.bfloat16 if native_bfloat16() else None
        trainer = LocalTrainer(
            model, tokenizer, LocalEngine(model, tokenizer), betas=BETAS, autocast=autocast
        )
        kept = Kept(folder, trainer)
        done = kept.restore(progress)
        for step, batch in enumerate(batches(tokenizer, seed), 1):
            if step > done:
                loss = trainer.update(batch)["loss"]
                progress.stage(f"{self.name} model", step / (STEPS + 1), {"loss": loss})
                kept.keep(step)
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        kept.remove()
        progress.stage(f"{self.name} model", 1.0, {})


def batches(tokenizer: Any, seed: int) -> Iterator[Batch]:
    """The batches of all steps."""
    from ajet.backbones import sft_batch
    from ajet_local.smollm2.tool_chats import finding_group, group

    rng = random.Random(seed)
    for step in range(STEPS):
        samples = []
        for _ in range(GROUPS):
            make = finding_group if rng.random() < FINDING else group
            samples += [to_sample(tokenizer, chat) for chat in make(rng, GROUP)]
        falling = LOWEST_RATE + (1 - LOWEST_RATE) * (1 - step / STEPS)
        yield sft_batch(samples, PEAK_RATE * min(1.0, (step + 1) / WARM_UP) * falling)


def to_sample(tokenizer: Any, chat: Chat) -> Sample:
    """A chat as token ids, exactly those of the model's own calls, with the answers masked for training. The tokens of a tool's name
    weigh `NAME_WEIGHT`: which tool it is is the hardest choice of a call, and one of many tokens."""
    import numpy as np

    from ajet_local.starter.transcripts import make_sample

    tools = list(chat.tools)
    ids: list[int] = []
    weights: list[float] = []
    text = ""
    for index, message in enumerate(chat.messages):
        if message["role"] != "assistant":
            continue
        prompt = tokenizer.apply_chat_template(
            chat.messages[:index], tools=tools, tokenize=False, add_generation_prompt=True
        )
        whole = tokenizer.apply_chat_template(chat.messages[: index + 1], tools=tools, tokenize=False)
        answer = whole[len(prompt) :].removesuffix("\n")
        before = tokenizer.encode(prompt[len(text) :], add_special_tokens=False)
        found = tokenizer(answer, add_special_tokens=False, return_offsets_mapping=True)
        ids += [*before, *found["input_ids"]]
        weights += [0.0] * len(before)
        name = [c["function"]["name"] for c in message.get("tool_calls", ())]
        start = answer.index(name[0]) if name else len(answer)
        end = start + len(name[0]) if name else start
        learned = float(index in chat.learned)
        weights += [
            learned * (NAME_WEIGHT if a < end and b > start else 1.0) for a, b in found["offset_mapping"]
        ]
        text = prompt + answer
    return replace(make_sample(ids, np.array(weights) > 0), weights=np.array(weights, dtype=np.float32))
