"""The gateway: capture behind a loopback socket, for subprocesses, other languages and other HTTP clients.

A key in the request selects the session: in the path (``/k/<key>/v1/chat/completions``), as
``Authorization: Bearer``, ``x-api-key`` or ``x-goog-api-key``. A request whose path ends with a wire's path is answered as by the
in-process hook. If a client disconnects, its generation is cancelled and nothing of it is recorded. The server
runs on the engine's own loop, so calls switch no threads. It starts when it is first needed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from ajet.capture.gateway.address import Caller, key_in, key_in_query, make_path, split_path
from ajet.capture.gateway.bodies import MOST_BYTES, MOST_PAGE_BYTES, Bodies, Gone, Receive, announced
from ajet.capture.gateway.listening import QUEUED, foreign, listen, url_of
from ajet.capture.gateway.metrics import GatewayMeter
from ajet.capture.portal import Portal
from ajet.capture.respond import EventStream, Reply, caller, find_wire, refuse, respond
from ajet.capture.session import Session
from ajet.interfaces.wire import Refused, Wire
from ajet.interfaces.workflow import EpisodeEndpoint
from ajet.types import AjetError

log = logging.getLogger("ajet")

MOST_CALLS = 4096
_LONG_BODY = 1 << 16
"""Size from which the body of a refused request is not read to its end."""
_SECONDS_TO_START = 10.0
_SECONDS_TO_CLOSE = 5.0
_IDLE_SECONDS = 120
_LOOK_SECONDS = 0.02
_LONGEST_NAME = 256
_MODEL = re.compile(r"/models/([^/]+)$")
_GOOGLES = ["generateContent", "streamGenerateContent", "countTokens"]
_NO_NAME = re.compile("[\0-\x1f\x7f\ufffd]")
"""Control characters, and what stands for bytes that are no UTF-8."""
_LAST_WORD_SECONDS = 1.0
"""Seconds after which the finished call of a client that does not read is cut off."""

Find = Callable[[str], Session | None]
Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Admitted(NamedTuple):
    """A request to a `Page`, before its body is read: the key for which the body counts, and what returns JSON to it."""

    key: str
    answer: Callable[[bytes], Awaitable[Mapping[str, Any]]]


Page = Callable[[str | None], AbstractContextManager[Admitted]]
"""A further page: a block in which a request with a key is answered. It raises Refused for a key that may not ask."""


class Gateway:
    """A server for the sessions that ``find`` looks up by key; ``models`` are the names it lists. ``pages`` are further pages by
    method and path, as in ``POST /feedback``. ``metrics`` returns further lines of `/metrics`. ``keyless``: ``find`` asks for no key,
    so calls of web pages are refused, which any visitor's browser could make."""

    def __init__(
        self,
        portal: Portal,
        find: Find,
        wires: Sequence[Wire],
        *,
        models: Sequence[str] = ("policy",),
        pages: Mapping[str, Page] = MappingProxyType({}),
        metrics: Callable[[], str] = str,
        host: str = "127.0.0.1",
        port: int = 0,
        most_bytes: int = MOST_BYTES,
        most_calls: int = MOST_CALLS,
        keyless: bool = False,
    ) -> None:
        self.meter = GatewayMeter()
        self.socket: socket.socket | None = None
        """The listening socket; None before the start."""
        self._portal = portal
        self._address = (host, port)
        self._at: tuple[str, int] | None = None
        """The address it listens on. A forked child needs it too, although it closes its copy of the socket."""
        self._app = _App(
            find=find,
            wires=wires,
            models=models,
            pages=pages,
            metrics=metrics,
            meter=self.meter,
            host=host,
            most_bytes=most_bytes,
            most_calls=most_calls,
            keyless=keyless,
        )
        self._starting = threading.Lock()
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> str:
        """Listen, unless the gateway already does; return the URL without a path. Call it from any thread but the
        engine's. Raises AjetError if the address cannot be bound."""
        with self._starting:
            if self.socket is None:
                listening = listen(*self._address, "the gateway")
                try:
                    self._portal.submit(self._serve(listening)).result(_SECONDS_TO_START)
                except BaseException:
                    listening.close()
                    raise
                self.socket = listening
                self._at = listening.getsockname()[:2]
        return self.url

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port``, as clients on this machine reach it."""
        assert self._at
        return url_of(*self._at)

    def is_at(self, host: str, port: int) -> bool:
        """Whether it listens at this address."""
        return self._at is not None and (
            port == self._at[1] and host in (self._at[0], "localhost", "127.0.0.1", "::1")
        )

    def as_base_url(
        self, tuner: Any, *, agent: str | None = None, target: str | None = None
    ) -> EpisodeEndpoint:
        """``tuner.as_base_url(agent=…, target=…)``: the address and the key of the tuner's episode, for any
        process or language. Starts the gateway."""
        return EpisodeEndpoint(f"{self.start()}{make_path(None, agent, target)}/v1", tuner.api_key)

    def close(self, drain: float = 0.0) -> None:
        """Take no more calls, wait up to ``drain`` seconds for those in progress, then stop listening and cancel what still runs;
        its sessions should have ended."""
        with self._starting:
            serving, self._serving, self.socket, self._at = self._serving, None, None, None
            if serving is not None:
                self._portal.submit(self._stop(serving, drain)).result(drain + _SECONDS_TO_CLOSE)

    async def _serve(self, listening: socket.socket) -> None:
        import uvicorn

        from ajet.capture.gateway.http_server import BACKLOG, make_protocol

        config = uvicorn.Config(
            self._app,
            http=make_protocol(),
            backlog=BACKLOG,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        self._app.closing = False
        self._server = uvicorn.Server(config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listening]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise AjetError("the gateway's server stopped right after its start")
            await asyncio.sleep(0.002)
        listening.listen(QUEUED)  # asyncio has shortened the queue to its own backlog

    async def _stop(self, serving: asyncio.Task[None], drain: float) -> None:
        self._app.closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(drain):
                while self.meter.in_flight:
                    await asyncio.sleep(_LOOK_SECONDS)
        self._server.should_exit = True
        await serving


class _App:
    """The ASGI application."""

    def __init__(
        self,
        *,
        find: Find,
        wires: Sequence[Wire],
        models: Sequence[str],
        pages: Mapping[str, Page],
        metrics: Callable[[], str],
        meter: GatewayMeter,
        host: str,
        most_bytes: int,
        most_calls: int,
        keyless: bool,
    ) -> None:
        self._find = find
        self._host = host
        self._wires = wires
        self._models = models
        self._pages = pages
        self._metrics = metrics
        self._meter = meter
        self._bodies = Bodies(most_bytes)
        self._most_calls = most_calls
        self._keyless = keyless
        self._since = int(time.time())
        self.closing = False

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        asked = split_path(scope["raw_path"].decode("ascii"))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if key := key_in_query(scope["query_string"]):
            headers.setdefault("x-goog-api-key", key)
        wire = find_wire(self._wires, asked.path)
        try:
            if page := self._pages.get(f"{scope['method']} {asked.path}"):
                await self._further(page, asked, headers, receive, send)
            elif wire is None or scope["method"] != "POST":
                await self._page(scope["method"], asked, headers, wire is not None, send)
            else:
                await self._call(wire, asked, headers, receive, send)
        except Gone:
            self._meter.disconnects += 1
        except Refused as error:
            self._meter.refused[error.code] += 1
            reply = refuse(wire or self._wires[0], error)
            further = [*(_CHALLENGE if error.status == 401 else ()), *(_CLOSE if _is_long(headers) else ())]
            await _say(send, reply, further)

    async def _page(
        self, method: str, asked: Caller, headers: Mapping[str, str], is_wire: bool, send: Send
    ) -> None:
        """Answer requests that are not calls: health, metrics, models, and probes."""
        if method not in ("GET", "HEAD") and not is_wire:
            raise _no_such_path(asked.path)
        self._refuse_foreign(headers)
        if asked.path == "/health":
            if self.closing:
                raise _closing()
            await _plain(
                send, "application/json", json.dumps({"status": "ok", "in_flight": self._meter.in_flight})
            )
        elif asked.path == "/metrics":
            await _plain(send, "text/plain; version=0.0.4", self._meter.text() + self._metrics())
        elif asked.path == "":
            await _plain(send, "text/plain", "AgentJet; the base URL of a client ends with /v1\n")
        elif asked.path.endswith("/models"):
            self._session(asked, headers)
            models = [self._model(name) for name in self._models]
            ends = {"first_id": self._models[0], "last_id": self._models[-1], "has_more": False}
            await _plain(
                send,
                "application/json",
                json.dumps({"object": "list", "data": models, "models": models, **ends}),
            )
        elif not is_wire and (model := _MODEL.search(asked.path)):
            self._session(asked, headers)  # any name is answered, as in calls
            await _plain(send, "application/json", json.dumps(self._model(unquote(model[1]))))
        elif is_wire and headers.get("upgrade", "").lower() == "websocket":
            # Clients that find 426 go on over HTTP at once.
            raise Refused(
                f"{asked.path} takes POST, not a WebSocket", code="websocket_not_supported", status=426
            )
        elif is_wire:
            raise Refused(f"{asked.path} takes POST, not {method}", code="method_not_allowed", status=405)
        else:
            raise _no_such_path(asked.path)

    def _model(self, name: str) -> dict[str, Any]:
        """A model in the forms of OpenAI, Anthropic and Google."""
        since = datetime.fromtimestamp(self._since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        of_openai = {"id": name, "object": "model", "created": self._since, "owned_by": "ajet"}
        of_google = {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": _GOOGLES}
        return of_openai | of_google | {"type": "model", "display_name": name, "created_at": since}

    async def _further(
        self, page: Page, asked: Caller, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        """Answer one of the further pages."""
        self._refuse_foreign(headers)
        with page(asked.key or key_in(headers.get)) as admitted:
            async with self._bodies.read(admitted.key, headers, receive, MOST_PAGE_BYTES) as body:
                answer = await admitted.answer(body)
        await _plain(send, "application/json", json.dumps(answer))

    async def _call(
        self, wire: Wire, asked: Caller, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        if self._keyless:
            self._refuse_foreign(headers)
        session = self._session(asked, headers)
        if self.closing:
            raise _closing()
        if self._meter.in_flight >= self._most_calls:
            raise Refused(
                f"{self._most_calls} calls are being answered already; try again later",
                code="busy",
                status=429,
            )
        agent, target = caller(session, headers)
        agent, target = agent or asked.agent or "agent", target or asked.target
        if len(agent) > _LONGEST_NAME or _NO_NAME.search(agent):
            raise Refused(
                f"the name of an agent has at most {_LONGEST_NAME} characters, in UTF-8 and without control characters",
                code="invalid_request",
            )
        with self._meter.call(session):
            async with self._bodies.read(session.key, headers, receive) as body:
                await self._answer(wire, session, body, agent, target, receive, send)

    async def _answer(
        self,
        wire: Wire,
        session: Session,
        body: bytes,
        agent: str,
        target: str | None,
        receive: Receive,
        send: Send,
    ) -> None:
        with _WhileThere(receive) as client:
            try:
                reply = await respond(wire, session, body, agent, target, apart=True)
            except asyncio.CancelledError:
                client.go_on()
                reply = refuse(wire, self._why_ended(session))
            self._meter.calls[reply.status] += 1
            if reply.events is None:
                await _say(send, reply)
            else:
                await self._stream(session, client, reply.headers, reply.events, send)

    async def _stream(
        self,
        session: Session,
        client: _WhileThere,
        headers: Mapping[str, str],
        events: EventStream,
        send: Send,
    ) -> None:
        """Send events as they come; a client that reads slowly holds them up."""
        try:
            await send(_start(200, headers))
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            client.go_on()
            last = events.ended(self._why_ended(session))
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD_SECONDS):
                    await send({"type": "http.response.body", "body": last})
        finally:
            await events.aclose()

    def _why_ended(self, session: Session) -> Refused:
        """Why a call was cancelled, but not by its client."""
        if self.closing:
            return _closing()
        return Refused(f"episode {session.episode} has ended", code="episode_ended")

    def _refuse_foreign(self, headers: Mapping[str, str]) -> None:
        if reason := foreign(headers, self._host):
            raise Refused(reason, code="foreign_origin", status=403)

    def _session(self, asked: Caller, headers: Mapping[str, str]) -> Session:
        key = asked.key or key_in(headers.get)
        session = self._find(key or "")
        if session is None:
            what = (
                "the key is not valid: its episode has ended or was never started"
                if key
                else "the request has no key"
            )
            raise Refused(
                f"{what}. Send the key that `ajet serve` has printed, or in an episode that of tuner.as_base_url(), as "
                "`Authorization: Bearer`, `x-api-key` or `x-goog-api-key`, or in the path as /k/<key>",
                code="invalid_api_key",
                status=401,
            )
        return session


class _WhileThere:
    """A block that is cancelled when the client goes away, and then raises Gone."""

    __slots__ = ("_receive", "_starting", "_task", "_watching", "gone")

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task
        self.gone = False
        self._task = task
        self._receive = receive

    def __enter__(self) -> _WhileThere:
        # Start lazily: most calls finish first.
        self._watching: asyncio.Task[None] | None = None
        self._starting = asyncio.get_running_loop().call_soon(self._start)
        return self

    def _start(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._starting.cancel()
        if self._watching:
            self._watching.cancel()
        if self.gone and kind is not None and issubclass(kind, asyncio.CancelledError):
            self._task.uncancel()
            raise Gone from None

    def go_on(self) -> None:
        """The episode ended, not the client: the call was cancelled but still gets an answer. Raises CancelledError
        if the client has gone too."""
        if self.gone:
            raise asyncio.CancelledError
        while self._task.cancelling():
            self._task.uncancel()


_CHALLENGE = ((b"www-authenticate", b"Bearer"),)
_CLOSE = ((b"connection", b"close"),)


def _closing() -> Refused:
    return Refused("the gateway is closing", code="closing", status=503)


def _no_such_path(path: str) -> Refused:
    return Refused(
        f"nothing is served at {path[:200] or '/'}; the base URL ends with /v1", code="not_found", status=404
    )


def _start(status: int, headers: Mapping[str, str], *further: tuple[bytes, bytes]) -> Message:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": [*encoded, *further]}


def _is_long(headers: Mapping[str, str]) -> bool:
    """Whether a request announces a body that is too long to read and discard."""
    return "transfer-encoding" in headers or announced(headers) > _LONG_BODY


async def _say(send: Send, reply: Reply, further: Sequence[tuple[bytes, bytes]] = ()) -> None:
    headers = reply.headers
    # The model was asked again already.
    is_models = reply.refusal is not None and reply.refusal.code == "engine_error"
    if reply.status in (429, 503) and not is_models:
        headers |= {"x-should-retry": "true", "retry-after": str(max(1, math.ceil(reply.retry_after)))}
    if reply.status == 426:
        headers |= {"upgrade": "HTTP/1.1", "connection": "upgrade"}
    if reply.status in (408, 413):  # the rest of the body must not be taken for a request
        headers["connection"] = "close"
    await send(_start(reply.status, headers, (b"content-length", b"%d" % len(reply.body)), *further))
    await send({"type": "http.response.body", "body": reply.body})


async def _plain(send: Send, kind: str, text: str) -> None:
    body = text.encode()
    await send(_start(200, {"content-type": kind, "content-length": str(len(body))}))
    await send({"type": "http.response.body", "body": body})
