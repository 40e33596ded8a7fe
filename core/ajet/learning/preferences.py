"""Preferences from a file: pairs of chats, one better than the other, as batches for the same loop and Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ajet.chat.renderer import Chat
from ajet.learning.algorithms import DPO
from ajet.learning.batch import RolloutBatch
from ajet.learning.objective import objective
from ajet.learning.settings import TrainSettings
from ajet.learning.sft import (
    FinishedChat,
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

    chosen: FinishedChat
    rejected: FinishedChat


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


def _messages(value: Any, role: str, name: str, where: str) -> Sequence[Message]:
    """A field of a preference as messages; a text is one of ``role``."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return messages_of(value, name, where)


def preference_samples(
    chat: Chat, preferences: Sequence[Preference], longest: int, say: Callable[[str], None]
) -> list[list[Sample]]:
    """The samples of each preference, those of the chosen chat first. What both chats begin with is context, because it is
    equally likely in both; ``say`` gets what `transcript_samples` says.

    Raises ConfigError, which names the first chat of which the chat format cannot write all answers or that has more than
    ``longest`` tokens, and the first pair whose chats are the same.
    """
    sides = transcript_samples(
        chat, [side for p in preferences for side in (p.chosen, p.rejected)], longest, say
    )
    pairs = []
    for preference, good, bad in zip(preferences, sides[::2], sides[1::2], strict=True):
        chosen, rejected = _side(good, bad, 1.0), _side(bad, good, -1.0)
        if not (chosen and rejected):
            raise ConfigError(
                f"{preference.chosen.where}: chosen and rejected do not differ in what the assistant writes. Remove the line."
            )
        pairs.append([*chosen, *rejected])
    return pairs


def _side(samples: Sequence[Sample], others: Sequence[Sample], advantage: float) -> list[Sample]:
    """One side of a pair, trained where it differs from the other side. Both sides divide their common beginning into the
    same samples."""
    side = []
    for sample, other in zip_longest(samples, others[: len(samples)]):
        shared = common_length(sample.token_ids, other.token_ids) if other else 0
        mask = sample.mask & (np.arange(len(sample.mask)) >= shared)
        on = mask.astype(np.float32)
        if mask.any():
            side.append(replace(sample, mask=mask, advantages=on * np.float32(advantage), weights=on))
    return side


@dataclass(frozen=True, slots=True)
class PreferenceSource:
    """A `BatchSource` over the samples of each pair: each epoch is a new permutation, each step the mean loss over its pairs.
    ``epochs`` bounds how often each pair is shown."""

    pairs: Sequence[Sequence[Sample]]
    algorithm: DPO
    settings: TrainSettings
    seed: int
    epochs: int | None = None

    async def batch(self, step: int, version: int) -> RolloutBatch:
        """See `BatchSource.batch`."""
        places = in_epochs(step, self.settings.batch_size, len(self.pairs), self.seed, self.epochs)
        samples = [
            replace(side, pair=number, weights=side.weights / np.float32(len(places)))
            for number, i in enumerate(places)
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
        return RolloutBatch(batch, sum(int(s.mask.sum()) for s in samples), {"pairs": len(places)})
