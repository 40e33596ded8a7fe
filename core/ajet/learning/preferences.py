"""Preferences from a file: pairs of chats, one better than the other, as batches for the same loop and Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ajet.chat.renderer import Chat
from ajet.learning.algorithms import DPO
from ajet.learning.batch import RolloutBatch
from ajet.learning.objective import objective
from ajet.learning.settings import TrainSettings
from ajet.learning.sft import (
    Transcript,
    checked_transcript,
    in_epochs,
    messages_of,
    read_lines,
    transcript_samples,
)
from ajet.tracker.tree import common_length
from ajet.types import Batch, ConfigError, Sample

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Preference:
    """Two chats with the same beginning, of which ``chosen`` is better."""

    chosen: Transcript
    rejected: Transcript


def read_preferences(path: Path) -> list[Preference]:
    """Preferences of a JSON lines file: ``chosen`` and ``rejected``, and the ``prompt`` and ``tools`` of both. Each is a list
    of messages or a text: of the user in ``prompt``, else of the assistant. Raises ConfigError with file and line."""
    return read_lines(path, "preference", _preference)


def _preference(data: Mapping[str, Any], where: str) -> Preference:
    prompt = _messages(data.get("prompt") or [], "user", "prompt", where)
    tools = data.get("tools") or ()
    sides = []
    for name in ("chosen", "rejected"):
        own = _messages(data.get(name), "assistant", name, where)
        whole = own if list(own[: len(prompt)]) == list(prompt) else [*prompt, *own]
        sides.append(checked_transcript(whole, tools, where))
    return Preference(*sides)


def _messages(found: Any, role: str, name: str, where: str) -> Sequence[Message]:
    """A field of a preference as messages; a text is one of ``role``."""
    if isinstance(found, str):
        return [{"role": role, "content": found}]
    return messages_of(found, name, where)


def preference_samples(
    chat: Chat, preferences: Sequence[Preference], longest: int
) -> list[tuple[Sample, Sample]]:
    """The chosen and the rejected sample of each preference. What both begin with is context, because it is equally likely
    in both.

    Raises ConfigError, which names the first chat that the chat format cannot render or that has more than ``longest``
    tokens, and the first pair whose chats are the same.
    """
    chosen = transcript_samples(chat, [p.chosen for p in preferences], longest)
    rejected = transcript_samples(chat, [p.rejected for p in preferences], longest)
    pairs = []
    for preference, good, bad in zip(preferences, chosen, rejected, strict=True):
        shared = common_length(good.token_ids, bad.token_ids)
        pair = (_side(good, shared, 1.0), _side(bad, shared, -1.0))
        if not all(sample.mask.any() for sample in pair):
            raise ConfigError(
                f"{preference.chosen.where}: chosen and rejected do not differ in what the assistant writes. Remove the line."
            )
        pairs.append(pair)
    return pairs


def _side(sample: Sample, shared: int, advantage: float) -> Sample:
    """One side of a pair, trained after the ``shared`` tokens."""
    mask = sample.mask & (np.arange(len(sample.mask)) >= shared)
    on = mask.astype(np.float32)
    return replace(sample, mask=mask, advantages=on * np.float32(advantage), weights=on)


@dataclass(frozen=True, slots=True)
class PreferenceSource:
    """A `BatchSource` over pairs of samples: each epoch is a new permutation, each step the mean loss over its pairs."""

    pairs: Sequence[tuple[Sample, Sample]]
    algorithm: DPO
    settings: TrainSettings
    seed: int

    async def batch(self, step: int, version: int) -> RolloutBatch:
        """See `BatchSource.batch`."""
        size = self.settings.batch_size
        samples = [
            replace(side, pair=number, weights=side.weights / np.float32(size))
            for number, i in enumerate(in_epochs(step, size, len(self.pairs), self.seed))
            for side in self.pairs[i]
        ]
        whole = objective(self.algorithm, self.settings)
        batch = Batch(
            samples,
            whole,
            [range(len(samples))],
            self.settings.rate_at(step),
            whole.needs,
            whole.zero_costs_nothing,
            whole.measures,
        )
        return RolloutBatch(batch, sum(int(s.mask.sum()) for s in samples), {"pairs": size})
