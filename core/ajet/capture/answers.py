"""How a request is answered: by the engine, by a chat model, or from a recording. Nothing of an answer is recorded here."""

from __future__ import annotations

import asyncio
import hashlib
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
from ajet.tracker.call import Call, Exchange, Message
from ajet.tracker.prompt import TAIL, as_sent, make_prompt
from ajet.tracker.record import EpisodeRecord, as_ids, check_generation, joined_kept
from ajet.types import (
    AjetError,
    FinishReason,
    Float32,
    GenerateRequest,
    Generation,
    GenerationDelta,
    Spent,
)

T = TypeVar("T")
C = TypeVar("C", bound=Exchange)
_TOO_LONG, _FAILED = "context_length_exceeded", "engine_error"
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


Choice = tuple[Exchange, Answer]
"""A call and its answer, which has not been delivered yet. The call enters the record when it is; until then the ``end`` of a `Call` is
its prompt."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was understood: its call, and what answers it."""

    attempt: Attempt
    request: ChatRequest
    target: Target
    call: Exchange
    """A `Call` if an engine answers. Of several choices the first."""
    chat: Chat | None = None
    """The chat format with the request's variables; None if no engine answers."""
    told: Sequence[Message] = ()
    """The tools that messages describe."""

    @property
    def offered(self) -> Sequence[Message]:
        """The tools that the answer may call."""
        return [*self.call.tools, *self.told] if self.request.may_call else ()

    async def answer(self, blocks_loop: bool, emit: Emit | None) -> list[Choice]:
        """Answer all choices. Raises Refused."""
        call = self.call
        if isinstance(call, Call):
            await self._render_apart()
            self._prompt(call)
            return await _all(self._sample(c, i, blocks_loop, emit) for i, c in self._choices(call))
        if self.target.replies is not None:
            replies = self.target.replies[self.attempt.episode]
            return [self._replay(replies, c, i, emit) for i, c in self._choices(call)]
        return await _all(self._ask_model(c, i, emit) for i, c in self._choices(call))

    def _choices(self, call: C) -> Iterator[tuple[int, C]]:
        """A call for each choice, and their indices."""
        for index in range(self.request.n):
            yield index, replace(call, number=call.number + index) if index else call

    # ---------------------------------------------------------------- the prompt

    async def _render_apart(self) -> None:
        """Render a large chat that continues no conversation off the loop. The chat caches the rendering for `_prompt`."""
        request, call = self.request, self.call
        is_large = request.size > LARGE_BODY or len(request.tools) > MANY_TOOLS
        if self.chat and request.apart and is_large and call.chat_end and call.chat_end.held() is None:
            with suppress(AjetError):  # `_prompt` raises and reports it again
                await off_loop(self.chat.render, as_sent(call.chat_end, call.sent), call.tools)

    async def count(self) -> int:
        """The tokens of the prompt that the engine would get now. Raises Refused."""
        call = self.call
        if not isinstance(call, Call):
            raise Refused(
                f"no tokens can be counted: target {self.target.name!r} is not answered by an engine here",
                code="unsupported_target",
            )
        await self._render_apart()
        self._make(call)
        return call.prompt.length

    def _make(self, call: Call) -> None:
        """Make the prompt, however long. Raises Refused if there can be none."""
        attempt, chat = self.attempt, self.chat
        assert chat
        if call.chat_end is None:
            tree = attempt.record.tree(call.key)
            call.prompt = tree.extend(tree.root, as_ids(self._text_ids(chat)))
            return
        try:
            make_prompt(attempt.record, chat, call, by_text=attempt.answerer.by_text)
        except AjetError as error:
            raise Refused(str(error), code="unrenderable_chat") from error

    def _prompt(self, call: Call) -> None:
        """Make the engine's prompt. Raises Refused if there can be none."""
        counters, chat = self.attempt.counters, self.chat
        assert chat
        self._make(call)
        counters["tools_left_out"] += (
            call.chat_end is not None and bool(self.offered) and not chat.shows_tools
        )
        length, most = call.prompt.length, self.attempt.answerer.context_length
        if length >= most:
            counters["context_overflow"] += 1
            raise TooLong(f"the prompt has {length} tokens", length, most)
        counters["rendered_anew"] += bool(call.cause)
        counters["drift"] += call.drift

    def _text_ids(self, chat: Chat) -> Sequence[int]:
        """The tokens of a text as it is, including special ones, or token ids."""
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
        return ids

    # ---------------------------------------------------------------- a chat model, a recording

    async def _ask_model(self, call: Exchange, index: int, emit: Emit | None) -> Choice:
        attempt, model = self.attempt, self.target.model
        assert model and call.chat_end
        replayed = attempt.replay and attempt.replay.take(call, None)
        if replayed:
            assert replayed.answer
            message = dict(replayed.answer.message)
            if emit:
                StreamBuffer(emit, index, None, ()).finish(message)
            return call, Answer(message, _reason(message), 0, 0)
        sampling, _ = attempt.answerer.policy.resolve(self.request, None)
        answering_episode.set(attempt.episode)
        with passthrough():
            messages = with_data(call.chat_end.chat(), attempt.record.images)
            answer = model.complete(messages, self.offered, sampling)
            message = dict(await self._or_refuse(answer, f"the model of target {self.target.name!r}"))
        used = Spent.reported(message.pop("usage", None) or {})
        attempt.spent += used
        if emit:
            StreamBuffer(emit, index, None, ()).finish(message)
        return call, Answer(message, _reason(message), used.prompt_tokens, used.completion_tokens)

    def _replay(
        self, replies: Replies[Answer | Refused], call: Exchange, index: int, emit: Emit | None
    ) -> Choice:
        """The recorded reply. Raises the recorded error, and NotRecorded for an unknown request."""
        attempt = self.attempt
        messages = call.chat_end.chat() if call.chat_end else ()
        try:
            request = request_of(Form(replies.ignore), messages, call.tools, call.text)
            told, unseen = told_of_unseen(messages, images=True)
            if unseen and request not in replies:  # a model that reads only text was recorded
                request = request_of(Form(replies.ignore), told, call.tools, call.text)
            answer = replies.take(call.agent, request)
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
        return call, answer if self.request.logprobs else replace(answer, logprobs=None)

    # ---------------------------------------------------------------- the engine

    async def _sample(self, call: Call, index: int, blocks_loop: bool, emit: Emit | None) -> Choice:
        attempt, chat, asked_stops = self.attempt, self.chat, self.request.stop
        answerer = attempt.answerer
        assert chat
        sampling, overridden = answerer.policy.resolve(
            self.request, self._seed(call.number), chat.stop_token_ids, index
        )
        for name in overridden:
            attempt.counters[f"overridden:{name}"] += 1
        ids = call.prompt.ids()
        if answerer.limit:
            room = answerer.limit - len(ids)
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens or room, room))
        tail = ids[-TAIL:].tolist()
        call.end, call.temperature = call.prompt, sampling.temperature or 1.0
        call.trained = self.target.trained and answerer.policy.training and not sampling.greedy
        call.side = self.target.side
        replayed = attempt.replay and attempt.replay.take(call, chat)
        buffer = None
        if emit:
            reader = chat.text_reader() if call.chat_end is None else chat.reader(tail, self.offered)
            buffer = StreamBuffer(emit, index, reader, asked_stops)
        if attempt.replay and isinstance(replayed, Call):
            call.generation, call.replayed, call.trained = replayed.generation, True, False
            call.place = attempt.replay.places[replayed.number]
            attempt.replayed += len(call.generation.token_ids)
            if buffer:
                for token in call.generation.token_ids.tolist():
                    buffer.sampled([token])
        else:
            images, key = attempt.record.images_in(ids), (attempt.episode, call.number)
            wanted = GenerateRequest(ids, sampling, key, blocks_loop, self.target.adapter, images)
            call.generation = await self._or_refuse(self._generate(wanted, buffer), "the engine")
            attempt.spent += Spent(len(ids), len(call.generation.token_ids))
            attempt.sampled += len(call.generation.token_ids)
        generation = call.generation
        message, reason, reasoning = self._message(chat, tail, call)
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
        return call, Answer(
            message, reason, len(ids), len(generation.token_ids), logprobs, reasoning, stop, last
        )

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
        self, chat: Chat, prompt_tail: list[int], call: Call
    ) -> tuple[dict[str, Any], FinishReason, int | None]:
        """The answer as a message, why it ended, and how many of its tokens are reasoning."""
        generation, stops = call.generation, self.request.stop
        ids = generation.token_ids.tolist()
        if call.chat_end is None:
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
        used = {c["id"] for m in call.chat_end.chat() for c in m.get("tool_calls") or ()}
        ids_written = [i if i not in used else "" for i in parsed.call_ids]
        message["tool_calls"] = [
            {
                # Kimi's chat templates write the id where other templates write the name.
                "id": ids_written[i] or _mint(f"{self.attempt.episode}/{call.number}/{i}"),
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


def sampling_of(request: ChatRequest) -> dict[str, Any]:
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
