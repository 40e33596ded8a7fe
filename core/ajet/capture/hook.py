"""The hook on ``send`` of httpx2 and httpx: every LLM client ends there, so no user line changes.

Patched on the classes, so that clients built earlier, shared or subclassed are seen too. Responses,
streams and exceptions are built from the module that the client's class comes from: the two libraries'
objects must not be mixed.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any
from urllib.parse import unquote

from ajet.capture.address import Caller, split_path
from ajet.capture.context import current_label, current_session, passing_through
from ajet.capture.portal import Portal
from ajet.capture.respond import EventStream, Reply, caller, find_wire, refuse, respond
from ajet.capture.session import Session, is_key
from ajet.capture.wires import Refused, Wire
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.capture.wires.unanswered import Unanswered
from ajet.types import AjetError

log = logging.getLogger("ajet")

BASE_URL = "http://ajet.invalid/v1"
"""The address of explicit handles: it exists nowhere, so that a missed capture cannot cost money."""

_UNANSWERED = (
    *("/embeddings", "/rerank", "/moderations", "/audio/speech", "/audio/transcriptions"),
    *("/audio/translations", "/images/generations", "/images/edits", "/images/variations"),
    *("/realtime/client_secrets", "/realtime/calls", ":generateContent", ":streamGenerateContent"),
    *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
)
"""Ends of paths of paid or hosted models that nothing here answers: refused inside an episode."""
_STRAY = (
    "an LLM call outside any episode was refused (strict mode). Make it inside the workflow, mark it with "
    "`with ajet.passthrough():`, or set rollout.strict: false."
)
_DEAD = "the key belongs to no running episode: its episode has ended. Make clients anew in each episode."
_MODULES = ("httpx2", "httpx")
_KEY_HEADERS = ("authorization", "x-api-key", "api-key")
_READ_HEADERS = {
    name.encode(): name
    for name in (*_KEY_HEADERS, "x-ajet-agent", "x-ajet-target", "x-stainless-retry-count")
}
ResolveAgent = Callable[[str, Mapping[str, Any]], str | None]


class Capture:
    """Answers the LLM requests of this process while installed; one at a time.

    Which episode a request belongs to: the key in its Authorization header, else the contextvar. A
    stray request is refused in strict mode (a forgotten call to a paid API is money and a leak).
    """

    _installed: Capture | None = None

    def __init__(
        self,
        portal: Portal,
        *,
        strict: bool = True,
        wires: Sequence[Wire] = BUILTIN_WIRES,
        resolve_agent: ResolveAgent | None = None,
    ) -> None:
        self.portal = portal
        self.strict = strict
        self.wires = wires
        self.counters: Counter[str] = Counter()
        self.patched: list[tuple[type, Any]] = []
        """Classes whose ``send`` is ours, with their own one."""
        self._resolve_agent = resolve_agent
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> Capture:
        if Capture._installed is not None:
            raise AjetError(
                "capture is already installed in this process: run one job at a time per process."
            )
        Capture._installed = self
        for name in _MODULES:
            if importlib.util.find_spec(name):
                module = importlib.import_module(name)
                self._patch(module.Client, _sync_send(self, module, module.Client.send))
                self._patch(module.AsyncClient, _async_send(self, module, module.AsyncClient.send))
        return self

    def __exit__(self, *exc: object) -> None:
        for cls, original in self.patched:
            cls.send = original  # type: ignore[attr-defined]
        self.patched.clear()
        Capture._installed = None

    def open(self, session: Session) -> None:
        """Answer requests that carry this session's key."""
        self._sessions[session.key] = session

    async def end(self, session: Session) -> None:
        """Cancel the session's calls; its key opens nothing any more."""
        self._sessions.pop(session.key, None)
        await self.portal.run(session.close(), here=True)

    def _patch(self, cls: type, send: Any) -> None:
        self.patched.append((cls, cls.send))  # type: ignore[attr-defined]
        cls.send = send  # type: ignore[attr-defined]

    def session_of(self, key: str) -> Session | None:
        """The open session that a key belongs to."""
        return self._sessions.get(key)

    def match(self, request: Any) -> Wire | None:
        """The wire of a request that is ours to answer; None lets it go to the network."""
        if request.method != "POST" or passing_through.get():
            return None
        wire, asked = _place(tuple(self.wires), request.url.raw_path)
        is_answered = not isinstance(wire, Unanswered)
        if wire is None or (self.strict and is_answered):
            return wire
        return wire if (self.strict or is_answered) and self._find(_headers(request), asked) else None

    def begin(self, wire: Wire, request: Any, body: bytes, blocks_loop: bool) -> Coroutine[Any, Any, Reply]:
        """Everything that needs the caller's context, then the coroutine for the engine's loop."""
        headers, asked = _headers(request), _place(tuple(self.wires), request.url.raw_path)[1]
        session = self._find(headers, asked)
        is_dead = self._is_dead(asked.key, headers)
        if is_dead or session is None:
            self.counters["stray_calls"] += 1
            error = (
                Refused(_DEAD, code="invalid_api_key", status=401)
                if is_dead
                else Refused(_STRAY, code="outside_episode")
            )
            return self._refuse(wire, error)
        named, label = caller(session, headers), current_label.get()
        agent = named[0] or asked.agent or label.agent
        if not agent and self._resolve_agent:
            try:
                agent = self._resolve_agent(
                    session.episode, {"url": str(request.url), "headers": dict(request.headers)}
                )
            except Exception as error:
                session.counters["resolve_agent_failed"] += 1
                log.debug("ajet_resolve_agent: %r", error)
        target = named[1] or asked.target or label.target
        return respond(wire, session, body, agent or "agent", target, blocks_loop=blocks_loop)

    def _find(self, headers: Mapping[str, str], asked: Caller) -> Session | None:
        for name in _KEY_HEADERS:
            if name in headers and (session := self._sessions.get(headers[name].removeprefix("Bearer "))):
                return session
        return self._sessions.get(asked.key or "") or current_session.get()

    def _is_dead(self, in_path: str | None, headers: Mapping[str, str]) -> bool:
        """Whether a key of ours was given, but of no open session: it must not open another one."""
        given = [headers[name].removeprefix("Bearer ") for name in _KEY_HEADERS if name in headers]
        ours = [key for key in given if is_key(key)] + ([in_path] if in_path else [])
        return bool(ours) and not any(key in self._sessions for key in ours)

    @staticmethod
    async def _refuse(wire: Wire, error: Refused) -> Reply:
        return refuse(wire, error)


