"""A session answers and records the calls of one attempt at an episode."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import secrets
import threading
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ajet.capture.answers import (
    Answerer,
    Choice,
    all_of,
    generate,
    read_message,
    sampling_of,
    seed_of,
    spelled_logprobs,
    text_ids,
)
from ajet.capture.context import answering_episode, passthrough
from ajet.capture.demonstrated import DemonstratedReplay
from ajet.capture.fork_replay import Diverged, ForkReplay
from ajet.capture.limits import LARGE_BODY, MANY_TOOLS, refuse_oversized
from ajet.capture.off_loop import off_loop
from ajet.capture.refusals import Refusal
from ajet.capture.replies import Form, NotRecorded, Replies, request_of
from ajet.capture.stream_buffer import Emit, StreamBuffer
from ajet.capture.structured import check_schema, check_wanted, is_free, misfit
from ajet.capture.targets import Target, choose_target
from ajet.chat.images import told_of_unseen, with_data
from ajet.chat.messages import BadMessage, normalise_tools
from ajet.chat.renderer import Chat
from ajet.chat.streaming import stop_of
from ajet.interfaces.engine import ChatModelFailed
from ajet.interfaces.wire import Answer, ChatRequest, Refused, TooLong
from ajet.tracker.call import Call, Exchange, Message, recognise
from ajet.tracker.prompt import as_sent, make_prompt, prompt_tail
from ajet.tracker.record import EpisodeRecord, as_ids, merging_key
from ajet.types import AjetError, FinishReason, GenerateRequest, Spent

T = TypeVar("T")
C = TypeVar("C", bound=Exchange)
_TOO_LONG, _FAILED = "context_length_exceeded", "engine_error"
_KEY_PREFIX = "ajet-"
_MOST_REFUSALS = 1_000
_LONGEST_REFUSAL = 1_000
"""Maximum characters of a message that is kept."""
_KEY = re.compile(rf"{_KEY_PREFIX}[\w-]{{32}}")


def is_key(text: str) -> bool:
    """Whether a text has the form of a session's key."""
    return _KEY.fullmatch(text) is not None


