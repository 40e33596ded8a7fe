"""A session answers and records the calls of one attempt at an episode."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ajet.capture.context import passthrough
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target, choose_target
from ajet.capture.wires import Answer, ChatRequest, Refused
from ajet.chat import Chat
from ajet.engine import Engine
from ajet.messages import BadMessage, normalise_tools
from ajet.tracker.conversations import Message, Said, recognise
from ajet.tracker.prompt import TAIL, Prompt, make_prompt
from ajet.tracker.record import Call, EpisodeRecord, Exchange, merging_key
from ajet.types import AjetError, FinishReason, GenerateRequest, Generation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answerer:
    """What answers calls: an engine with its chat format, or nothing where every target has a model."""

    engine: Engine | None
    chat: Chat | None
    targets: Sequence[Target]
    policy: SamplingPolicy
    by_text: bool = False
    """Policy ``text``: messages that differ in spacing or reasoning only continue a conversation too."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, understood: who asks which target, and its place among the conversations."""

    request: ChatRequest
    agent: str
    target: Target
    key: str
    tools: Sequence[Message]
    said: Said
    drift: int


@dataclass(slots=True)
class Session:
    """One attempt at an episode. `answer` runs on the engine's loop; everything else reads afterwards."""

    episode: str
    seed_key: str
    """What the sampling seeds derive from: equal keys draw equal tokens."""
    answerer: Answerer
    key: str = field(default_factory=lambda: f"ajet-{secrets.token_urlsafe(24)}")
    record: EpisodeRecord = field(default_factory=EpisodeRecord)
    counters: Counter[str] = field(default_factory=Counter)
    engine_error: str | None = None
    in_flight: int = 0
    on_change: Callable[[], None] = lambda: None
    _numbers: int = 0
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def answer(
        self, request: ChatRequest, agent: str, target: str | None, blocks_loop: bool
    ) -> list[Answer]:
        """Answer all choices of a request and record them. Raises Refused."""
        self._refuse_if_closed()
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self.in_flight += 1
        self.on_change()
        try:
            asked = self._understand(request, agent, choose_target(self.answerer.targets, agent, target))
            numbers = range(self._numbers, self._numbers + request.n)
            self._numbers += request.n
            if asked.target.model:
                return list(await asyncio.gather(*(self._ask_model(asked, n) for n in numbers)))
            prompt = self._prompt(asked)
            return list(await asyncio.gather(*(self._sample(asked, prompt, n, blocks_loop) for n in numbers)))
        finally:
            self._tasks.discard(task)
            self.in_flight -= 1
            self.on_change()

    async def close(self) -> None:
        """Cancel calls in flight; later ones are refused and nothing more is recorded."""
        self.record.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _understand(self, request: ChatRequest, agent: str, target: Target) -> _Asked:
        """The request's place among the conversations."""
        try:
            tools = normalise_tools(request.tools)
            key = merging_key(target.name, tools)
            said, drift = recognise(self.record.chat(key), request.messages, by_text=self.answerer.by_text)
        except BadMessage as error:
            raise Refused(str(error), code=error.code) from None
        return _Asked(request, agent, target, key, tools, said, drift)

    async def _ask_model(self, asked: _Asked, number: int) -> Answer:
        model = asked.target.model
        assert model
        sampling, _ = self.answerer.policy.resolve(asked.request, None)
        with passthrough():
            answer = model.complete(asked.said.chat(), asked.tools, sampling)
            message = dict(await self._or_refuse(answer, f"the model of target {asked.target.name!r}"))
        self._refuse_if_closed()
        self.record.exchanges.append(
            Exchange(number, asked.agent, asked.target.name, asked.key, asked.said.say(message))
        )
        reason: FinishReason = "tool_calls" if message.get("tool_calls") else "stop"
        return Answer(message, reason, 0, 0)

    def _prompt(self, asked: _Asked) -> Prompt:
        """What the engine is to see. Raises Refused if that is impossible."""
        chat, engine = self.answerer.chat, self.answerer.engine
        assert chat and engine
        by_text = self.answerer.by_text
        try:
            prompt = make_prompt(
                self.record, chat, asked.key, asked.said, asked.tools, drift=asked.drift, by_text=by_text
            )
        except AjetError as error:
            raise Refused(str(error), code="unrenderable_chat") from error
        if prompt.node.length >= engine.context_length:
            self.counters["context_overflow"] += 1
            raise Refused(
                f"the prompt has {prompt.node.length} tokens, but the model's context holds {engine.context_length} with the "
                "answer; shorten the history or use a model with a longer context",
                code="context_length_exceeded",
            )
        self.counters["rendered_anew"] += bool(prompt.cause)
        self.counters["drift"] += prompt.drift
        return prompt

    async def _sample(self, asked: _Asked, prompt: Prompt, number: int, blocks_loop: bool) -> Answer:
        chat, engine = self.answerer.chat, self.answerer.engine
        assert chat and engine
        sampling, overridden = self.answerer.policy.resolve(asked.request, self._seed(number))
        self.counters.update(f"overridden:{name}" for name in overridden)
        sampling = replace(sampling, stop_token_ids=chat.stop_token_ids)
        ids = prompt.node.ids()
        wanted = GenerateRequest(ids, sampling, (self.episode, number), blocks_loop)
        generation = await self._or_refuse(engine.generate(wanted), "the engine")
        self._refuse_if_closed()
        message, reason = self._message(chat, ids[-TAIL:].tolist(), generation, asked.request, number)
        self.record.add(
            Call(
                number=number,
                agent=asked.agent,
                target=asked.target.name,
                key=asked.key,
                prompt=prompt.node,
                end=self.record.tree(asked.key).extend(prompt.node, generation.token_ids),
                generation=generation,
                temperature=sampling.temperature or 1.0,
                trained=asked.target.trained and self.answerer.policy.training and not sampling.greedy,
                parent=prompt.parent,
                cause=prompt.cause,
                said=asked.said,
            ),
            message,
        )
        return Answer(message, reason, len(ids), len(generation.token_ids))

    async def _or_refuse(self, answer: Awaitable[T], who: str) -> T:
        """What ``who`` answers; its failure is remembered, as the agent sees it only as some SDK error."""
        try:
            return await answer
        except Exception as error:
            name = "" if isinstance(error, AjetError) else f"{type(error).__name__}: "
            self.engine_error = f"{name}{error}"
            raise Refused(f"{who} failed: {self.engine_error}", code="engine_error") from error

    def _message(
        self,
        chat: Chat,
        prompt_tail: list[int],
        generation: Generation,
        request: ChatRequest,
        number: int,
    ) -> tuple[dict[str, Any], FinishReason]:
        parsed = chat.parse(generation.token_ids.tolist(), prompt_tail)
        self.counters["malformed_tool_calls"] += parsed.malformed
        content = parsed.content
        for stop in request.stop:
            content = content.split(stop, 1)[0]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if parsed.tool_calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {
                    "id": _mint(f"{self.episode}/{number}/{i}"),
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for i, (name, arguments) in enumerate(parsed.tool_calls)
            ]
        reason: FinishReason = (
            "tool_calls"
            if parsed.tool_calls and generation.finish_reason == "stop"
            else generation.finish_reason
        )
        return message, reason

    def _seed(self, number: int) -> int:
        digest = hashlib.blake2b(f"{self.seed_key}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def _refuse_if_closed(self) -> None:
        if self.record.closed:
            raise Refused(
                f"episode {self.episode} has ended; its calls are no longer answered", code="episode_ended"
            )


def _mint(name: str) -> str:
    """A tool-call id: nine letters and digits, as some chat templates demand."""
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()[:9]
