"""A session answers and records the calls of one attempt at an episode."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
import secrets
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np

from ajet.capture.context import answering, passthrough
from ajet.capture.limits import LARGE_BODY, MANY_TOOLS, refuse_oversized
from ajet.capture.off_loop import off_loop
from ajet.capture.refusals import Refusal
from ajet.capture.replies import Form, NotRecorded, Replies, request_of
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.stream_buffer import Emit, StreamBuffer
from ajet.capture.structured import check_schema, check_wanted, is_free, misfit
from ajet.capture.targets import Target, choose_target
from ajet.capture.wires import Answer, ChatRequest, Refused
from ajet.chat.images import Images, with_data
from ajet.chat.messages import BadMessage, normalise_tools
from ajet.chat.renderer import Chat
from ajet.chat.streaming import stop_at, stop_of
from ajet.interfaces.engine import ChatModelFailed, Engine
from ajet.tracker.call import Call, Exchange, Message, MessageNode, new_root
from ajet.tracker.conversations import recognise
from ajet.tracker.prompt import TAIL, ClientChat, Prompt, as_sent, make_prompt
from ajet.tracker.record import EpisodeRecord, as_ids, check_generation, merging_key
from ajet.types import (
    AjetError,
    FinishReason,
    Float32,
    GenerateRequest,
    Generation,
    GenerationDelta,
    Int32,
    Sampling,
    Spent,
)

T = TypeVar("T")
_KEY_PREFIX = "ajet-"
_MOST_REFUSALS = 1_000
_LONGEST_REFUSAL = 1_000
"""Maximum characters of a message that is kept."""
_TOO_LONG, _FAILED = "context_length_exceeded", "engine_error"
_SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "stop")
_KEY = re.compile(rf"{_KEY_PREFIX}[\w-]{{32}}")


def is_key(text: str) -> bool:
    """Whether a text has the form of a session's key."""
    return _KEY.fullmatch(text) is not None


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


@dataclass(frozen=True, slots=True)
class _Asked:
    """A parsed request: the agent, the target, and its place among the conversations."""

    request: ChatRequest
    agent: str
    target: Target
    key: str
    chat: Chat | None = None
    """The chat format with the request's variables; None if no engine answers."""
    tools: Sequence[Message] = ()
    client_chat: ClientChat | None = None
    """None for a request without messages, which continues text."""
    started: float = field(default_factory=time.time)
    """When it arrived, in seconds since 1970."""

    @property
    def chat_end(self) -> MessageNode | None:
        """The last message."""
        return self.client_chat.recognised.chat_end if self.client_chat else None

    @property
    def offered(self) -> Sequence[Message]:
        """The tools that the answer may call."""
        return self.tools if self.request.may_call else ()


