"""How a request is answered: by the engine, by a chat model, or from a recording. Nothing of an answer is recorded here."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np

from ajet.capture.context import answering_episode, passthrough
from ajet.capture.fork_replay import ForkReplay
from ajet.capture.limits import LARGE_BODY, MANY_TOOLS
from ajet.capture.off_loop import off_loop
from ajet.capture.refusals import Refusal
from ajet.capture.replies import Form, NotRecorded, Replies, request_of
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.stream_buffer import Emit, StreamBuffer
from ajet.capture.targets import Target
from ajet.capture.unseen import told_of_unseen
from ajet.capture.wires import Answer, ChatRequest, Refused, TooLong
from ajet.chat.images import Images, with_data
from ajet.chat.renderer import Chat
from ajet.chat.streaming import stop_at, stop_of
from ajet.interfaces.engine import ChatModelFailed, Engine
from ajet.tracker.call import Call, Exchange, Message, MessageNode, Prompt
from ajet.tracker.conversations import ClientChat
from ajet.tracker.prompt import TAIL, as_sent, make_prompt
from ajet.tracker.record import EpisodeRecord, as_ids, check_generation, joined_kept
from ajet.types import (
    AjetError,
    FinishReason,
    Float32,
    GenerateRequest,
    Generation,
    GenerationDelta,
    Sampling,
    Spent,
)

T = TypeVar("T")
_TOO_LONG, _FAILED = "context_length_exceeded", "engine_error"
_NOTHING = Generation(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.int32), "stop")
"""What a call has sampled before it is answered."""
_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "seed", "stop")


@dataclass(frozen=True, slots=True)
class Answerer:
    """What answers calls: an engine with its chat format, or nothing if every target has a model."""

    engine: Engine | None
    chat: Chat | None
    targets: Sequence[Target]
    policy: SamplingPolicy
    by_text: bool = False
    """Policy ``text``: messages that differ in spacing or reasoning only continue a conversation too."""
    limit: int | None = None
    """Maximum number of tokens of a prompt and its answer together, if it is below what the engine allows."""
    images: Images = field(default_factory=Images)
    """Takes images out of requests."""

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a prompt and its answer together; for an answerer with an engine."""
        assert self.engine
        return self.limit or self.engine.context_length


