"""`smollm2-tools`: SmolLM2-135M-Instruct, fine-tuned so that it calls tools, also those that it has never seen.

The base model calls none, so reinforcement learning with tools would have nothing to begin with. It learns from chats about invented
tools (`tool_chats`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ajet_local.fine_tuned import FineTuned
from ajet_local.smollm2.recipe import SmolLM2

if TYPE_CHECKING:
    from ajet.chat.renderer import Chat
    from ajet.interfaces.backbone import Sample
    from ajet_local.smollm2.tool_chats import Lesson
    from ajet_local.starter.transcripts import Transcript

STEPS = 46
GROUPS, GROUP = 2, 5
"""Sets of tools in a step, and chats with each, which share its prompt."""
FINDING = 0.02
"""Share of the sets in which one call finds what the next one needs."""
NAME_WEIGHT = 3.0
"""Weight of the tokens of a tool's name: which tool it is is the hardest choice of a call, and one of many tokens."""


class SmolLM2Tools(FineTuned):
    """SmolLM2-135M-Instruct that calls tools, also those that it has never seen: `smollm2`, fine-tuned on this machine in minutes."""

    name = "smollm2-tools"
    base = SmolLM2
    peak_rate = 4e-4
    warm_up = 4
    frozen = 15

    def chats(self, seed: int) -> Sequence[Sequence[Lesson]]:
        """See `FineTuned.chats`."""
        from ajet_local.smollm2.tool_chats import finding_group, group

        rng = random.Random(seed)
        sets = [finding_group if rng.random() < FINDING else group for _ in range(STEPS * GROUPS)]
        lessons = [lesson for make in sets for lesson in make(rng, GROUP)]
        return [lessons[begin : begin + GROUPS * GROUP] for begin in range(0, len(lessons), GROUPS * GROUP)]

    def samples(self, chat: Chat, transcript: Transcript) -> Sequence[Sample]:
        """See `FineTuned.samples`. Wrong calls are not trained, and names weigh more."""
        from ajet_local.smollm2.tool_chats import Lesson

        assert isinstance(transcript, Lesson)
        return [_weighed(sample, chat, transcript) for sample in super().samples(chat, transcript)]


def _weighed(sample: Sample, chat: Chat, lesson: Lesson) -> Sample:
    """The sample of a lesson, which is one because the chat template keeps what it wrote before."""
    import numpy as np

    mask, weights = sample.mask.copy(), sample.weights.copy()
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    answers = [index for index, message in enumerate(lesson.messages) if message["role"] == "assistant"]
    for (start, end), index in zip(edges.reshape(-1, 2).tolist(), answers, strict=True):
        mask[start:end] = index in lesson.learned
        for call in lesson.messages[index].get("tool_calls", ()):
            name = call["function"]["name"]
            pieces = [chat.text_of(token) for token in sample.token_ids[start:end].tolist()]
            begin = "".join(pieces).index(name)
            at = np.cumsum([0, *map(len, pieces)])  # where each token begins in the text
            named = (at[:-1] < begin + len(name)) & (at[1:] > begin)
            weights[start:end][named] = NAME_WEIGHT
    return replace(sample, mask=mask, weights=weights * mask)
