"""Recipes that fine-tune another recipe's model on chats: a warm start for reinforcement learning."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ajet import Recipe

if TYPE_CHECKING:
    from ajet.chat.renderer import Chat
    from ajet.interfaces.backbone import Batch, Sample
    from ajet.interfaces.progress import Progress
    from ajet_local.starter.transcripts import Transcript


class FineTuned(Recipe):
    """A model fine-tuned on `chats`. Equal seeds give the same weights on one machine; an interrupted build is continued."""

    base: ClassVar[type[Recipe]]
    """The recipe whose model is fine-tuned."""
    peak_rate: ClassVar[float] = 5e-5
    lowest_rate: ClassVar[float] = 0.1
    """Share of the peak to which the learning rate falls in a line."""
    warm_up: ClassVar[int] = 2
    """Steps over which the learning rate rises."""
    betas: ClassVar[tuple[float, float]] = (0.9, 0.95)
    minutes: ClassVar[int] = 5
    """What a build takes on one idle thread that multiplies in bfloat16; on another, twice that."""
    frozen: ClassVar[int] = 0
    """The lowest layers, which are not trained, nor are then the embeddings. Half of them saves a third of the time."""

    @abstractmethod
    def chats(self, seed: int) -> Sequence[Sequence[Transcript]]:
        """The chats of each optimizer step."""

    def samples(self, chat: Chat, transcript: Transcript) -> Sequence[Sample]:
        """The samples that `ajet sft` makes of a chat: all answers of the assistant are trained."""
        from ajet.learning.sft import FinishedChat as Finished
        from ajet.learning.sft import samples_of

        return samples_of(chat, Finished(transcript.messages, transcript.tools))

    def key(self, seed: int) -> str:
        """See `Recipe.key`; the base model counts, too."""
        return hashlib.sha256(f"{super().key(seed)} {self.base().key(seed)}".encode()).hexdigest()[:16]

    def tokenizer(self, seed: int) -> tuple[Any, str]:
        """See `Recipe.tokenizer`."""
        return self.base().tokenizer(seed)

    def build(self, folder: Path, seed: int, progress: Progress) -> None:
        """Fine-tune the base model, on one thread, as a fixed number of threads makes the result the same. ``tasks.txt`` beside it
        lists the tasks of all chats."""
        import torch
        from transformers.utils.logging import disable_progress_bar

        from ajet.job.models import cached

        base = cached(self.base(), seed, progress)
        disable_progress_bar()  # a recipe reports its own progress
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._build(base, folder, seed, progress)
        finally:
            torch.set_num_threads(threads)

    def _build(self, base: Path, folder: Path, seed: int, progress: Progress) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from ajet.runs.runtime import make_chat
        from ajet_local.cpu import native_bfloat16
        from ajet_local.engine import LocalEngine
        from ajet_local.modeling import load_tokenizer
        from ajet_local.starter.kept import KeptBuild
        from ajet_local.trainer import LocalTrainer

        tokenizer, model_type = load_tokenizer(base)
        chat = make_chat(tokenizer, model_type)
        model = AutoModelForCausalLM.from_pretrained(
            base, dtype=torch.float32, trust_remote_code=False
        ).eval()
        if self.frozen:
            model.get_input_embeddings().requires_grad_(False)
            for layer in model.model.layers[: self.frozen]:
                layer.requires_grad_(False)
        autocast = torch.bfloat16 if native_bfloat16() else None
        trainer = LocalTrainer(
            model, tokenizer, LocalEngine(model, tokenizer), betas=self.betas, autocast=autocast
        )
        kept = KeptBuild(folder, trainer)
        done = kept.restore(progress)
        steps = self.chats(seed)
        count = sum(map(len, steps))
        minutes = self.minutes if autocast else 2 * self.minutes
        progress.say(
            f"model {self.name}: fine-tuning {self.base.name} on {count} chats, once for seed {seed}; about {minutes} minutes on "
            "one idle thread"
        )
        for step, transcripts in enumerate(steps, 1):
            kept.tasks.update(task for transcript in transcripts for task in transcript.tasks)
            if step > done:
                loss = trainer.update(self._batch(chat, transcripts, step, len(steps)))["loss"]
                progress.stage(f"{self.name} model", step / (len(steps) + 1), {"loss": loss})
                kept.keep(step)
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        kept.write_tasks(folder)
        kept.remove()
        progress.stage(f"{self.name} model", 1.0, {})

    def _batch(self, chat: Chat, transcripts: Sequence[Transcript], step: int, steps: int) -> Batch:
        """One optimizer step, from 1."""
        from ajet.learning.sft import sft_batch

        samples = [sample for transcript in transcripts for sample in self.samples(chat, transcript)]
        falling = 1 - (1 - self.lowest_rate) * (step - 1) / steps
        return sft_batch(samples, self.peak_rate * min(1.0, step / self.warm_up) * falling)
