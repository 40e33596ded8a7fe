"""The explorer: answers an agent's calls, records each reply in the store, and takes feedback.

A reply is in the store before its last byte is sent. Feedback names replies by the ids that clients have got.
"""

from __future__ import annotations

import json
import secrets
import time
from asyncio import get_running_loop
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from ajet import AjetError, ConfigError
from ajet.capture.answers import Answerer, Choice
from ajet.capture.gateway.metrics import exposition, labelled
from ajet.capture.gateway.server import Admitted, Gateway, Page
from ajet.capture.off_loop import off_loop
from ajet.capture.portal import Portal
from ajet.capture.process.garbage import rare_full_collections
from ajet.capture.session import Session
from ajet.capture.stream_buffer import Emit
from ajet.capture.targets import Target
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.chat.images import has_images
from ajet.interfaces.wire import Answer, ChatRequest, Refused
from ajet.runs.serve import ServedSession
from ajet.tracker.call import Call
from ajet_online.database import StoreFailed
from ajet_online.feedback import Feedback, bad, id_of_reply, name_in, read_object, time_in
from ajet_online.keys import Key, KeyLimits, Keys, Role
from ajet_online.metrics import Metric
from ajet_online.overview import overview
from ajet_online.recall import Recalled, chat_hashes, hashes_of_request, restore
from ajet_online.redaction import Redaction
from ajet_online.store import Rated, TraceStore
from ajet_online.trace import Message, Trace, to_text, without_tokens
from ajet_online.versions import Versions
from ajet_online.writer import Writer

T = TypeVar("T")
MOST_SESSIONS = 256
"""Sessions in memory; conversations of others are read from the store."""
MOST_TOKENS_OF_ALL = 16_000_000
"""What all sessions together keep in memory at most."""
MOST_NAMED = 10
"""Unknown ids that a message names."""
PAGE_THREADS = 1
"""Threads that read pages and ask the store for them: chats have others, so a store that is slow to write does not hold them up. Each
takes a share of the interpreter's time from the loop."""
FEEDBACK_OF_JAVA = ("msg_ids", "reward", "task_id", "run_id")
FEEDBACK = (*FEEDBACK_OF_JAVA, "run", "conversation", "thumb", "comment", "correction", "details")
COMMIT_OF_JAVA = ("task_id", "run_id", "time_threshold")
COMMIT = (*COMMIT_OF_JAVA, "details")
COUNTERS = {
    "traces_total": "Replies that were recorded.",
    "redacted_total": "Replies that were recorded without their tokens, because of redaction.",
    "ratings_total": "Replies that got feedback.",
    "unknown_ids_total": "Ids in feedback that the store does not know.",
    "committed_total": "Replies whose feedback was committed.",
    "store_failures_total": "Requests that failed because of the store.",
}
OTHER_VOCABULARY = (
    "its tokens are those of a model with another vocabulary. Serve that model, or name another store."
)


