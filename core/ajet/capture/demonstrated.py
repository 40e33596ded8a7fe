"""Episodes of other models and of people: what a steered episode gets in the place of answers that its model sampled.

Their tokens are not recorded, so the model's chat format writes each answer after the prompt that its request has here. Such calls are
context and are never trained: their logprobs are 0, and their weight version is -1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.capture.fork_replay import Diverged
from ajet.capture.replies import Form, NormalRequest, Replies, request_of
from ajet.chat.messages import normalise
from ajet.chat.renderer import Chat
from ajet.tracker.call import Call, Exchange, MessageNode
from ajet.tracker.record import as_ids
from ajet.types import AjetError, Generation

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A successful episode of another model, or of a person."""

    id: str
    """``demos.jsonl:17``"""
    task: str
    """The id of its task."""
    answers: Sequence[tuple[Sequence[Message], Message]]
    """The chat before each answer, and the answer, in the chat completions form."""


class DemonstratedReplay:
    """The first answers of a demonstration, for requests with the same messages; a chat that begins without a system message goes with
    any. It has the methods of `ajet.capture.fork_replay.ForkReplay`."""

    def __init__(self, demonstration: Demonstration, calls: int) -> None:
        self.places = {place: place for place in range(calls)}
        self.diverged: Future[Diverged] = Future()
        first = demonstration.answers[:calls]
        self._has_system = first[0][0][0].get("role") == "system"
        self._left = {
            place: (request_of(Form(), before, (), None), answer)
            for place, (before, answer) in enumerate(first)
        }

    def take(self, asked: Exchange, chat: Chat | None) -> Call | None:
        """The demonstrated answer to a request, which is then used; None if a model is to answer it. Raises Diverged."""
        if not self._left or not isinstance(asked, Call):
            return None
        messages = asked.chat_end.chat() if asked.chat_end else []
        if messages and not self._has_system and messages[0]["role"] == "system":
            messages = messages[1:]
        request = request_of(Form(), messages, (), asked.text)
        same = (place for place, (before, _) in self._left.items() if before.parts == request.parts)
        if (place := next(same, None)) is None:
            raise self._diverge(f"call {asked.number} differs from {self._difference(request)}")
        _, answer = self._left.pop(place)
        message = normalise(answer, len(messages))
        try:
            if chat is None or asked.rendered is None:
                raise AjetError("it continues text")
            ids = as_ids(chat.sampled(asked.rendered, message))
        except AjetError as error:
            raise self._diverge(f"call {asked.number} cannot have the demonstrated answer: {error}") from None
        generation = Generation(ids, np.zeros(len(ids), np.float32), np.full(len(ids), -1, np.int32), "stop")
        node = MessageNode(None, message)
        return Call(place, asked.agent, asked.target, asked.key, generation=generation, answer=node)

    def end(self) -> Diverged | None:
        """What is different in an episode that has ended, if anything is."""
        if self.diverged.done():
            return self.diverged.result()
        if self._left:
            return self._diverge(f"it ended without answer {min(self._left) + 1} of the demonstration")
        return None

    def _difference(self, request: NormalRequest) -> str:
        replies = Replies(("", before, None) for before, _ in self._left.values())
        return f"the demonstration: {replies.nearest('', request)[0]}"

    def _diverge(self, message: str) -> Diverged:
        error = Diverged(message)
        if not self.diverged.done():
            self.diverged.set_result(error)
        return error
