"""A session answers and records the calls of one attempt at an episode."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ajet.capture.context import passthrough
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target, choose_target
from ajet.capture.wires import Answer, ChatRequest, Refused
from ajet.chat import Chat
from ajet.engine import Engine
from ajet.tracker.record import Call, Conversation, EpisodeRecord, as_ids, merging_key
from ajet.types import AjetError, FinishReason, GenerateRequest, Generation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call as messages. ``messages`` are those after the first ``held``, which call ``parent`` and
    its answer hold already."""

    number: int
    agent: str
    target: str
    parent: int | None
    held: int
    messages: tuple[Mapping[str, Any], ...]
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answerer:
    """What answers calls: an engine with its chat format, or nothing where every target has a model."""

    engine: Engine | None
    chat: Chat | None
    targets: Sequence[Target]
    policy: SamplingPolicy


@dataclass(slots=True)
class Session:
    """One attempt at an episode. `answer` runs on the engine's loop; everything else reads afterwards."""

    episode: str
    seed_key: str
    """What the sampling seeds derive from: equal keys draw equal tokens."""
    answerer: Answerer
    key: str = field(default_factory=lambda: f"ajet-{secrets.token_urlsafe(24)}")
    record: EpisodeRecord = field(default_factory=EpisodeRecord)
    exchanges: list[Exchange] = field(default_factory=list)
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
            chosen = choose_target(self.answerer.targets, agent, target)
            numbers = range(self._numbers, self._numbers + request.n)
            self._numbers += request.n
            one = self._ask_model if chosen.model else self._sample
            return list(await asyncio.gather(*(one(request, n, agent, chosen, blocks_loop) for n in numbers)))
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

    async def _ask_model(
        self, request: ChatRequest, number: int, agent: str, target: Target, blocks_loop: bool
    ) -> Answer:
        assert target.model
        sampling, _ = self.answerer.policy.resolve(request, None)
        with passthrough():
            answer = target.model.complete(request.messages, request.tools, sampling)
            message = dict(await self._or_refuse(answer, f"the model of target {target.name!r}"))
        self._refuse_if_closed()
        self.exchanges.append(Exchange(number, agent, target.name, None, 0, tuple(request.messages), message))
        reason: FinishReason = "tool_calls" if message.get("tool_calls") else "stop"
        return Answer(message, reason, 0, 0)

    async def _sample(
        self, request: ChatRequest, number: int, agent: str, target: Target, blocks_loop: bool
    ) -> Answer:
        chat, engine = self.answerer.chat, self.answerer.engine
        assert chat and engine
        key = merging_key(target.name, request.tools)
        ids, known = self._prompt(chat, key, request)
        if len(ids) >= engine.context_length:
            self.counters["context_overflow"] += 1
            raise Refused(
                f"the prompt has {len(ids)} tokens, but the model's context holds {engine.context_length} with the answer; "
                "shorten the history or use a model with a longer context",
                code="context_length_exceeded",
            )
        sampling, overridden = self.answerer.policy.resolve(request, self._seed(number))
        self.counters.update(f"overridden:{name}" for name in overridden)
        sampling = replace(sampling, stop_token_ids=chat.stop_token_ids)
        asked = GenerateRequest(as_ids(ids), sampling, (self.episode, number), blocks_loop)
        generation = await self._or_refuse(engine.generate(asked), "the engine")
        self._refuse_if_closed()
        completion = generation.token_ids.tolist()
        message, reason = self._message(chat, completion, ids, generation, request, number)
        conversation, held, parent = known
        new = as_ids(ids[conversation.end.length :] if conversation else ids)
        prompt = self.record.prompt_node(key, new, conversation)
        self.record.add(
            Call(
                number=number,
                agent=agent,
                target=target.name,
                key=key,
                prompt=prompt,
                end=self.record.end_node(key, prompt, generation.token_ids),
                generation=generation,
                temperature=sampling.temperature or 1.0,
                trained=target.trained and self.answerer.policy.training and not sampling.greedy,
                parent=parent,
            ),
            request.messages,
            message,
        )
        self.exchanges.append(
            Exchange(number, agent, target.name, parent, held, tuple(request.messages[held:]), message)
        )
        return Answer(message, reason, len(ids), len(completion))

    def _prompt(
        self, chat: Chat, key: str, request: ChatRequest
    ) -> tuple[list[int], tuple[Conversation | None, int, int | None]]:
        """Prompt ids, continued from stored ids where the chat continues a recorded conversation."""
        found = self.record.find(key, request.messages)
        if found:
            conversation, held = found
            prompt = conversation.prompt.ids().tolist()
            completion = conversation.end.ids()[len(prompt) :].tolist()
            ids = chat.bridge(prompt, completion, request.messages[held:], request.tools)
            if ids is not None:
                return ids, (conversation, held, conversation.call)
            self.counters["rendered_anew"] += 1
        return chat.render(request.messages, request.tools), (None, 0, None)

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
        completion: list[int],
        prompt: list[int],
        generation: Generation,
        request: ChatRequest,
        number: int,
    ) -> tuple[dict[str, Any], FinishReason]:
        parsed = chat.parse(completion, prompt)
        self.counters["malformed_tool_calls"] += parsed.malformed
        content = parsed.content
        for stop in request.stop:
            content = content.split(stop, 1)[0]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if parsed.tool_calls:
            mint = hashlib.blake2b(self.episode.encode(), digest_size=6).hexdigest()
            message["content"] = content or None
            message["tool_calls"] = [
                {
                    "id": f"call_{mint}_{number}_{i}",
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
