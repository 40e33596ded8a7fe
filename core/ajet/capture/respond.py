"""From a request's body to a reply, complete or streamed: shared by the hook and the gateway.

Everything here runs on the engine's loop. A call is recorded at the moment the last part of its reply is
taken; if the client goes away before that, the generation stops and nothing is recorded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

from ajet.capture.answers import Choice
from ajet.capture.limits import LARGE_BODY
from ajet.capture.off_loop import off_loop
from ajet.capture.refusals import Refusal
from ajet.capture.session import Session
from ajet.interfaces.wire import Answer, ChatRequest, Events, PathWire, Piece, Refused, Wire

log = logging.getLogger("ajet")


@dataclass(frozen=True, slots=True)
class Reply:
    """What the client gets: ``body`` is JSON, empty if there are ``events``."""

    status: int
    body: bytes = b""
    events: EventStream | None = None
    refusal: Refusal | None = None
    """Set if the reply is an error: the reason."""
    retry_after: float = 1.0
    """See `Refused.retry_after`."""
    is_stream: bool = False
    """Whether ``body`` holds events, as those of a recorded stream."""

    @property
    def headers(self) -> dict[str, str]:
        is_stream = self.events or self.is_stream
        kind = "text/event-stream; charset=utf-8" if is_stream else "application/json"
        headers = {"content-type": kind}
        if self.status != 200:
            headers["x-should-retry"] = "false"  # it would fail again: SDKs must not wait and retry
        return headers


def find_wire(wires: Iterable[Wire], path: str) -> Wire | None:
    """The wire whose path is the longest that ends a URL's path."""
    path = path.rstrip("/")
    wire = max((w for w in wires if path.endswith(w.path)), key=lambda w: len(w.path), default=None)
    return wire.at(path) if isinstance(wire, PathWire) else wire