@dataclass(slots=True)
class Attempt:
    """What the calls of one attempt at an episode share."""

    episode: str
    seed_key: str
    """The source of the sampling seeds: equal keys sample equal tokens."""
    answerer: Answerer
    record: EpisodeRecord = field(default_factory=EpisodeRecord)
    counters: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    """The first refusals; `counters` count all."""
    spent: Spent = field(default_factory=Spent)
    """What the answered calls used."""
    engine_error: str | None = None
    replay: ForkReplay | None = None
    """The answers that a fork gets from its parent's record."""
    replayed: int = 0
    """Tokens of the answers that it got."""
    sampled: int = 0
    """Tokens of the answers that the engine gave, received or not."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer that has not been delivered yet. ``call`` enters the record when it is."""

    asked: Asked
    call: Exchange
    """A `Call`, whose ``end`` is still its prompt, if an engine answered."""
    answer: Answer
    sampling: Sampling | None = None
    """With what the engine sampled."""
    misfit: Refused | None = None
    """Why the answer does not have the requested form."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was understood: the agent, the target, and its place among the conversations."""

    attempt: Attempt
    request: ChatRequest
    agent: str
    target: Target
    key: str
    chat: Chat | None = None
    """The chat format with the request's variables; None if no engine answers."""
    tools: Sequence[Message] = ()
    """Those that the prompt lists."""
    told: Sequence[Message] = ()
    """Those that messages describe."""
    client_chat: ClientChat | None = None
    """None for a request without messages, which continues text."""
    started: float = field(default_factory=time.time)
    """When it arrived, in seconds since 1970."""

    @property
    def chat_end(self) -> MessageNode | None:
        """The last message."""
        return self.client_chat.chat_end if self.client_chat else None

    @property
    def offered(self) -> Sequence[Message]:
        """The tools that the answer may call."""
        return [*self.tools, *self.told] if self.request.may_call else ()

    def recorded(self, number: int, **answer: Any) -> Exchange:
        """The record of the call with a number; a `Call` if ``answer`` has a prompt."""
        kind = Call if "prompt" in answer else Exchange
        return kind(
            number,
            self.agent,
            self.target.name,
            self.key,
            chat_end=self.chat_end,
            continues=self.request.continues,
            text=self.request.prompt,
            model=self.request.model or None,
            sampling=_sampling_of(self.request),
            started=self.started,
            **answer,
        )

    async def answer(self, first: int, blocks_loop: bool, emit: Emit | None) -> list[Choice]:
        """Answer all choices, whose numbers begin with ``first``. Raises Refused."""
        n = self.request.n
        if self.target.replies is not None:
            replies = self.target.replies[self.attempt.episode]
            return [self._replay(replies, first + i, i, emit) for i in range(n)]
        if self.target.model:
            return await _all(self._ask_model(first + i, i, emit) for i in range(n))
        await self._render_apart()
        prompt = self._prompt()
        return await _all(self._sample(prompt, first + i, i, blocks_loop, emit) for i in range(n))

    # ---------------------------------------------------------------- the prompt

    async def _render_apart(self) -> None:
        """Render a large chat that continues no conversation off the loop. The chat caches the rendering for `_prompt`."""
        request, chat_end = self.request, self.chat_end
        is_large = request.size > LARGE_BODY or len(request.tools) > MANY_TOOLS
        if (
            self.chat
            and chat_end
            and self.client_chat
            and request.apart
            and is_large
            and chat_end.held() is None
        ):
            with suppress(AjetError):  # `_prompt` raises and reports it again
                await off_loop(self.chat.render, as_sent(chat_end, self.client_chat.sent), self.tools)

    async def count(self) -> int:
        """The tokens of the prompt that the engine would get now. Raises Refused."""
        if self.chat is None:
            raise Refused(
                f"no tokens can be counted: target {self.target.name!r} is not answered by an engine here",
                code="unsupported_target",
            )
        await self._render_apart()
        return self._made().node.length

    def _made(self) -> Prompt:
        """The prompt, however long. Raises Refused if there can be none."""
        chat = self.chat
        assert chat
        try:
            if self.client_chat is None:
                return self._text_prompt(chat)
            return make_prompt(self.attempt.record, chat, self.key, self.client_chat, self.tools)
        except AjetError as error:
            if isinstance(error, Refused):
                raise
            raise Refused(str(error), code="unrenderable_chat") from error

    def _prompt(self) -> Prompt:
        """The engine's prompt. Raises Refused if there can be none."""
        counters, chat = self.attempt.counters, self.chat
        assert chat
        prompt = self._made()
        counters["tools_left_out"] += (
            self.client_chat is not None and bool(self.offered) and not chat.shows_tools
        )
        most = self.attempt.answerer.context_length
        if prompt.node.length >= most:
            counters["context_overflow"] += 1
            raise TooLong(f"the prompt has {prompt.node.length} tokens", prompt.node.length, most)
        counters["rendered_anew"] += bool(prompt.cause)
        counters["drift"] += prompt.drift
        return prompt

    def _text_prompt(self, chat: Chat) -> Prompt:
        """Text as it is, including special tokens, or token ids."""
        given = self.request.prompt
        ids = (
            chat.tokenizer.encode(given.encode(errors="replace").decode())
            if isinstance(given, str)
            else given
        )
        if not ids or not all(0 <= i < len(chat.tokenizer) for i in ids):
            raise Refused(
                f"prompt must hold at least one token, and token ids below {len(chat.tokenizer)}",
                code="invalid_request",
            )
        tree = self.attempt.record.tree(self.key)
        return Prompt(tree.extend(tree.root, as_ids(ids)))

    # ---------------------------------------------------------------- a chat model, a recording

    async def _ask_model(self, number: int, index: int, emit: Emit | None) -> Choice:
        attempt, model, call = self.attempt, self.target.model, self.recorded(number)
        assert model and self.chat_end
        replayed = attempt.replay and attempt.replay.take(call, self.tools, None)
        if replayed:
            assert replayed.answer
            message = dict(replayed.answer.message)
            if emit:
                StreamBuffer(emit, index, None, ()).finish(message)
            return Choice(self, call, Answer(message, _reason(message), 0, 0))
        sampling, _ = attempt.answerer.policy.resolve(self.request, None)
        answering_episode.set(attempt.episode)
        with passthrough():
            messages = with_data(self.chat_end.chat(), attempt.record.images)
            answer = model.complete(messages, self.offered, sampling)
            message = dict(await self._or_refuse(answer, f"the model of target {self.target.name!r}"))
        used = Spent.reported(message.pop("usage", None) or {})
        attempt.spent += used
        if emit:
            StreamBuffer(emit, index, None, ()).finish(message)
        answered = Answer(message, _reason(message), used.prompt_tokens, used.completion_tokens)
        return Choice(self, call, answered)

    def _replay(
        self, replies: Replies[Answer | Refused], number: int, index: int, emit: Emit | None
    ) -> Choice:
        """The recorded reply. Raises the recorded error, and NotRecorded for an unknown request."""
        attempt = self.attempt
        messages = self.chat_end.chat() if self.chat_end else ()
        try:
            request = request_of(Form(replies.ignore), messages, self.tools, self.request.prompt)
            told, unseen = told_of_unseen(messages, images=True)
            if unseen and request not in replies:  # a model that reads only text was recorded
                request = request_of(Form(replies.ignore), told, self.tools, self.request.prompt)
            answer = replies.take(self.agent, request)
        except NotRecorded as error:
            attempt.counters["not_recorded"] += 1
            attempt.engine_error = str(error)
            raise
        if isinstance(answer, Refused):
            attempt.counters["context_overflow"] += answer.code == _TOO_LONG
            attempt.engine_error = str(answer) if answer.code == _FAILED else attempt.engine_error
            raise answer
        if emit:
            StreamBuffer(emit, index, None, ()).finish(answer.message)
        answer = answer if self.request.logprobs else replace(answer, logprobs=None)
        return Choice(self, self.recorded(number), answer)

    # ---------------------------------------------------------------- the engine

    async def _sample(
        self, prompt: Prompt, number: int, index: int, blocks_loop: bool, emit: Emit | None
    ) -> Choice:
        attempt, chat, asked_stops = self.attempt, self.chat, self.request.stop
        answerer = attempt.answerer
        assert chat
        sampling, overridden = answerer.policy.resolve(
            self.request, self._seed(number), chat.stop_token_ids, index
        )
        for name in overridden:
            attempt.counters[f"overridden:{name}"] += 1
        ids = prompt.node.ids()
        if answerer.limit:
            room = answerer.limit - len(ids)
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens or room, room))
        tail = ids[-TAIL:].tolist()
        call = self.recorded(
            number,
            prompt=prompt.node,
            end=prompt.node,
            generation=_NOTHING,
            temperature=sampling.temperature or 1.0,
            trained=self.target.trained and answerer.policy.training and not sampling.greedy,
            side=self.target.side,
            parent=prompt.parent,
            cause=prompt.cause,
            made=prompt,
        )
        assert isinstance(call, Call)
        replayed = attempt.replay and attempt.replay.take(call, self.tools, chat)
        buffer = None
        if emit:
            reader = chat.text_reader() if self.chat_end is None else chat.reader(tail, self.offered)
            buffer = StreamBuffer(emit, index, reader, asked_stops)
        if attempt.replay and isinstance(replayed, Call):
            call.generation, call.replayed, call.trained = replayed.generation, True, False
            call.place = attempt.replay.places[replayed.number]
            attempt.replayed += len(call.generation.token_ids)
            if buffer:
                for token in call.generation.token_ids.tolist():
                    buffer.sampled([token])
        else:
            images, key = attempt.record.images_in(ids), (attempt.episode, number)
            wanted = GenerateRequest(ids, sampling, key, blocks_loop, self.target.adapter, images)
            call.generation = await self._or_refuse(self._generate(wanted, buffer), "the engine")
            attempt.spent += Spent(len(ids), len(call.generation.token_ids))
            attempt.sampled += len(call.generation.token_ids)
        generation = call.generation
        message, reason, reasoning = self._message(chat, tail, generation, number)
        if replayed and replayed.answer:  # with the ids of its tool calls, which the agent sends back
            message = dict(replayed.answer.message)
        if buffer:
            buffer.finish(message)
        logprobs = (
            self._logprobs(chat, generation, message, reasoning or 0) if self.request.logprobs else None
        )
        stops = asked_stops if reason == "stop" else ()
        stop = stop_of(chat.text(generation.token_ids.tolist()), stops) if stops else None
        last = buffer.last["reasoning"] if buffer else ""
        answer = Answer(message, reason, len(ids), len(generation.token_ids), logprobs, reasoning, stop, last)
        return Choice(self, call, answer, sampling)

    async def _generate(self, wanted: GenerateRequest, buffer: StreamBuffer | None) -> Generation:
        """What the engine samples. Raises AjetError for an answer that cannot be recorded: it would break a batch."""
        engine = self.attempt.answerer.engine
        assert engine
        if buffer is None:
            whole = await engine.generate(wanted)
            self._check(whole, wanted)
            return whole
        deltas = []
        # Engines stream with generators; closing one stops the generation.
        async with aclosing(cast("AsyncGenerator[GenerationDelta]", engine.stream(wanted))) as stream:
            async for delta in stream:
                self._check(delta, wanted)
                deltas.append(delta)
                buffer.sampled(delta.token_ids.tolist())
        return _joined(deltas)

    def _check(self, given: Generation | GenerationDelta, wanted: GenerateRequest) -> None:
        chat = self.chat
        assert chat
        try:
            check_generation(given, chat.vocabulary)
            if wanted.sampling.report_kept and given.kept is None:
                raise ValueError("no kept tokens, though it is asked for them")
        except ValueError as error:
            episode, number = wanted.key
            raise AjetError(
                f"{type(self.attempt.answerer.engine).__name__} answered call {number} of episode {episode} with {error}. "
                "Check the engine with ajet.testing.conformance"
            ) from None

    async def _or_refuse(self, answer: Awaitable[T], who: str) -> T:
        """What ``who`` answers; its failure is kept, because the agent sees only some SDK error."""
        try:
            return await answer
        except Exception as error:
            name = "" if isinstance(error, AjetError) else f"{type(error).__name__}: "
            failure = self.attempt.engine_error = f"{name}{error}"
            status = error.status if isinstance(error, ChatModelFailed) else 400
            raise Refused(f"{who} failed: {failure}", code=_FAILED, status=status) from error

    def _message(
        self, chat: Chat, prompt_tail: list[int], generation: Generation, number: int
    ) -> tuple[dict[str, Any], FinishReason, int | None]:
        """The answer as a message, why it ended, and how many of its tokens are reasoning."""
        ids, stops = generation.token_ids.tolist(), self.request.stop
        if self.chat_end is None:
            content = chat.text(ids)
            content = content[: stop_at(content, stops)]
            return {"role": "assistant", "content": content}, generation.finish_reason, None
        parsed = chat.parse(ids, prompt_tail, self.offered)
        self.attempt.counters.update(parsed.counts)
        thought = parsed.reasoning or ""
        if "cut_thoughts" in parsed.counts:  # perhaps by a stop text
            thought = thought[: stop_at(thought, stops)]
        content = parsed.content[: stop_at(parsed.content, stops)]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thought:
            message["reasoning_content"] = thought
        if not parsed.tool_calls:
            return message, generation.finish_reason, parsed.reasoning_tokens
        used = {c["id"] for m in self.chat_end.chat() for c in m.get("tool_calls") or ()}
        ids_written = [i if i not in used else "" for i in parsed.call_ids]
        message["tool_calls"] = [
            {
                # Kimi's chat templates write the id where other templates write the name.
                "id": ids_written[i] or _mint(f"{self.attempt.episode}/{number}/{i}"),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for i, (name, arguments) in enumerate(parsed.tool_calls)
        ]
        reason = generation.finish_reason
        return message, "tool_calls" if reason == "stop" else reason, parsed.reasoning_tokens

    def _logprobs(
        self, chat: Chat, generation: Generation, message: Message, reasoning: int
    ) -> tuple[tuple[str, float], ...]:
        """(text, logprob) of each token of the answer's content; if it calls tools, of each token after its thoughts."""
        ids = generation.token_ids.tolist()
        content = None if message.get("tool_calls") else str(message["content"])
        said = chat.spelling(ids, reasoning, content, self.request.stop)
        return tuple(
            zip(map(chat.text_of, ids[said]), logprobs_for_client(generation.logprobs[said]), strict=True)
        )

    def _seed(self, number: int) -> int:
        name = f"{self.attempt.seed_key}/{number}".encode(errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


def _sampling_of(request: ChatRequest) -> dict[str, Any]:
    """The sampling parameters that a request sets."""
    given = {name: getattr(request, name) for name in _SAMPLING}
    several = {"n": request.n} if request.n > 1 else {}
    return {name: value for name, value in given.items() if value not in (None, ())} | several


def _reason(message: Message) -> FinishReason:
    """Why a chat model's answer ended."""
    return "tool_calls" if message.get("tool_calls") else "stop"


def _mint(name: str) -> str:
    """A tool-call id: nine letters and digits, as some chat templates require."""
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()[:9]


async def _all(coroutines: Iterator[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all coroutines; the first failure cancels the others."""
    first, *others = coroutines
    if not others:
        return [await first]
    tasks = [asyncio.ensure_future(c) for c in (first, *others)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _joined(deltas: Sequence[GenerationDelta]) -> Generation:
    if not deltas or deltas[-1].finish_reason is None:
        raise AjetError("the engine's stream ended without a finish reason")
    return Generation(
        np.concatenate([d.token_ids for d in deltas]),
        np.concatenate([d.logprobs for d in deltas]),
        np.concatenate([d.weight_versions for d in deltas]),
        deltas[-1].finish_reason,
        kept=joined_kept(deltas),
    )


def logprobs_for_client(logprobs: Float32) -> list[float]:
    """Logprobs as a client gets them; values that JSON cannot express become the API's lowest value."""
    given: list[float] = np.clip(logprobs, -9999.0, 0.0).tolist()
    return given
