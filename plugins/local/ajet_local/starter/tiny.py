"""The base of recipes that train small chat models from scratch, on generated chats."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ajet import Recipe

if TYPE_CHECKING:
    from ajet.interfaces.backbone import Metrics, Sample
    from ajet.interfaces.progress import Progress
    from ajet_local.starter.kept import KeptBuild
    from ajet_local.starter.phases import Goal, Phase
    from ajet_local.starter.transcripts import Transcript
    from ajet_local.trainer import LocalTrainer

log = logging.getLogger("ajet")

BETAS = (0.9, 0.98)
CHECK_EVERY = 30
"""Steps between trials of a phase's goal."""


class TinyRecipe(Recipe):
    """A model of Qwen3's architecture, by default with 1.3 million parameters, trained in `phases`.

    Equal seeds give the same weights, bit for bit. It is built on one thread: several would wait for each other wherever
    something else uses their cores.
    """

    vocabulary: ClassVar[int] = 512
    context_length: ClassVar[int] = 512
    hidden_size: ClassVar[int] = 160
    layers: ClassVar[int] = 4

    @abstractmethod
    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """A few hundred chats, from which the tokenizer is trained."""

    @abstractmethod
    def phases(self) -> Sequence[Phase]:
        """The phases of training, in their order."""

    def tokenizer(self, seed: int) -> tuple[Any, str]:
        """See `Recipe.tokenizer`."""
        from ajet_local.starter.tokenizer import build_tokenizer

        return build_tokenizer(self.corpus(random.Random(seed)), self.vocabulary), "qwen3"

    def architecture(self, tokenizer: Any) -> Any:
        """The model's config. The head size of 32 works with vLLM and verl on a CPU."""
        from transformers import Qwen3Config

        return Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=self.hidden_size * 27 // 10,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden_size // 32,
            num_key_value_heads=self.hidden_size // 32,
            head_dim=32,
            max_position_embeddings=self.context_length,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )

    def network(self, tokenizer: Any) -> Any:
        """A new model in eval mode; its weights depend on torch's seed."""
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_config(self.architecture(tokenizer), dtype=torch.float32).eval()

    def samples(self, model: Any, tokenizer: Any) -> tuple[Any, Callable[[Transcript], Sample]]:
        """What a `Goal` renders chats with, and the function that makes samples of transcripts."""
        from renderers.configs import Qwen3RendererConfig
        from renderers.qwen3 import Qwen3Renderer

        from ajet_local.starter.transcripts import to_sample

        renderer = Qwen3Renderer(tokenizer, Qwen3RendererConfig())
        return renderer, lambda transcript: to_sample(renderer, transcript)

    def save(self, model: Any, tokenizer: Any, folder: Path) -> None:
        """Write the trained model."""
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def build(self, folder: Path, seed: int, progress: Progress) -> None:
        """Train the model, and write it, its tokenizer and `tasks.txt` into ``folder``. An interrupted build is continued, to
        the same weights."""
        import torch
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # a recipe reports its own progress
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._build(folder, seed, progress)
        finally:
            torch.set_num_threads(threads)

    def _build(self, folder: Path, seed: int, progress: Progress) -> None:
        import torch

        from ajet_local.engine import LocalEngine
        from ajet_local.starter.kept import KeptBuild
        from ajet_local.trainer import LocalTrainer

        tokenizer, _ = self.tokenizer(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.network(tokenizer)
        trainer = LocalTrainer(model, tokenizer, LocalEngine(model, tokenizer), betas=BETAS)
        rendering = self.samples(model, tokenizer)
        kept = KeptBuild(folder, trainer)
        position = kept.restore(progress)
        phases = self.phases()
        planned = sum(p.steps for p in phases) + 1  # saving is the last step
        done, begin = 0, 0
        shown: Metrics = {}
        for phase in phases:
            end = begin + phase.most_steps
            if position < end:
                first = max(position - begin, 0)
                for step, metrics in _steps(phase, trainer, *rendering, seed, kept, begin, first):
                    shown = {n: metrics[n] for n in ("loss", "accuracy") if n in metrics}
                    progress.stage(f"{self.name} model", (done + min(step, phase.steps)) / planned, shown)
            done, begin = done + phase.steps, end
        self.save(model, tokenizer, folder)
        kept.write_tasks(folder)
        kept.remove()
        progress.stage(f"{self.name} model", 1.0, shown)


def _steps(
    phase: Phase,
    trainer: LocalTrainer,
    renderer: Any,
    to_sample: Callable[[Transcript], Sample],
    seed: int,
    kept: KeptBuild,
    begin: int,
    first: int,
) -> Iterator[tuple[int, Metrics]]:
    """Run the phase, which is at the position ``begin`` of the build, until its goal is met or its cap is reached, and yield
    each step, from 1, and its metrics. The ``first`` steps are done."""
    from ajet_local.starter.phases import batches

    goal = phase.goal
    for step, batch in enumerate(batches(phase, seed, to_sample, trainer.tokenizer, kept.tasks), 1):
        if step <= first:
            continue
        metrics = trainer.update(batch)
        due = step >= phase.steps and (step - phase.steps) % CHECK_EVERY == 0
        if goal and due:
            metrics["accuracy"] = _try(goal, trainer, renderer, random.Random(f"check {seed} {step}"))
        yield step, metrics
        if goal and due and goal.met(metrics["accuracy"]):
            return
        kept.keep(begin + step)
    if goal:
        log.warning("phase %s: reached its maximum of steps before its goal", phase.name)


def _try(goal: Goal, trainer: LocalTrainer, renderer: Any, rng: random.Random) -> float:
    async def run() -> float:
        await trainer.engine.start()
        try:
            return await goal.trial(trainer.engine, renderer, rng)
        finally:
            await trainer.engine.close()

    return asyncio.run(run())