@functools.lru_cache(512)
def _place(wires: tuple[Wire, ...], raw_path: bytes) -> tuple[Wire | None, Caller]:
    """The wire that a URL's path belongs to, and the caller that it names."""
    asked = split_path(raw_path.partition(b"?")[0].decode("ascii", "replace"))
    path = unquote(asked.path)
    wire = find_wire(wires, path)
    if wire is None and path.endswith(_UNANSWERED):
        wire = Unanswered(path, ChatCompletions())
    return wire, asked


def _headers(request: Any) -> dict[str, str]:
    """Those headers that matter here: each access to httpx's own goes through all of them."""
    return {
        _READ_HEADERS[name]: value.decode("latin-1")
        for key, value in request.headers.raw
        if (name := key.lower()) in _READ_HEADERS
    }


# --------------------------------------------------------------------------- the two kinds of clients


def _sync_send(capture: Capture, module: ModuleType, original: Any) -> Any:
    def send(client: Any, request: Any, **options: Any) -> Any:
        wire = capture.match(request)
        if wire is None or client.is_closed:
            return original(client, request, **options)
        started = time.monotonic()
        blocks_loop = asyncio._get_running_loop() is not None
        if blocks_loop:
            if not capture.counters["blocking_calls"]:
                log.warning(
                    "a synchronous LLM client is used inside an async workflow: it stops all other episodes while it waits. "
                    "Use the async client, or make the workflow a plain function."
                )
            capture.counters["blocking_calls"] += 1
        timeout = _Timeout(module, client, request)
        reply = timeout.wait(capture.portal, capture.begin(wire, request, request.read(), blocks_loop))
        response = _response(_sync_events(module), capture.portal, timeout, reply, started)
        if not options.get("stream"):
            response.read()
        return response

    return send