@dataclass(slots=True)
class ExplorerSession(ServedSession):
    """Answers the calls of one run, or all others, with one API key, and records each as a trace. After a full one the next one
    finds conversations in the store."""

    explorer: Explorer = field(kw_only=True)
    api_key: Key = field(kw_only=True)
    run: str | None = field(kw_only=True)
    _held: dict[int, Recalled] = field(default_factory=dict)
    """The replies in memory, by the numbers of their calls."""
    _new: dict[str, list[Trace]] = field(default_factory=dict)
    """Traces of replies that are not durable yet."""

    async def choices(
        self,
        request: ChatRequest,
        agent: str,
        target: str | None,
        blocks_loop: bool,
        emit: Emit | None = None,
    ) -> list[Choice]:
        """See `Session.choices`. Raises Refused above the limits of the key too."""
        if request.template:
            raise Refused(
                f"the store of online training does not keep variables of a request for the chat template; remove "
                f"{', '.join(request.template)}, and set them for the model (rollout.chat_template)",
                code="unsupported_parameter",
            )
        with self.explorer.limits.call(self.api_key):
            return await Session.choices(self, request, agent, target, blocks_loop, emit)

    async def count(self, request: ChatRequest, agent: str, target: str | None) -> int:
        """See `Session.count`. Raises Refused above the limits of the key too."""
        with self.explorer.limits.call(self.api_key):
            return await Session.count(self, request, agent, target)

    async def _without_images(self, request: ChatRequest, target: Target) -> ChatRequest:
        """Refuse images, which the store does not hold: a trace of them could not be trained. Of a request within the limits, a
        conversation that is not in memory is read from the store."""
        if any(map(has_images, request.messages)):
            raise Refused(
                "the request has an image, but the store of online training holds only text; send text",
                code="unsupported_content",
            )
        if request.after is not None:
            return await self._after(request, request.after)
        if request.prompt is None:
            await self._recall(target.name, request)
        return request

    async def _after(self, request: ChatRequest, after: str) -> ChatRequest:
        """A request that continues a reply by its id. One that is not in memory is read from the store; then the request has the
        whole chat."""
        name = id_of_reply(after)
        if after in self._replies or name is None:
            return request
        find = partial(self.explorer.store.chain_to, self.api_key.name, self.run, name)
        chain = await self._read(find)
        if not chain:
            return request  # `Session` says that there is no such reply
        if not all(trace.chat for trace in chain):
            raise Refused(
                f"the stored text of reply {after!r} is redacted or not a chat, so it cannot be continued by its id; send the "
                "whole chat",
                code="previous_response_not_found",
            )
        self._restore(chain)
        chat = [message for trace in chain for message in (*trace.messages, trace.answer)]
        new = request.messages
        if new and new[0].get("role") in ("system", "developer") and chat[0].get("role") == "system":
            return replace(request, messages=[new[0], *chat[1:], *new[1:]], after=None)
        return replace(request, messages=[*chat, *new], after=None)

    async def _recall(self, target: str, request: ChatRequest) -> None:
        hashes = hashes_of_request(target, request.tools, request.messages)
        if not hashes or any(held.trace.chat == hashes[0] for held in self._held.values()):
            return
        self._restore(
            await self._read(partial(self.explorer.store.chain, self.api_key.name, self.run, hashes))
        )

    async def _read(self, work: Callable[[], list[Trace]]) -> list[Trace]:
        try:
            return await off_loop(work)
        except AjetError as error:
            self.explorer.count("store_failures_total")
            raise _unavailable(error) from error

    def _restore(self, chain: Sequence[Trace]) -> None:
        here = {held.trace.id: held for held in self._held.values()}
        known = [here[trace.id] for trace in chain if trace.id in here]  # the beginning of the chain
        missing = chain[len(known) :]
        for held in restore(self.record, missing, self._numbers, {one.trace.id: one for one in known}):
            self._held[held.call.number] = held
        self._numbers += len(missing)

    def take(
        self, request: ChatRequest, choices: Sequence[Choice], reply_id: str | None = None
    ) -> list[Answer]:
        """See `Session.take`."""
        answers = Session.take(self, request, choices, reply_id)
        assert reply_id
        calls = [call for call, _ in choices if isinstance(call, Call)]
        # If one of them cannot be redacted, none is stored, and none may be continued.
        new = [
            self._trace(f"{reply_id}-{index}" if index else reply_id, call, answer.message, request)
            for index, (call, answer) in enumerate(zip(calls, answers, strict=True))
        ]
        for call, trace in zip(calls, new, strict=True):
            self._held[call.number] = Recalled(call, trace)
        self._new[reply_id] = new
        return answers

    async def kept(self, reply_id: str) -> None:
        """See `Session.kept`: waits until the reply is in the store. Raises Refused if that fails."""
        new = self._new.pop(reply_id)
        try:
            await self.explorer.writer.keep(new)
            self.explorer.count("traces_total", len(new))
        except AjetError as error:
            self.explorer.count("store_failures_total")
            lost = {trace.id for trace in new}  # nothing may continue them
            self._held = {n: held for n, held in self._held.items() if held.trace.id not in lost}
            raise _unavailable(error) from error

    def _trace(self, name: str, call: Call, message: Message, request: ChatRequest) -> Trace:
        parent = self._held.get(call.parent) if call.parent is not None else None
        if parent and (call.continues or parent.call.continues):
            parent = None  # a reply that goes on with a message does not answer what is before it
        sampling, _ = self.answerer.policy.resolve(request, None)
        tools = call.tools
        chat, messages = "", []
        if call.chat_end:
            *_, (_, chat) = chat_hashes(call.target, tools, [*call.chat_end.chat(), message])
            messages = call.chat_end.messages_after(parent.call.answer if parent else None)
            if call.continues:
                messages[-1] = {**messages[-1], "prefix": True}
        trace = Trace(
            id=name,
            at=time.time(),
            key=self.api_key.name,
            agent=call.agent,
            target=call.target,
            run=self.run,
            conversation=parent.trace.conversation if parent else name,
            parent=parent.trace.id if parent else None,
            chat=chat,
            prompt=call.prompt.ids(parent.call.end.length if parent else 0),
            tokens=call.generation.token_ids,
            logprobs=call.generation.logprobs,
            versions=call.generation.weight_versions,
            temperature=call.temperature,
            # The logprobs are those before top_p and top_k.
            trained=not sampling.greedy and sampling.top_p == 1 and not sampling.top_k,
            finish_reason=call.generation.finish_reason,
            messages=messages,
            answer=message,
            tools=tools,
        )
        return self.explorer.redacted(trace, parent.trace if parent else None)