def caller(session: Session, headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The agent and the target that a request's headers name. Retries by SDKs are counted."""
    if headers.get("x-stainless-retry-count", "0") != "0":
        session.counters["sdk_retries"] += 1
    return headers.get("x-ajet-agent"), headers.get("x-ajet-target")


def refuse(wire: Wire, error: Refused, refusal: Refusal | None = None) -> Reply:
    """An error in the wire's dialect."""
    return Reply(error.status, _json(wire.error(error)), refusal=refusal, retry_after=error.retry_after)


async def respond(
    wire: Wire,
    session: Session,
    body: bytes,
    agent: str,
    target: str | None,
    *,
    blocks_loop: bool = False,
    apart: bool = False,
) -> Reply:
    """Answer a request. Raises nothing: failures are replies in the wire's dialect, and after the first
    event they are events. Cancelling stops the generation and records nothing. With ``apart``, large requests are
    read and rendered off the loop; without it, the calls of an episode are numbered in order of arrival."""
    try:
        is_large = apart and len(body) > LARGE_BODY
        request = await off_loop(wire.parse, body) if is_large else wire.parse(body)
        request.size, request.apart = len(body), apart
        if request.only_count:
            counted = Answer({}, "stop", await session.count(request, agent, target), 0)
            return Reply(200, _json(wire.reply(request, [counted], new_id())))
        if request.stream:
            return await _stream(wire, session, request, agent, target, blocks_loop)
        choices = await session.choices(request, agent, target, blocks_loop)
        reply_id = new_id()
        answers = session.take(request, choices, reply_id)
        await session.kept(reply_id)
        return Reply(200, _json(wire.reply(request, answers, reply_id)))
    except Exception as error:
        refused = _as_refused(session, error)
        return refuse(wire, refused, session.note(refused))


async def _stream(
    wire: Wire,
    session: Session,
    request: ChatRequest,
    agent: str,
    target: str | None,
    blocks_loop: bool,
) -> Reply:
    """A reply whose generation has begun. Raises Refused if it fails before that."""
    reply_id = new_id()
    events = wire.events(request, reply_id)
    queue: asyncio.Queue[Piece | None] = asyncio.Queue()
    choices = session.choices(request, agent, target, blocks_loop, queue.put_nowait)
    task = asyncio.create_task(choices)
    task.add_done_callback(lambda _: queue.put_nowait(None))
    stream = EventStream(events, session, request, reply_id, task, queue)
    try:
        await stream.begin()
    except BaseException:
        await stream.aclose()
        raise
    return Reply(200, events=stream)


class EventStream(AsyncIterator[bytes]):
    """The events of a reply: those that are ready come together, the last ones separately.

    Taking the last ones records the call. Always close the stream: closing it earlier stops the generation, and
    nothing is recorded.
    """

    def __init__(
        self,
        events: Events,
        session: Session,
        request: ChatRequest,
        reply_id: str,
        task: asyncio.Task[list[Choice]],
        queue: asyncio.Queue[Piece | None],
    ) -> None:
        self._session = session
        self._request = request
        self._task = task
        self._queue = queue
        self._reply_id = reply_id
        self._events = events
        self._taken: list[Piece | None] = []
        self._ready = b""
        self._whole = False
        """Whether all pieces were taken and the generation is over."""
        self._ended = False

    async def begin(self) -> None:
        """Wait until sampling has begun. Raises what the generation raised before. Of JSON, wait for the end: a
        client that reads the first piece of something else stops reading, and the answer would not be recorded."""
        if self._request.json_schema is not None:
            await asyncio.wait([self._task])
            if any(answer.misfit for _, answer in self._choices()):
                self._session.take(self._request, self._choices())
        first = await self._queue.get()
        if first is None:
            self._choices()
        self._taken = [first]
        self._ready = self._events.begin()

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        try:
            while not self._ready and not self._whole:
                await self._next_pieces()
            ready, self._ready = self._ready, b""
            return ready or await self._end()
        except Exception as error:
            self._ended = True
            refused = _as_refused(self._session, error)
            self._session.note(refused)
            return self._events.fail(refused)

    def ended(self, error: Refused) -> bytes:
        """The last event of a stream that ends with an error which did not come from here."""
        return self._events.fail(error)

    async def aclose(self) -> None:
        """Stop the generation if it is not over; no more events come."""
        self._ended = True
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        elif not self._task.cancelled():
            self._task.exception()  # retrieve it, or asyncio logs a warning

    async def _next_pieces(self) -> None:
        """Wait for a piece and take all that are available."""
        pieces, self._taken = self._taken or [await self._queue.get()], []
        while not self._queue.empty():
            pieces.append(self._queue.get_nowait())
        self._whole = None in pieces
        self._ready += b"".join(self._events.piece(p) for p in pieces if p and p.text)

    def _choices(self) -> list[Choice]:
        if self._task.cancelled():
            raise Refused(f"episode {self._session.episode} has ended", code="episode_ended")
        return self._task.result()

    async def _end(self) -> bytes:
        self._ended = True
        answers = self._session.take(self._request, self._choices(), self._reply_id)
        await self._session.kept(self._reply_id)
        return self._events.end(answers)


def _as_refused(session: Session, error: Exception) -> Refused:
    """The error that the client gets for a failure."""
    if isinstance(error, RecursionError):
        error = Refused("the request is nested too deeply", code="invalid_request")
    elif not isinstance(error, Refused):
        log.error("an LLM call of %s failed", session.episode, exc_info=error)
        error = Refused(f"{type(error).__name__}: {error}", code="internal_error")
    return error


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value).encode()  # ASCII, because arguments may contain lone surrogates


_ID_BYTES, _MANY_IDS = 12, 256
_drawn_ids: list[str] = []
os.register_at_fork(after_in_child=_drawn_ids.clear)


def new_id() -> str:
    """24 hex digits that cannot be guessed. Many are drawn at a time: each draw asks the system, and lets other threads take the
    interpreter."""
    while True:
        try:
            return _drawn_ids.pop()
        except IndexError:
            digits = secrets.token_hex(_ID_BYTES * _MANY_IDS)
            _drawn_ids.extend(digits[i : i + 2 * _ID_BYTES] for i in range(0, len(digits), 2 * _ID_BYTES))
