"""Supervised fine-tuning: transcripts as batches for the same loop and Trainer."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ajet.chat import Chat
from ajet.learning.algorithms import SFT
from ajet.learning.batch import RolloutBatch
from ajet.learning.settings import TrainSettings
from ajet.types import Batch, ConfigError, Sample


@dataclass(frozen=True, slots=True)
class Transcript:
    """A finished chat, in the chat completions form."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()


def read_transcripts(path: Path) -> list[Transcript]:
    """Transcripts of a JSON lines file. Raises ConfigError with file and line."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such transcript file.")
    transcripts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: not JSON ({error}). Fix the line.") from None
        messages = data.get("messages") if isinstance(data, dict) else None
        if not isinstance(messages, list) or not any(
            isinstance(m, dict) and m.get("role") == "assistant" for m in messages
        ):
            raise ConfigError(
                f"{path}:{number}: needs `messages`, a list with at least one assistant message."
            )
        transcripts.append(Transcript(messages, data.get("tools") or ()))
    if not transcripts:
        raise ConfigError(f"{path}: holds no transcript.")
    return transcripts


def transcript_sample(chat: Chat, transcript: Transcript) -> Sample:
    """A transcript whose assistant tokens are trained, weight 1 each (scaled by `sft_batch`)."""
    ids, sampled = chat.render_with_mask(transcript.messages, transcript.tools)
    mask = np.array(sampled, np.bool_)
    on = mask.astype(np.float32)
    return Sample(np.array(ids, np.int32), mask, np.full(len(ids), np.nan, np.float32), on, on)


def sft_batch(samples: Sequence[Sample], learning_rate: float) -> Batch:
    """One optimizer step on the mean loss over all trained tokens of the samples."""
    total = sum(int(s.mask.sum()) for s in samples)
    scaled = [replace(s, weights=s.weights / np.float32(total)) for s in samples]
    return Batch(scaled, SFT().loss, [list(range(len(scaled)))], learning_rate)


@dataclass(frozen=True, slots=True)
class TranscriptSource:
    """A `BatchSource` over samples: each epoch is a permutation of its own."""

    samples: Sequence[Sample]
    settings: TrainSettings
    seed: int

    async def batch(self, step: int, version: int) -> RolloutBatch:
        """See `BatchSource.batch`."""
        first = (step - 1) * self.settings.batch_size
        chosen = [
            self.samples[self._at(position)] for position in range(first, first + self.settings.batch_size)
        ]
        tokens = sum(int(s.mask.sum()) for s in chosen)
        return RolloutBatch(sft_batch(chosen, self.settings.rate_at(step)), tokens, {})

    def _at(self, position: int) -> int:
        epoch, offset = divmod(position, len(self.samples))
        order = list(range(len(self.samples)))
        random.Random(f"{self.seed}:{epoch}").shuffle(order)
        return order[offset]


def steps_for(epochs: int, transcripts: int, batch_size: int) -> int:
    """Steps that show every transcript ``epochs`` times."""
    return -(-epochs * transcripts // batch_size)
