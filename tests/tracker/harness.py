"""An episode whose calls are scripted one by one, on a real tokenizer and chat format."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ajet.capture.answers import Answerer
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Session
from ajet.capture.targets import Target
from ajet.chat.renderer import Chat
from ajet.interfaces.wire import ChatRequest
from ajet.testing import ScriptedEngine, logprob_of
from ajet.tracker.timelines import Timeline, timelines
from ajet.types import GenerateRequest
from tests import processors, templates, tokenizers

S = {"role": "system", "content": "Be brief."}
U = {"role": "user", "content": "One and one?"}
U2 = {"role": "user", "content": "And twice that?"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(text: Any, call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


@dataclass
class Script:
    """An episode: `call` answers one request as told; `lines` are the timelines, checked."""

    family: str
    by_text: bool = False
    context_length: int = 4096
    targets: Sequence[Target] = (Target("policy"),)
    name: str = "e"
    answers: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        vision = processors.vision(self.family) if self.family in processors.FAMILIES else None
        self.tokenizer = (
            vision.processor.tokenizer
            if vision
            else templates.tokenizer(self.family.removeprefix("template "))
            if self.family.startswith("template ")
            else getattr(tokenizers, self.family)()
        )
        model_type = tokenizers.MODEL_TYPES.get(self.family, "")
        self.engine = ScriptedEngine(
            self.tokenizer,
            self._next,
            context_length=self.context_length,
            model_type=model_type,
            vision=vision,
        )
        self.chat = Chat(self.tokenizer, model_type, vision=vision)
        policy = SamplingPolicy(training=True)
        self.session = Session(
            self.name, self.name, Answerer(self.engine, self.chat, self.targets, policy, by_text=self.by_text)
        )
        self.record = self.session.record

    def _next(self, request: GenerateRequest, prompt: str) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return found

    def call(self, messages: Sequence[Any], *answers: Any, agent: str = "agent", **request: Any) -> Any:
        """One request, answered with ``answers`` (text ended by the turn's end, or ids as they are): the
        assistant message, or all of them if there are several. The caller's objects must stay as they are."""
        return asyncio.run(self.acall(messages, *answers, agent=agent, **request))

    def named(self, messages: Sequence[Any], *answers: Any, **request: Any) -> tuple[Any, str]:
        """As `call`; also the id of the reply, by which a later request may name it in ``after``."""

        async def ask() -> Any:
            self.answers += answers
            asked = ChatRequest("m", messages, request.pop("tools", []), n=len(answers), **request)
            choices = await self.session.choices(asked, "agent", None, False)
            reply_id = f"reply{len(self.record.calls)}"
            found = self.session.take(asked, choices, reply_id)
            replies = [dict(a.message) for a in found]
            return (replies[0] if len(replies) == 1 else replies), reply_id

        found: tuple[Any, str] = asyncio.run(ask())
        return found

    async def acall(
        self, messages: Sequence[Any], *answers: Any, agent: str = "agent", **request: Any
    ) -> Any:
        self.answers += answers
        tools = request.pop("tools", [])
        before = copy.deepcopy((messages, tools))
        asked = ChatRequest("m", messages, tools, n=len(answers), **request)
        found = await self.session.answer(asked, agent, None, False)
        assert (messages, tools) == before, "the caller's objects were changed"
        self.reasons = [a.finish_reason for a in found]
        replies = [dict(a.message) for a in found]
        return replies[0] if len(replies) == 1 else replies

    def lines(self) -> list[Timeline]:
        """The timelines, after checking each trained token against what the engine was asked and gave."""
        found = timelines(self.record.trained_calls)
        asked = {request.key[1]: request for request in self.engine.requests}
        calls = {call.number: call for call in self.record.calls}
        trained: Counter[int] = Counter()
        for line in found:
            assert line.mask.any(), "a timeline without a trained token"
            for span in line.spans:
                trained[span.call] += 1
                given = calls[span.call].generation.token_ids
                assert line.token_ids[: span.start].tolist() == asked[span.call].prompt_ids.tolist()
                assert line.token_ids[span.start : span.end].tolist() == given.tolist()
                expected = [logprob_of(int(t), span.start + i) for i, t in enumerate(given)]
                np.testing.assert_allclose(line.logprobs[span.start : span.end], expected, rtol=1e-6)
            assert int(line.mask.sum()) == sum(s.end - s.start for s in line.spans)
            assert np.isnan(line.logprobs[~line.mask]).all(), "an absent logprob is not a number"
        assert trained == Counter(c.number for c in self.record.trained_calls if len(c.generation.token_ids))
        return found

    def text(self, line: Timeline) -> str:
        """A timeline as text, its trained runs in [brackets]."""
        edges = np.flatnonzero(np.diff(line.mask.astype(int))) + 1
        runs = np.split(np.arange(len(line.mask)), edges)
        pieces = (
            (self.tokenizer.decode(np.maximum(line.token_ids[run], 0).tolist()), line.mask[run[0]])
            for run in runs
            if len(run)
        )
        return "".join(f"[{piece}]" if on else piece for piece, on in pieces)

    def trained(self) -> list[list[str]]:
        """Per timeline the texts that are trained in it."""
        return sorted(
            [self.tokenizer.decode(line.token_ids[s.start : s.end].tolist()) for s in line.spans]
            for line in self.lines()
        )