class Explorer:
    """Answers calls by ``answerer`` and keeps them in ``store``. Rewards must be within ``rewards``; ``redact`` changes each message
    before it is stored."""

    def __init__(
        self,
        answerer: Answerer,
        store: TraceStore,
        keys: Keys,
        *,
        limits: KeyLimits,
        rewards: tuple[float, float] = (0.0, 1.0),
        redact: Callable[[Message], Message] | None = None,
        further: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self.store = store
        self._further = further
        self.writer = Writer(store)
        self._answerer = answerer
        self._keys = keys
        self.limits = limits
        self._rewards = rewards
        self._redaction = Redaction(redact) if redact else None
        self._sessions: OrderedDict[tuple[str, str | None], ExplorerSession] = OrderedDict()
        self._begun = 0
        self._counts: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(PAGE_THREADS, "ajet-pages")

    def find(self, secret: str) -> Session | None:
        """The session that answers the calls with an API key; None if it may not chat."""
        sent = self._keys.find(secret)
        if sent is None or not sent.key.may("chat"):
            return None
        place = sent.key.name, sent.run
        session = self._sessions.get(place)
        if session is None or session.is_full:
            self._begun += 1
            session = ExplorerSession(
                f"explore-{self._begun}",
                secrets.token_hex(8),
                self._answerer,
                key=sent.key.secret,
                explorer=self,
                api_key=sent.key,
                run=sent.run,
            )
            self._sessions[place] = session
        session.asked += 1
        self._sessions.move_to_end(place)
        # Calls in progress of a session that is dropped still end; later ones find its conversations in the store.
        while len(self._sessions) > 1 and self._is_too_much():
            self._sessions.popitem(last=False)
        return session

    def _is_too_much(self) -> bool:
        tokens = sum(session.tokens for session in self._sessions.values())
        return len(self._sessions) > MOST_SESSIONS or tokens > MOST_TOKENS_OF_ALL

    def redacted(self, trace: Trace, parent: Trace | None) -> Trace:
        """A trace as it may be stored. If anything had to be changed, here or earlier in the conversation, its tokens would
        still contain it, so they are left out, and after a restart the conversation is rendered anew. Raises Refused if that
        fails."""
        if self._redaction is None:
            return trace
        plain = json.loads(to_text([*trace.messages, trace.answer]))
        *messages, answer = new = [self._redaction(message) for message in plain]
        unchanged = new == plain
        if not trace.chat:  # a prompt of plain text has no messages
            assert self._answerer.chat
            text = self._answerer.chat.tokenizer.decode(trace.prompt.tolist())
            unchanged &= self._redaction.text("user", text) == text
        if unchanged and (parent is None or parent.chat):
            return trace
        self.count("redacted_total")
        return replace(without_tokens(trace), messages=messages, answer=answer)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter of `metrics`."""
        self._counts[name] += number

    def metrics(self) -> str:
        """Lines for `/metrics`."""
        engine, writer = self._answerer.engine, self.writer
        by_version, serving = getattr(engine, "calls_by_version", {}), getattr(engine, "version", 0)
        stored = {"_sum": writer.seconds, "_count": writer.transactions}
        return exposition(
            "ajet_online",
            (
                *((name, "counter", help_, {"": self._counts[name]}) for name, help_ in COUNTERS.items()),
                ("store_seconds", "summary", "Seconds of the transactions that record replies.", stored),
                ("calls_by_version_total", "counter", "Calls by version.", labelled("version", by_version)),
                ("serving_version", "gauge", "The version that answers new calls.", {"": serving}),
                ("sessions", "gauge", "Sessions in memory.", {"": len(self._sessions)}),
                *self._further(),
            ),
        )

    @property
    def pages(self) -> Mapping[str, Page]:
        """The gateway's further pages."""
        pages: dict[str, Page] = {
            "POST /feedback": partial(self._admitted, "feedback", self.feedback),
            "POST /commit": partial(self._admitted, "feedback", self.commit),
            "POST /rollback": partial(self._admitted, "admin", self.rollback),
            "GET /online/status": partial(self._admitted, "admin", self.status),
        }
        return pages | {path.replace(" /", " /v1/"): page for path, page in pages.items()}

    @contextmanager
    def _admitted(
        self, role: Role, page: Callable[[Key, bytes], Any], secret: str | None
    ) -> Iterator[Admitted]:
        """A block that answers a request if its key has this role, and is within its limits. Raises Refused."""
        sent = self._keys.find(secret)
        if sent is None:
            raise Refused("the key is not valid", code="invalid_api_key", status=401)
        if not sent.key.may(role):
            raise Refused(
                f"the key {sent.key.name!r} may not do this: it lacks the role {role}",
                code="forbidden",
                status=403,
            )
        with self.limits.call(sent.key):
            yield Admitted(sent.key.secret, partial(page, sent.key))

    async def feedback(self, key: Key, body: bytes) -> dict[str, Any]:
        """``POST /feedback {msg_ids, reward, task_id, run_id}``, or one of our own forms: see `Feedback`."""

        def give() -> tuple[dict[str, Any], Feedback, Rated]:
            given = read_object(body, FEEDBACK)
            asked = Feedback.read(given, self._rewards)
            if self._redaction:
                asked = asked.redacted(self._redaction)
            return given, asked, asked.give(self.store, key.sees)

        given, asked, rated = await self._aside(give)
        self.count("ratings_total", len(rated.new))
        self.count("unknown_ids_total", len(rated.unknown))
        outcome = {
            "rated": asked.as_given(rated.new),
            "unchanged": asked.as_given(rated.unchanged),
            "unknown": asked.as_given(rated.unknown),
        }
        said = ", ".join(f"{len(ids)} {what}" for what, ids in outcome.items())
        if outcome["unknown"]:
            said += f": {', '.join(outcome['unknown'][:MOST_NAMED])}"
        return _success(given, FEEDBACK_OF_JAVA, said, outcome)

    async def commit(self, key: Key, body: bytes) -> dict[str, Any]:
        """``POST /commit {task_id, run_id, time_threshold}``, of feedback that was given until this time in seconds since 1970; an
        empty body, or nulls, commits everything that the key may rate."""

        def commit() -> tuple[dict[str, Any], int]:
            asked = read_object(body, COMMIT) if body.strip() else {}
            before = None if asked.get("time_threshold") is None else time_in(asked, "time_threshold")
            task = None if asked.get("task_id") is None else name_in(asked, "task_id")
            run = None if asked.get("run_id") is None else name_in(asked, "run_id")
            return asked, self.store.commit(task, run, before, key=key.sees)

        asked, count = await self._aside(commit)
        self.count("committed_total", count)
        return _success(asked, COMMIT_OF_JAVA, f"{count} committed", {"committed": count})

    async def status(self, key: Key, body: bytes) -> dict[str, Any]:
        """``GET /online/status``: what the store contains."""
        return await self._aside(partial(overview, self.store))

    async def rollback(self, key: Key, body: bytes) -> dict[str, Any]:
        """``POST /rollback {version}``: serve an earlier version."""

        def withdraw() -> list[int]:
            to = read_object(body, ("version",)).get("version")
            if type(to) is not int:
                raise bad("version must be a whole number")
            try:
                return Versions(self.store).withdraw(to, "by hand")
            except ConfigError as error:
                raise bad(str(error)) from error

        return {"status": "success", "withdrawn": await self._aside(withdraw)}

    async def _aside(self, work: Callable[[], T]) -> T:
        """Do something on a thread for pages. Raises Refused."""
        try:
            return await get_running_loop().run_in_executor(self._threads, work)
        except StoreFailed as error:
            self.count("store_failures_total")
            raise _unavailable(error) from error

    def close(self) -> None:
        """Write what is waiting."""
        self._threads.shutdown()
        self.writer.close()


@contextmanager
def exploring(
    portal: Portal,
    answerer: Answerer,
    store: TraceStore,
    keys: Keys,
    *,
    models: Sequence[str],
    host: str,
    port: int,
    most_calls: int,
    limits: KeyLimits | None = None,
    rewards: tuple[float, float] = (0.0, 1.0),
    redact: Callable[[Message], Message] | None = None,
    further: Callable[[], Iterable[Metric]] = tuple,
    drain: float = 0.0,
) -> Iterator[tuple[str, Gateway]]:
    """A block in which calls are answered on the engine's loop: the URL without ``/v1``, and the gateway. ``further`` gives more
    metrics. At the block's end, the gateway gives calls in progress ``drain`` seconds to end. Raises ConfigError if the store's
    traces are of a model with another vocabulary."""
    assert answerer.chat
    store.agree("vocabulary", _vocabulary(answerer.chat.tokenizer), OTHER_VOCABULARY)
    limits = limits or KeyLimits(keys.share(most_calls))
    explorer = Explorer(answerer, store, keys, limits=limits, rewards=rewards, redact=redact, further=further)
    gateway = Gateway(
        portal,
        explorer.find,
        BUILTIN_WIRES,
        models=models,
        pages=explorer.pages,
        metrics=explorer.metrics,
        host=host,
        port=port,
        most_calls=most_calls,
        keyless=not keys.asked,
    )
    try:
        with rare_full_collections():
            yield gateway.start(), gateway
    finally:
        gateway.close(drain)
        explorer.close()


def _vocabulary(tokenizer: Any) -> str:
    """A hash of the tokenizer's tokens and their ids."""
    written = json.dumps(sorted(tokenizer.get_vocab().items()))
    return blake2b(written.encode(), digest_size=16).hexdigest()


def _success(
    asked: Mapping[str, Any], of_java: Collection[str], said: str, outcome: Mapping[str, Any]
) -> dict[str, Any]:
    """The answer to a request. AgentScope's Java client refuses an answer with any field but ``status`` and ``message``, so
    requests with nothing but its fields get no others."""
    answer = {"status": "success", "message": said}
    return answer if set(asked) <= set(of_java) else {**answer, **outcome}


def _unavailable(error: AjetError) -> Refused:
    return Refused(str(error), code="store_failed", status=503)
