"""The explorer: answers an agent's calls, records each reply in the store, and takes feedback.

A reply is in the store before its last byte is sent. Feedback names replies by the ids that clients have got.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from ajet.capture.gateway.server import Gateway
from ajet.capture.off_loop import off_loop
from ajet.capture.portal import Portal
from ajet.capture.process.garbage import rare_full_collections
from ajet.capture.session import Answerer, Choice, Session
from ajet.capture.stream_buffer import Emit
from ajet.capture.targets import choose_target
from ajet.capture.wires import Answer, ChatRequest, Refused
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.chat.messages import normalise_tools
from ajet.tracker.call import Call
from ajet.types import AjetError
from ajet_online.keys import Keys, Role
from ajet_online.recall import Recalled, chat_hashes, hashes_of_request, restore
from ajet_online.store import Store
from ajet_online.trace import Trace
from ajet_online.writer import Writer

T = TypeVar("T")
MOST_CALLS = 1_000
MOST_TOKENS = 4_000_000
"""What one session keeps in memory at most; then the next one begins, and finds conversations in the store."""
REPLY_ID = re.compile(r"[0-9a-f]{24}(?:-\d+)?$")
"""A reply's id at the end of what a client got, such as ``chatcmpl-…``."""
MOST_IDS = 10_000
"""Replies that one feedback may name."""
OTHER_VOCABULARY = (
    "its tokens are those of a model with another vocabulary. Serve that model, or name another store."
)