def _async_send(capture: Capture, module: ModuleType, original: Any) -> Any:
    async def send(client: Any, request: Any, **options: Any) -> Any:
        wire = capture.match(request)
        if wire is None or client.is_closed:
            return await original(client, request, **options)
        started = time.monotonic()
        timeout = _Timeout(module, client, request)
        answering = capture.begin(wire, request, await request.aread(), False)
        reply = await timeout.wait_async(capture.portal, answering)
        response = _response(_async_events(module), capture.portal, timeout, reply, started)
        if not options.get("stream"):
            await response.aread()
        return response

    return send


class _Timeout:
    """A client's patience: for the beginning of a reply, and for each of its events."""

    def __init__(self, module: ModuleType, client: Any, request: Any) -> None:
        self.module = module
        self.request = request
        timeout = request.extensions.get("timeout") or client.timeout.as_dict()
        seconds = timeout.get("read")
        self._seconds = None if seconds is None else float(seconds)

    def wait(self, portal: Portal, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What the coroutine returns on the engine's loop. Raises the module's ReadTimeout; whatever is
        raised has cancelled it."""
        try:
            return portal.wait(coroutine, self._seconds)
        except TimeoutError:
            raise self._passed() from None

    async def wait_async(self, portal: Portal, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """As `wait`, on another loop."""
        try:
            return await portal.run(coroutine, self._seconds, here=True)
        except TimeoutError:
            raise self._passed() from None

    def _passed(self) -> Exception:
        error: Exception = self.module.ReadTimeout(
            "ajet: no answer within the client's timeout", request=self.request
        )
        return error


def _response(events: Any, portal: Portal, timeout: _Timeout, reply: Reply, started: float) -> Any:
    """The client's response; ``events`` is the class of streams that its module wants."""
    body: Any = (
        {"content": reply.body} if reply.events is None else {"stream": events(portal, timeout, reply.events)}
    )
    response = timeout.module.Response(reply.status, headers=reply.headers, request=timeout.request, **body)
    response.elapsed = timedelta(seconds=time.monotonic() - started)
    return response


async def _next(events: EventStream) -> bytes | None:
    return await anext(events, None)


@functools.cache
def _sync_events(module: ModuleType) -> type[Any]:
    class Events(module.SyncByteStream):  # type: ignore[misc, name-defined]
        """A reply's events for a synchronous client."""

        def __init__(self, portal: Portal, timeout: _Timeout, events: EventStream) -> None:
            self._portal = portal
            self._timeout = timeout
            self._events = events
            self._open = True

        def __iter__(self) -> Iterator[bytes]:
            try:
                while data := self._timeout.wait(self._portal, _next(self._events)):
                    yield data
                self._open = False
            finally:
                self.close()

        def close(self) -> None:
            if self._open:
                self._open = False
                self._portal.leave(self._events.aclose())

    return Events


@functools.cache
def _async_events(module: ModuleType) -> type[Any]:
    class Events(module.AsyncByteStream):  # type: ignore[misc, name-defined]
        """A reply's events for an asynchronous client."""

        def __init__(self, portal: Portal, timeout: _Timeout, events: EventStream) -> None:
            self._portal = portal
            self._timeout = timeout
            self._events = events
            self._open = True

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                while data := await self._timeout.wait_async(self._portal, _next(self._events)):
                    yield data
                self._open = False
            finally:
                await self.aclose()

        async def aclose(self) -> None:
            if self._open and self._portal.loop.is_running():
                self._open = False
                await asyncio.shield(self._portal.run(self._events.aclose(), here=True))

    return Events