@dataclass(frozen=True, slots=True)
class _Sampled:
    """What an engine returned."""

    prompt: Prompt
    sampling: Sampling
    generation: Generation


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer that has not been delivered yet, so nothing of it is recorded."""

    number: int
    asked: _Asked
    answer: Answer
    sampled: _Sampled | None = None
    """None if a chat model answered."""
    misfit: Refused | None = None
    """Why the answer does not have the requested form."""


@dataclass(slots=True)
class Session:
    """One attempt at an episode. `answer` runs on the engine's loop; all other methods are read after it."""

    episode: str
    seed_key: str
    """The source of the sampling seeds: equal keys sample equal tokens."""
    answerer: Answerer
    key: str = field(default_factory=lambda: f"{_KEY_PREFIX}{secrets.token_urlsafe(24)}")
    record: EpisodeRecord = field(default_factory=EpisodeRecord)
    counters: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    """The first refusals; `counters` count all."""
    spent: Spent = field(default_factory=Spent)
    """What the answered calls used."""
    engine_error: str | None = None
    in_flight: int = 0
    on_change: Callable[[], None] = lambda: None
    _numbers: int = 0
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _replies: dict[str, tuple[Choice, MessageNode]] = field(default_factory=dict)
    """Each reply by its id, with its place among the conversations; of several choices the first."""

    def note(self, error: Refused) -> Refusal:
        """Count a refused call, and keep it unless there are too many."""
        self.counters[f"refused:{error.code}"] += 1
        refusal = Refusal(error.code, str(error)[:_LONGEST_REFUSAL])
        if len(self.refusals) < _MOST_REFUSALS:
            self.refusals.append(refusal)
        return refusal

    async def answer(
        self, request: ChatRequest, agent: str, target: str | None, blocks_loop: bool
    ) -> list[Answer]:
        """Answer all choices of a request and record them. Raises Refused."""
        return self.take(request, await self.choices(request, agent, target, blocks_loop))

    async def choices(
        self,
        request: ChatRequest,
        agent: str,
        target: str | None,
        blocks_loop: bool,
        emit: Emit | None = None,
    ) -> list[Choice]:
        """Answer all choices of a request; nothing is recorded before they are taken. ``emit`` receives
        their text as it becomes final. Cancelling stops the generation. Raises Refused."""
        with self._in_flight():
            check_wanted(request)
            chosen = choose_target(self.answerer.targets, agent, target)
            if not chosen.model and chosen.replies is None:
                await self._refuse_oversized(request)
            request = await self._without_images(request, chosen)
            chat = await self._chat_for(request, chosen)
            asked = self._understand(request, agent, chosen, chat)
            first, self._numbers = self._numbers, self._numbers + request.n
            try:
                await check_schema(request)
                choices = await self._answer_all(asked, first, blocks_loop, emit)
            except Refused as error:
                self._keep_refused(asked, first, error)
                raise
            if not is_free(request):
                choices = [replace(c, misfit=await misfit(request, c.answer)) for c in choices]
            return choices

    async def _answer_all(
        self, asked: _Asked, first: int, blocks_loop: bool, emit: Emit | None
    ) -> list[Choice]:
        n = asked.request.n
        if asked.target.replies is not None:
            replies = asked.target.replies[self.episode]
            return [self._replay(asked, replies, first + i, i, emit) for i in range(n)]
        if asked.target.model:
            return await _all(self._ask_model(asked, first + i, i, emit) for i in range(n))
        await self._render_apart(asked)
        prompt = self._prompt(asked)
        return await _all(self._sample(asked, prompt, first + i, i, blocks_loop, emit) for i in range(n))

    def take(
        self, request: ChatRequest, choices: Sequence[Choice], reply_id: str | None = None
    ) -> list[Answer]:
        """Record the choices of a request, all at once, as they are delivered to the client. Raises Refused
        if the episode has ended, and for an answer without the requested form, which is recorded."""
        self._refuse_if_closed()
        chat_end = [self._record(choice) for choice in choices]
        if reply_id and chat_end[0]:
            self._replies[reply_id] = choices[0], chat_end[0]
        for choice in choices:
            if choice.misfit:
                raise choice.misfit
        return [choice.answer for choice in choices]

    async def kept(self, reply_id: str) -> None:
        """Wait until a reply that was taken may be delivered. At once here; a session that stores replies overrides it."""

    async def close(self) -> None:
        """Cancel calls in flight; later ones are refused and nothing more is recorded."""
        self.record.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def _in_flight(self) -> Iterator[None]:
        """A block in which the current task is answering a call."""
        self._refuse_if_closed()
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self.in_flight += 1
        self.on_change()
        try:
            yield
        finally:
            self._tasks.discard(task)
            self.in_flight -= 1
            self.on_change()

    # ---------------------------------------------------------------- the request

    async def _refuse_oversized(self, request: ChatRequest) -> None:
        """Refuse what cannot fit in the engine's context, before anything is kept of it. Raises Refused."""
        chat, most = self.answerer.chat, self.answerer.context_length
        assert chat
        try:
            if request.apart and request.size > LARGE_BODY:
                await off_loop(refuse_oversized, request, chat, most)
            else:
                refuse_oversized(request, chat, most)
        except Refused:
            self.counters["context_overflow"] += 1
            raise

    async def _chat_for(self, request: ChatRequest, target: Target) -> Chat | None:
        """The chat format with the variables that the request sets; None if no engine answers. Raises Refused for a variable
        that the model does not have, and for tools whose calls could not be read."""
        chat = self.answerer.chat
        if target.model and request.template:
            raise Refused(
                f"target {target.name!r} is answered by a chat model, whose chat template is not known here; remove "
                f"{', '.join(request.template)}",
                code="unsupported_parameter",
            )
        if target.model or target.replies is not None or chat is None:
            return None
        if request.template:
            try:
                chat = await off_loop(chat.with_variables, request.template)
            except AjetError as error:
                raise Refused(str(error), code="unsupported_parameter") from None
        if request.tools and request.may_call and chat.calls_fault:
            raise Refused(chat.calls_fault, code="tools_unreadable")
        return chat

    async def _without_images(self, request: ChatRequest, target: Target) -> ChatRequest:
        """The request with references in the place of its images, which are checked and kept. Raises Refused."""
        taking, chat = self.answerer.images, self.answerer.chat
        if not any(message.get("content").__class__ is list for message in request.messages):
            return request  # the usual case, at no cost
        try:
            messages = await taking.fetched(request.messages)
            if request.apart and request.size > LARGE_BODY:
                messages, images = await off_loop(taking.take, messages)
            else:
                messages, images = taking.take(messages)
        except BadMessage as error:
            raise Refused(str(error), code=error.code) from None
        if not images:
            return request
        if not target.model and target.replies is None:
            if chat is None or chat.vision is None:
                raise Refused(self._without_vision(), code="unsupported_content")
            chat.vision.images.update(images)
        self.record.images |= images
        return replace(request, messages=messages)

    def _without_vision(self) -> str:
        engine = self.answerer.engine
        if engine is not None and not hasattr(engine, "vision"):
            return f"the request has an image, but {type(engine).__name__} does not take images; use the local backbone, or send text"
        return (
            f"the request has an image, but the model ({engine.model_type if engine else 'none'}) reads only text; set model to "
            "a vision-language model, or send text"
        )

    async def _render_apart(self, asked: _Asked) -> None:
        """Render a large chat that continues no conversation off the loop. The chat caches the rendering for
        `_prompt`."""
        request, chat_end, chat = asked.request, asked.chat_end, asked.chat
        is_large = request.size > LARGE_BODY or len(request.tools) > MANY_TOOLS
        if chat and chat_end and asked.client_chat and request.apart and is_large and chat_end.held() is None:
            with suppress(AjetError):  # `_prompt` raises and reports it again
                await off_loop(chat.render, as_sent(chat_end, asked.client_chat.recognised.sent), asked.tools)

    def _understand(self, request: ChatRequest, agent: str, target: Target, chat: Chat | None) -> _Asked:
        """The request's place among the conversations."""
        if request.prompt is not None:
            if target.model:
                raise Refused(
                    f"target {target.name!r} is answered by a chat model, which cannot continue text; send messages",
                    code="unsupported_target",
                )
            return _Asked(request, agent, target, f"{target.name}/text", chat)
        try:
            written = json.dumps(request.tools, default=str) if request.tools else "[]"
            # Large ones are not worth the memory.
            read = _tools if len(written) <= LARGE_BODY else _tools.__wrapped__
            tools, key = read(target.name, written)
            root, by_text = self.record.chat(key), self.answerer.by_text
            messages, named = self._messages(request)
            recognised = recognise(root, messages, by_text=by_text)
            client_chat = ClientChat(recognised, request.continues, named, by_text)
        except BadMessage as error:
            raise Refused(str(error), code=error.code) from None
        return _Asked(request, agent, target, key, chat, tools, client_chat)

    def _messages(self, request: ChatRequest) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        """The whole chat, and the number of the call whose reply it names. A system message at the start of the new
        messages replaces the one of the earlier chat, because each request has its own instructions."""
        if request.after is None:
            return request.messages, None
        if request.after not in self._replies:
            raise Refused(
                f"there is no earlier reply {request.after!r} in this episode; continue one of its own replies or send the "
                "whole chat",
                code="previous_response_not_found",
            )
        choice, chat_end = self._replies[request.after]
        assert choice.asked.client_chat
        chat = as_sent(chat_end, choice.asked.client_chat.recognised.sent)
        if request.messages and request.messages[0].get("role") in ("system", "developer"):
            chat = chat[1:] if chat[0]["role"] == "system" else chat
            return [request.messages[0], *chat, *request.messages[1:]], choice.number
        return [*chat, *request.messages], choice.number

    def _prompt(self, asked: _Asked) -> Prompt:
        """The engine's prompt. Raises Refused if there can be none."""
        try:
            prompt = (
                self._chat_prompt(asked, asked.client_chat) if asked.client_chat else self._text_prompt(asked)
            )
        except AjetError as error:
            if isinstance(error, Refused):
                raise
            raise Refused(str(error), code="unrenderable_chat") from error
        most = self.answerer.context_length
        if prompt.node.length >= most:
            self.counters["context_overflow"] += 1
            raise Refused(
                f"the prompt has {prompt.node.length} tokens, but the model's context holds {most} with the "
                "answer; shorten the history or use a model with a longer context",
                code=_TOO_LONG,
            )
        self.counters["rendered_anew"] += bool(prompt.cause)
        self.counters["drift"] += prompt.drift
        return prompt

    def _chat_prompt(self, asked: _Asked, client_chat: ClientChat) -> Prompt:
        chat = asked.chat
        assert chat
        self.counters["tools_left_out"] += bool(asked.offered) and not chat.shows_tools
        return make_prompt(self.record, chat, asked.key, client_chat, asked.tools)

    def _text_prompt(self, asked: _Asked) -> Prompt:
        """Text as it is, including special tokens, or token ids."""
        chat, given = asked.chat, asked.request.prompt
        assert chat
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
        tree = self.record.tree(asked.key)
        return Prompt(tree.extend(tree.root, as_ids(ids)), new_root())

    # ---------------------------------------------------------------- the answer

    async def _ask_model(self, asked: _Asked, number: int, index: int, emit: Emit | None) -> Choice:
        model = asked.target.model
        assert model and asked.chat_end
        sampling, _ = self.answerer.policy.resolve(asked.request, None)
        answering.set(self.episode)
        with passthrough():
            messages = with_data(asked.chat_end.chat(), self.record.images)
            answer = model.complete(messages, asked.offered, sampling)
            message = dict(await self._or_refuse(answer, f"the model of target {asked.target.name!r}"))
        used = Spent.reported(message.pop("usage", None) or {})
        self.spent += used
        if emit:
            StreamBuffer(emit, index, None, ()).finish(message)
        reason: FinishReason = "tool_calls" if message.get("tool_calls") else "stop"
        return Choice(number, asked, Answer(message, reason, used.prompt_tokens, used.completion_tokens))

    def _replay(
        self, asked: _Asked, replies: Replies[Answer | Refused], number: int, index: int, emit: Emit | None
    ) -> Choice:
        """The recorded reply. Raises the recorded error, and NotRecorded for an unknown request."""
        messages = asked.chat_end.chat() if asked.chat_end else ()
        try:
            request = request_of(Form(replies.ignore), messages, asked.tools, asked.request.prompt)
            answer = replies.take(asked.agent, request)
        except NotRecorded as error:
            self.counters["not_recorded"] += 1
            self.engine_error = str(error)
            raise
        if isinstance(answer, Refused):
            self.counters["context_overflow"] += answer.code == _TOO_LONG
            self.engine_error = str(answer) if answer.code == _FAILED else self.engine_error
            raise answer
        if emit:
            StreamBuffer(emit, index, None, ()).finish(answer.message)
        return Choice(number, asked, answer if asked.request.logprobs else replace(answer, logprobs=None))

    async def _sample(
        self, asked: _Asked, prompt: Prompt, number: int, index: int, blocks_loop: bool, emit: Emit | None
    ) -> Choice:
        chat = asked.chat
        assert chat
        sampling, overridden = self.answerer.policy.resolve(
            asked.request, self._seed(number), chat.stop_token_ids
        )
        for name in overridden:
            self.counters[f"overridden:{name}"] += 1
        ids = prompt.node.ids()
        if self.answerer.limit:
            room = self.answerer.limit - len(ids)
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens or room, room))
        tail = ids[-TAIL:].tolist()
        key = (self.episode, number)
        images = self.record.images_in(ids)
        wanted = GenerateRequest(ids, sampling, key, blocks_loop, asked.target.adapter, images)
        buffer = None
        if emit:
            reader = chat.text_reader() if asked.chat_end is None else chat.reader(tail, asked.offered)
            buffer = StreamBuffer(emit, index, reader, asked.request.stop)
        generation = await self._or_refuse(self._generate(wanted, buffer), "the engine")
        self.spent += Spent(len(ids), len(generation.token_ids))
        message, reason, reasoning = self._message(chat, asked, tail, generation, number)
        if buffer:
            buffer.finish(message)
        logprobs = _logprobs(chat, generation) if asked.request.logprobs else None
        stops = asked.request.stop if reason == "stop" else ()
        stop = stop_of(chat.text(generation.token_ids.tolist()), stops) if stops else None
        last = buffer.last["reasoning"] if buffer else ""
        answer = Answer(message, reason, len(ids), len(generation.token_ids), logprobs, reasoning, stop, last)
        return Choice(number, asked, answer, _Sampled(prompt, sampling, generation))

    async def _generate(self, wanted: GenerateRequest, buffer: StreamBuffer | None) -> Generation:
        """What the engine samples. Raises AjetError for an answer that cannot be recorded: it would break a batch."""
        engine = self.answerer.engine
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
        engine, chat = self.answerer.engine, self.answerer.chat
        assert engine and chat
        try:
            check_generation(given, chat.vocabulary)
        except ValueError as error:
            episode, number = wanted.key
            raise AjetError(
                f"{type(engine).__name__} answered call {number} of episode {episode} with {error}. Check the engine with "
                "ajet.testing.conformance"
            ) from None

    async def _or_refuse(self, answer: Awaitable[T], who: str) -> T:
        """What ``who`` answers; its failure is kept, because the agent sees only some SDK error."""
        try:
            return await answer
        except Exception as error:
            name = "" if isinstance(error, AjetError) else f"{type(error).__name__}: "
            self.engine_error = f"{name}{error}"
            status = error.status if isinstance(error, ChatModelFailed) else 400
            raise Refused(f"{who} failed: {self.engine_error}", code=_FAILED, status=status) from error

    def _message(
        self, chat: Chat, asked: _Asked, prompt_tail: list[int], generation: Generation, number: int
    ) -> tuple[dict[str, Any], FinishReason, int | None]:
        """The answer as a message, why it ended, and how many of its tokens are reasoning."""
        ids = generation.token_ids.tolist()
        if asked.chat_end is None:
            content = chat.text(ids)
            content = content[: stop_at(content, asked.request.stop)]
            return {"role": "assistant", "content": content}, generation.finish_reason, None
        parsed = chat.parse(ids, prompt_tail, asked.offered)
        self.counters.update(parsed.counts)
        content = parsed.content[: stop_at(parsed.content, asked.request.stop)]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if parsed.tool_calls:
            used = {c["id"] for m in asked.chat_end.chat() for c in m.get("tool_calls") or ()}
            ids_written = [i if i not in used else "" for i in parsed.call_ids]
            message["tool_calls"] = [
                {
                    # Kimi's chat templates write the id where other templates write the name.
                    "id": ids_written[i] or _mint(f"{self.episode}/{number}/{i}"),
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
        return message, reason, parsed.reasoning_tokens

    # ---------------------------------------------------------------- recording

    def _record(self, choice: Choice) -> MessageNode | None:
        """Record an answer; return its node among the conversations."""
        asked, answer, sampled = choice.asked, choice.answer, choice.sampled
        kept = self._exchange(asked, choice.number)
        kept |= {"stop": answer.stop, "reasoning_tokens": answer.reasoning_tokens}
        kept["seconds"] = max(time.time() - asked.started, 0.0)  # the clock may be set back
        if asked.chat_end is None:
            kept["said"] = str(answer.message["content"])
        if sampled is None:
            return self.record.add(Exchange(**kept), answer.message)
        tree, made = self.record.tree(asked.key), sampled.prompt
        trained = asked.target.trained and self.answerer.policy.training and not sampled.sampling.greedy
        call = Call(
            **kept,
            prompt=made.node,
            end=tree.extend(made.node, sampled.generation.token_ids),
            generation=sampled.generation,
            temperature=sampled.sampling.temperature or 1.0,
            trained=trained,
            parent=made.parent,
            cause=made.cause,
            basis=made.basis,
        )
        node = self.record.add(call, answer.message)
        if node and answer.last_reasoning:  # an equal reply may be sent without streaming
            node.last_reasoning = answer.last_reasoning
        return node

    def _keep_refused(self, asked: _Asked, number: int, error: Refused) -> None:
        """Keep an error for recordings, except those that only repeat that the episode has ended."""
        if asked.chat_end is None or self.record.closed or len(self.record.refused) >= _MOST_REFUSALS:
            return
        message = str(error)[:_LONGEST_REFUSAL]
        kept = self._exchange(asked, number)
        self.record.add(Exchange(**kept, code=error.code, status=error.status, error=message))

    def _exchange(self, asked: _Asked, number: int) -> dict[str, Any]:
        """What is kept of a request."""
        if asked.tools:
            self.record.tools[asked.key] = asked.tools
        return {
            "number": number,
            "agent": asked.agent,
            "target": asked.target.name,
            "key": asked.key,
            "chat_end": asked.chat_end,
            "continues": asked.request.continues,
            "text": asked.request.prompt,
            "sampling": _sampling_of(asked.request),
            "started": asked.started,
        }

    def _seed(self, number: int) -> int:
        digest = hashlib.blake2b(
            f"{self.seed_key}/{number}".encode(errors="surrogatepass"), digest_size=8
        ).digest()
        return int.from_bytes(digest, "big") >> 1

    def _refuse_if_closed(self) -> None:
        if self.record.closed:
            raise Refused(
                f"episode {self.episode} has ended; its calls are no longer answered", code="episode_ended"
            )


@functools.lru_cache(256)
def _tools(target: str, written: str) -> tuple[Sequence[Message], str]:
    """The tools that a request has as JSON in normal form, and its merging key. Agents send the same list
    with each call, and normalising it costs more than all the rest. Raises BadMessage."""
    tools = normalise_tools(json.loads(written))
    return tools, merging_key(target, tools)


def _sampling_of(request: ChatRequest) -> dict[str, Any]:
    """The sampling parameters that a request sets."""
    given = {name: getattr(request, name) for name in _SAMPLING}
    several = {"n": request.n} if request.n > 1 else {}
    return {name: value for name, value in given.items() if value not in (None, ())} | several


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
        _concatenated([d.token_ids for d in deltas]),
        np.concatenate([d.logprobs for d in deltas]),
        _concatenated([d.weight_versions for d in deltas]),
        deltas[-1].finish_reason,
    )


def _concatenated(arrays: Sequence[Int32]) -> Int32:
    return np.concatenate(arrays)


def _logprobs(chat: Chat, generation: Generation) -> tuple[tuple[str, float], ...]:
    """(text, logprob) of each token."""
    texts = (chat.text_of(token) for token in generation.token_ids.tolist())
    return tuple(zip(texts, logprobs_for_client(generation.logprobs), strict=True))


def logprobs_for_client(logprobs: Float32) -> list[float]:
    """Logprobs as a client gets them; values that JSON cannot express become the API's lowest value."""
    given: list[float] = np.clip(logprobs, -9999.0, 0.0).tolist()
    return given


current_session: ContextVar[Session | None] = ContextVar("ajet_session", default=None)
"""The session that answers the LLM calls of this context, unless a call carries the key of another."""

threads_without_session: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Plain threads that were started inside an episode and do not carry its context."""