@dataclass(slots=True)
class ExplorerSession(Session):
    """Answers the calls of one API key, and records each as a trace."""

    explorer: Explorer = field(kw_only=True)
    key_name: str = field(kw_only=True)
    _held: dict[int, Recalled] = field(default_factory=dict)
    """The replies in memory, by the numbers of their calls."""
    _new: dict[str, list[Trace]] = field(default_factory=dict)
    """Traces of replies that are not durable yet."""
    _tokens: int = 0
    """Tokens of the calls in memory."""
    _counted: int = 0
    """How many of the calls they are of."""

    async def choices(
        self,
        request: ChatRequest,
        agent: str,
        target: str | None,
        blocks_loop: bool,
        emit: Emit | None = None,
    ) -> list[Choice]:
        """See `Session.choices`. A conversation that is not in memory is read from the store first."""
        chosen = choose_target(self.answerer.targets, agent, target)
        if request.prompt is None and request.after is None:
            await self._recall(chosen.name, request)
        return await Session.choices(self, request, agent, target, blocks_loop, emit)

    async def _recall(self, target: str, request: ChatRequest) -> None:
        hashes = hashes_of_request(target, request.tools, request.messages)
        if not hashes or any(held.trace.chat == hashes[0] for held in self._held.values()):
            return
        try:
            chain = await off_loop(self.explorer.store.chain, self.key_name, hashes)
        except AjetError as error:
            raise _unavailable(error) from error
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
        first = len(self.record.calls)
        answers = Session.take(self, request, choices, reply_id)
        assert reply_id
        ends = {exchange.number: exchange.answer for exchange in self.record.exchanges[-len(choices) :]}
        self._new[reply_id] = []
        for index, (call, choice) in enumerate(zip(self.record.calls[first:], choices, strict=True)):
            name = f"{reply_id}-{index}" if index else reply_id
            trace = self._trace(name, call, choice, request)
            self._held[call.number] = Recalled(call, ends.get(call.number), trace)
            self._new[reply_id].append(trace)
        return answers

    async def kept(self, reply_id: str) -> None:
        """See `Session.kept`: waits until the reply is in the store. Raises Refused if that fails."""
        new = self._new.pop(reply_id)
        try:
            await self.explorer.writer.keep(new)
        except AjetError as error:
            lost = {trace.id for trace in new}  # nothing may continue them
            self._held = {n: held for n, held in self._held.items() if held.trace.id not in lost}
            raise _unavailable(error) from error

    def _trace(self, name: str, call: Call, choice: Choice, request: ChatRequest) -> Trace:
        assert choice.sampled
        parent = self._held.get(call.parent) if call.parent is not None else None
        message, sampling = choice.answer.message, choice.sampled.sampling
        tools = normalise_tools(request.tools)
        chat, messages = "", []
        if call.chat_end:
            *_, (_, chat) = chat_hashes(call.target, tools, [*call.chat_end.chat(), message])
            messages = call.chat_end.messages_after(parent.answer if parent else None)
        return Trace(
            id=name,
            at=time.time(),
            key=self.key_name,
            agent=call.agent,
            target=call.target,
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

    @property
    def is_full(self) -> bool:
        """Whether it keeps as much as it may."""
        calls = self.record.calls
        self._tokens += sum(call.end.length for call in calls[self._counted :])
        self._counted = len(calls)
        return len(calls) >= MOST_CALLS or self._tokens >= MOST_TOKENS


class Explorer:
    """Answers calls by ``answerer`` and keeps them in ``store``."""

    def __init__(self, answerer: Answerer, store: Store, keys: Keys) -> None:
        self.store = store
        self.writer = Writer(store)
        self._answerer = answerer
        self._keys = keys
        self._sessions: dict[str, ExplorerSession] = {}
        self._count = 0

    def find(self, secret: str) -> Session | None:
        """The session that answers the calls of an API key; None if it may not chat."""
        key = self._keys.find(secret)
        if key is None or "chat" not in key.roles:
            return None
        session = self._sessions.get(key.name)
        if session is None or session.is_full:
            self._count += 1
            session = ExplorerSession(
                f"explore-{self._count}",
                secrets.token_hex(8),
                self._answerer,
                key=key.secret,
                explorer=self,
                key_name=key.name,
            )
            self._sessions[key.name] = session
        return session

    @property
    def pages(self) -> Mapping[str, Any]:
        """The gateway's further paths."""
        found = {"/feedback": self.feedback, "/commit": self.commit}
        return found | {f"/v1{path}": page for path, page in found.items()}

    async def feedback(self, secret: str | None, body: bytes) -> dict[str, Any]:
        """``POST /feedback {msg_ids, reward, task_id, run_id}``; also ``comment`` and ``correction``."""
        self._allowed(secret, "feedback")
        asked = _json(body)
        ids = asked.get("msg_ids")
        if not isinstance(ids, list) or not ids or not all(isinstance(name, str) for name in ids):
            raise _bad("msg_ids must be a list of at least one reply id")
        if len(ids) > MOST_IDS:
            raise _bad(f"msg_ids may name at most {MOST_IDS} replies")
        given = {_reply_id(name): name for name in ids}
        rate = partial(
            self.store.rate,
            list(given),
            _number(asked, "reward"),
            _name(asked, "task_id"),
            _name(asked, "run_id", "0"),
            comment=_text(asked, "comment"),
            correction=_text(asked, "correction"),
        )
        rated = await self._in_store(rate)
        return {
            "status": "success",
            "rated": [given[name] for name in rated.new],
            "unchanged": [given[name] for name in rated.unchanged],
            "unknown": [given[name] for name in rated.unknown],
        }

    async def commit(self, secret: str | None, body: bytes) -> dict[str, Any]:
        """``POST /commit {task_id, run_id, time_threshold}``; an empty body commits everything."""
        self._allowed(secret, "feedback")
        asked = _json(body) if body.strip() else {}
        before = asked.get("time_threshold")
        if before is not None:
            before = _number(asked, "time_threshold")
        task = None if asked.get("task_id") is None else _name(asked, "task_id")
        run = None if asked.get("run_id") is None else _name(asked, "run_id")
        count = await self._in_store(partial(self.store.commit, task, run, before))
        return {"status": "success", "committed": count}

    def _allowed(self, secret: str | None, role: Role) -> None:
        key = self._keys.find(secret)
        if key is None:
            raise Refused("the key is not valid", code="invalid_api_key", status=401)
        if role not in key.roles:
            raise Refused(
                f"the key {key.name!r} may not do this: it lacks the role {role}",
                code="forbidden",
                status=403,
            )

    async def _in_store(self, work: Callable[[], T]) -> T:
        try:
            return await off_loop(work)
        except AjetError as error:
            raise _unavailable(error) from error

    def close(self) -> None:
        """Write what is waiting."""
        self.writer.close()


@contextmanager
def exploring(
    portal: Portal,
    answerer: Answerer,
    store: Store,
    keys: Keys,
    *,
    models: Sequence[str],
    host: str,
    port: int,
    most_calls: int,
) -> Iterator[tuple[str, Gateway]]:
    """A block in which calls are answered on the engine's loop: the URL without ``/v1``, and the gateway. Raises ConfigError if
    the store's traces are of a model with another vocabulary."""
    assert answerer.chat
    store.agree("vocabulary", _vocabulary(answerer.chat.tokenizer), OTHER_VOCABULARY)
    explorer = Explorer(answerer, store, keys)
    gateway = Gateway(
        portal,
        explorer.find,
        BUILTIN_WIRES,
        models=models,
        pages=explorer.pages,
        host=host,
        port=port,
        most_calls=most_calls,
    )
    try:
        with rare_full_collections():
            yield gateway.start(), gateway
    finally:
        gateway.close()
        explorer.close()


def _vocabulary(tokenizer: Any) -> str:
    """A hash of the tokenizer's tokens and their ids."""
    written = json.dumps(sorted(tokenizer.get_vocab().items()))
    return blake2b(written.encode(), digest_size=16).hexdigest()


def _reply_id(text: str) -> str:
    found = REPLY_ID.search(text)
    return found[0] if found else text


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _bad("the body must be a JSON object")
    return found


def _number(asked: Mapping[str, Any], name: str) -> float:
    value = asked.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or abs(value) == float("inf")
        or value != value
    ):
        raise _bad(f"{name} must be a finite number")
    return float(value)


def _name(asked: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """An id: a string or a number, as clients write both."""
    value = asked.get(name, default)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise _bad(f"{name} must be a string or an integer")
    return str(value)


def _text(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise _bad(f"{name} must be a string")
    return value


def _bad(problem: str) -> Refused:
    return Refused(problem, code="invalid_request", status=400)


def _unavailable(error: AjetError) -> Refused:
    return Refused(str(error), code="store_failed", status=503)
