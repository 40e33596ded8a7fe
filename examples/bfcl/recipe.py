"""The warm start: SmolLM2 fine-tuned on a few right calls, without which it never writes one that the checker accepts."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agent import prompt
from questions import gold, questions

from ajet_local.fine_tuned import FineTuned
from ajet_local.smollm2.recipe import SmolLM2
from ajet_local.starter.transcripts import Transcript

BATCH = 8


class Caller(FineTuned):
    """SmolLM2-135M-Instruct after one pass over the right calls of the part ``examples``."""

    name = "bfcl-caller"
    base = SmolLM2
    peak_rate = 2e-4
    frozen = 15

    def chats(self, seed: int) -> Sequence[Sequence[Transcript]]:
        """See `FineTuned.chats`."""
        tasks = questions("examples")
        random.Random(seed).shuffle(tasks)
        chats = []
        for task in tasks:
            answer = {"role": "assistant", "content": gold(task)}
            messages = [*prompt(task.query, task.metadata["functions"]), answer]
            chats.append(Transcript(messages, tasks=(task.id,)))
        return [chats[begin : begin + BATCH] for begin in range(0, len(chats), BATCH)]