@dataclass(slots=True)
class Session:
    """One attempt at an episode. `answer` runs on the engine's loop; all other methods are read after it."""

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
    replay: ForkReplay | DemonstratedReplay | None = None
    """The answers that a fork gets from its parent's record."""
    replayed: int = 0
    """Tokens of the answers that it got."""
    sampled: int = 0
    """Tokens of the answers that the engine gave, received or not."""
    key: str = field(default_factory=lambda: f"{_KEY_PREFIX}{secrets.token_urlsafe(24)}")
    abandoned: int = 0
    """Answers that have begun, and that the agent has not taken whole: those in flight, and those that it left."""
    in_flight: int = 0
    on_change: Callable[[], None] = lambda: None
    child_refused: Refusal | None = None
    """The last call of a forked child that was refused."""
    memory: int = 0
    """The most bytes that the programs which the workflow runs had in memory at once; 0 if unknown."""
    program: str = ""
    """The first program that the workflow has started itself, and where: ``codex exec (agent.py:17)``."""
    _numbers: int = 0
    _calls: int = 0
    _limits: tuple[int | None, int | None] = (None, None)
    """Of calls and of sampled tokens."""
    _limit_reached: Future[str] = field(default_factory=Future)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _replies: dict[str, tuple[Exchange, bool]] = field(default_factory=dict)
    """The call of each reply by its id, of several choices the first; and whether its chat begins with the request's own
    instructions."""

    def note(self, error: Refused) -> Refusal:
        """Count a refused call, and keep it unless there are too many. That a fork diverged, its failure tells."""
        self.counters[f"refused:{error.code}"] += 1
        refusal = Refusal(error.code, str(error)[:_LONGEST_REFUSAL])
        if len(self.refusals) < _MOST_REFUSALS and not isinstance(error, Diverged):
            self.refusals.append(refusal)
        return refusal

    def limit(self, calls: int | None, tokens: int | None) -> Future[str]:
        """See `Tuner.limit`."""
        self._calls, self._limits = 0, (calls, tokens)
        return self._limit_reached

    def _refuse_beyond_limits(self) -> None:
        self._calls += 1
        calls, tokens = self._limits
        for name, is_over in {
            "calls": calls is not None and self._calls > calls,
            "tokens": tokens is not None and self.spent.completion_tokens + self.replayed >= tokens,
        }.items():
            if is_over:
                if not self._limit_reached.done():
                    self._limit_reached.set_result(name)
                raise Refused(
                    f"the episode has reached its limit of {name}", code="episode_limit", status=403
                )

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
            self._refuse_beyond_limits()
            asked = await self._asked(request, agent, target)
            self._numbers += request.n
            self.abandoned += request.n
            try:
                await check_schema(request)
                choices = await asked.answer(blocks_loop, emit)
            except Exception as error:
                self.abandoned -= request.n
                if isinstance(error, Refused):
                    self._keep_refused(asked.call, error)
                raise
            for what in asked.request.left_out:
                self.counters[f"left_out:{what}"] += 1
            if not is_free(request):
                choices = [(call, replace(a, misfit=await misfit(request, a))) for call, a in choices]
            return choices

    async def count(self, request: ChatRequest, agent: str, target: str | None) -> int:
        """The tokens of the prompt that a request would have now. Nothing is sampled or recorded. Raises Refused."""
        with self._in_flight():
            return await (await self._asked(request, agent, target)).count()

    def take(
        self, request: ChatRequest, choices: Sequence[Choice], reply_id: str | None = None
    ) -> list[Answer]:
        """Record the choices of a request, all at once, as they are delivered to the client. Raises Refused
        if the episode has ended, and for an answer without the requested form, which is recorded."""
        self._refuse_if_closed()
        self.abandoned -= len(choices)
        for call, answer in choices:
            self._record(call, answer)
        if reply_id and (first := choices[0][0]).answer:
            self._replies[reply_id] = first, request.instructed
        answers = [answer for _, answer in choices]
        for answer in answers:
            if answer.misfit:
                raise answer.misfit
        return answers

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

    async def _asked(self, request: ChatRequest, agent: str, target: str | None) -> Asked:
        """The request, checked and understood. Raises Refused."""
        check_wanted(request)
        chosen = choose_target(self.answerer.targets, agent, target, request.model)
        request = self._told_of_unseen(request, chosen)
        if chosen.by_engine:
            await self._refuse_oversized(request)
        request = await self._without_images(request, chosen)
        chat = await self.answerer.chat_for(request, chosen)
        return self._understand(request, agent, chosen, chat)

    async def _refuse_oversized(self, request: ChatRequest) -> None:
        """Refuse what cannot fit in the engine's context, before anything is kept of it. Raises Refused."""
        chat, most = self.answerer.chat, self.answerer.context_length
        assert chat
        try:
            if request.apart and request.size > LARGE_BODY:
                await off_loop(refuse_oversized, request, chat, most)
            else:
                refuse_oversized(request, chat, most)
        except TooLong:
            self.counters["context_overflow"] += 1
            raise

    def _told_of_unseen(self, request: ChatRequest, target: Target) -> ChatRequest:
        """The request with a text in the place of what the model cannot see, as far as the agent has fetched it: after an answer."""
        chat = self.answerer.chat
        messages, left_out = told_of_unseen(
            request.messages, target.by_engine and (chat is None or chat.vision is None)
        )
        return (
            replace(request, messages=messages, left_out=(*request.left_out, *left_out))
            if left_out
            else request
        )

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
        if target.by_engine:
            if chat is None or chat.vision is None:
                raise Refused(self.answerer.blindness(), code="unsupported_content")
            chat.vision.images.update(images)
        self.record.images |= images
        return replace(request, messages=messages)

    def _understand(self, request: ChatRequest, agent: str, target: Target, chat: Chat | None) -> Asked:
        """The request's call, and its place among the conversations."""
        kind = Call if target.by_engine else Exchange
        call = kind(self._numbers, agent, target.name, f"{target.name}/text", started=time.time())
        call.continues, call.text, call.model = request.continues, request.prompt, request.model or None
        call.sampling = sampling_of(request)
        if request.prompt is not None:
            if target.model:
                raise Refused(
                    f"target {target.name!r} is answered by a chat model, which cannot continue text; send messages",
                    code="unsupported_target",
                )
            return Asked(self, request, target, call, chat)
        try:
            written = json.dumps(request.tools, default=str) if request.tools else "[]"
            # Large ones are not worth the memory.
            read = _tools if len(written) <= LARGE_BODY else _tools.__wrapped__
            call.tools, call.key = read(target.name, written)
            root = self.record.chat(call.key)
            messages, call.named = self._messages(request)
            call.chat_end, call.sent, drift = recognise(root, messages, by_text=self.answerer.by_text)
            if isinstance(call, Call):
                call.drift = drift
            return Asked(self, request, target, call, chat, normalise_tools(request.told))
        except BadMessage as error:
            raise Refused(str(error), code=error.code) from None

    def _messages(self, request: ChatRequest) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        """The whole chat, and the number of the call whose reply it names. Each request has its own instructions; all else of the
        earlier chat stays."""
        if request.after is None:
            return request.messages, None
        if request.after not in self._replies:
            raise Refused(
                f"there is no earlier reply {request.after!r} in this episode; continue one of its own replies or send the "
                "whole chat",
                code="previous_response_not_found",
            )
        call, instructed = self._replies[request.after]
        assert call.answer
        chat = as_sent(call.answer, call.sent)[instructed:]
        own = int(request.instructed)
        return [*request.messages[:own], *chat, *request.messages[own:]], call.number

    # ---------------------------------------------------------------- recording

    def _record(self, call: Exchange, answer: Answer) -> None:
        call.stop, call.reasoning_tokens = answer.stop, answer.reasoning_tokens
        call.seconds = max(time.time() - call.started, 0.0)  # the clock may be set back
        if call.chat_end is None:
            call.said = str(answer.message["content"])
        if isinstance(call, Call):
            call.end = self.record.tree(call.key).extend(call.prompt, call.generation.token_ids)
        node = self.record.add(call, answer.message)
        if node and answer.last_reasoning:  # an equal reply may be sent without streaming
            node.last_reasoning = answer.last_reasoning

    def _keep_refused(self, call: Exchange, error: Refused) -> None:
        """Keep an error for recordings, except those that only repeat that the episode has ended."""
        if call.chat_end is None or self.record.closed or len(self.record.refused) >= _MOST_REFUSALS:
            return
        self.record.add(call.refused(error.code, error.status, str(error)[:_LONGEST_REFUSAL]))

    def _refuse_if_closed(self) -> None:
        if self.record.closed:
            raise Refused(
                f"episode {self.episode} has ended; its calls are no longer answered", code="episode_ended"
            )


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was understood: its call, and what answers it."""

    session: Session
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
            return await all_of(self._sample(each, i, blocks_loop, emit) for i, each in self._choices(call))
        if self.target.replies is not None:
            replies = self.target.replies[self.session.episode]
            return [self._replay(replies, each, i, emit) for i, each in self._choices(call)]
        return await all_of(self._ask_model(each, i, emit) for i, each in self._choices(call))

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
        session, chat = self.session, self.chat
        assert chat
        if call.chat_end is None:
            tree = session.record.tree(call.key)
            call.prompt = tree.extend(tree.root, as_ids(text_ids(chat, call.text)))
            return
        try:
            make_prompt(session.record, chat, call, by_text=session.answerer.by_text)
        except AjetError as error:
            raise Refused(str(error), code="unrenderable_chat") from error

    def _prompt(self, call: Call) -> None:
        """Make the engine's prompt. Raises Refused if there can be none."""
        counters, chat = self.session.counters, self.chat
        assert chat
        self._make(call)
        counters["tools_left_out"] += (
            call.chat_end is not None and bool(self.offered) and not chat.shows_tools
        )
        length, most = call.prompt.length, self.session.answerer.context_length
        if length >= most:
            counters["context_overflow"] += 1
            raise TooLong(f"the prompt has {length} tokens", length, most)
        counters["rendered_anew"] += bool(call.cause)
        counters["drift"] += call.drift

    # ---------------------------------------------------------------- a chat model, a recording

    async def _ask_model(self, call: Exchange, index: int, emit: Emit | None) -> Choice:
        session, model = self.session, self.target.model
        assert model and call.chat_end
        if replayed := session.replay and session.replay.take(call, None):
            assert replayed.answer
            message, used, ended = dict(replayed.answer.message), Spent(), None
        else:
            sampling, overridden = session.answerer.policy.resolve(self.request, None, index=index)
            for name in overridden:
                session.counters[f"overridden:{name}"] += 1
            answering_episode.set(session.episode)
            with passthrough():
                messages = with_data(call.chat_end.chat(), session.record.images)
                answer = model.complete(messages, self.offered, sampling)
                message = dict(await self._or_refuse(answer, f"the model of target {self.target.name!r}"))
            used = Spent.reported(message.pop("usage", None) or {})
            session.spent += used
            ended = message.pop("finish_reason", None)
        if emit:
            StreamBuffer(emit, index, None, ()).finish(message)
        whole: FinishReason = "tool_calls" if message.get("tool_calls") else "stop"
        reason: FinishReason = "length" if ended == "length" else whole
        return call, Answer(message, reason, used.prompt_tokens, used.completion_tokens)

    def _replay(
        self, replies: Replies[Answer | Refused], call: Exchange, index: int, emit: Emit | None
    ) -> Choice:
        """The recorded reply. Raises the recorded error, and NotRecorded for an unknown request."""
        session = self.session
        messages = call.chat_end.chat() if call.chat_end else ()
        try:
            request = request_of(Form(replies.ignore), messages, call.tools, call.text)
            told, unseen = told_of_unseen(messages, images=True)
            if unseen and request not in replies:  # a model that reads only text was recorded
                request = request_of(Form(replies.ignore), told, call.tools, call.text)
            answer = replies.take(call.agent, request)
        except NotRecorded as error:
            session.counters["not_recorded"] += 1
            session.engine_error = str(error)
            raise
        if isinstance(answer, Refused):
            session.counters["context_overflow"] += answer.code == _TOO_LONG
            session.engine_error = str(answer) if answer.code == _FAILED else session.engine_error
            raise answer
        if emit:
            StreamBuffer(emit, index, None, ()).finish(answer.message)
        return call, answer if self.request.logprobs else replace(answer, logprobs=None)

    # ---------------------------------------------------------------- the engine

    async def _sample(self, call: Call, index: int, blocks_loop: bool, emit: Emit | None) -> Choice:
        session, chat, asked_stops = self.session, self.chat, self.request.stop
        answerer, engine = session.answerer, session.answerer.engine
        assert chat and engine
        sampling, overridden = answerer.policy.resolve(
            self.request, seed_of(session.seed_key, call.number), chat.stop_token_ids, index
        )
        for name in overridden:
            session.counters[f"overridden:{name}"] += 1
        ids = call.prompt.ids()
        if answerer.limit:
            room = answerer.limit - len(ids)
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens or room, room))
        tail = prompt_tail(call)
        call.end, call.temperature = call.prompt, sampling.temperature or 1.0
        call.trained = self.target.trained and answerer.policy.training and not sampling.greedy
        call.side = self.target.side
        replayed = session.replay and session.replay.take(call, chat)
        buffer = None
        if emit:
            reader = (
                chat.reader(tail, self.offered, goes_on=call.continues)
                if call.chat_end
                else chat.text_reader()
            )
            buffer = StreamBuffer(emit, index, reader, asked_stops)
        if session.replay and isinstance(replayed, Call):
            call.generation, call.replayed, call.trained = replayed.generation, True, False
            call.place = session.replay.places[replayed.number]
            session.replayed += len(call.generation.token_ids)
            if buffer:
                for token in call.generation.token_ids.tolist():
                    buffer.sampled([token])
        else:
            images, key = session.record.images_in(ids), (session.episode, call.number)
            wanted = GenerateRequest(ids, sampling, key, blocks_loop, self.target.adapter, images)
            call.generation = await self._or_refuse(generate(engine, chat, wanted, buffer), "the engine")
            session.spent += Spent(len(ids), len(call.generation.token_ids))
            session.sampled += len(call.generation.token_ids)
        generation = call.generation
        message, reason, reasoning, counts = read_message(
            chat, call, tail, self.offered, asked_stops, session.episode
        )
        session.counters.update(counts)
        if replayed and replayed.answer:  # with the ids of its tool calls, which the agent sends back
            message = dict(replayed.answer.message)
        if buffer:
            buffer.finish(message)
        logprobs = None
        if self.request.logprobs:
            logprobs = spelled_logprobs(chat, call, message, reasoning or 0, asked_stops)
        stops = asked_stops if reason == "stop" else ()
        stop = stop_of(chat.text(generation.token_ids.tolist()), stops) if stops else None
        last = buffer.last["reasoning"] if buffer else ""
        return call, Answer(
            message, reason, len(ids), len(generation.token_ids), logprobs, reasoning, stop, last
        )

    async def _or_refuse(self, answer: Awaitable[T], who: str) -> T:
        """What ``who`` answers; its failure is kept, because the agent sees only some SDK error."""
        try:
            return await answer
        except Exception as error:
            name = "" if isinstance(error, AjetError) else f"{type(error).__name__}: "
            failure = self.session.engine_error = f"{name}{error}"
            status = error.status if isinstance(error, ChatModelFailed) else 400
            raise Refused(f"{who} failed: {failure}", code=_FAILED, status=status) from error


@functools.lru_cache(256)
def _tools(target: str, written: str) -> tuple[Sequence[Message], str]:
    """The tools that a request has as JSON in normal form, and its merging key. Agents send the same list
    with each call, and normalising it costs more than all the rest. Raises BadMessage."""
    tools = normalise_tools(json.loads(written))
    return tools, merging_key(target, tools)


current_session: ContextVar[Session | None] = ContextVar("ajet_session", default=None)
"""The session that answers the LLM calls of this context, unless a call carries the key of another."""

threads_without_session: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Plain threads that were started inside an episode and do not carry its context."""
