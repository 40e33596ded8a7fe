"""httpx2 and httpx, on which the SDKs of OpenAI and Anthropic are built: patched at `send` of both clients.

Patched on the classes, so that clients built earlier, shared or subclassed are seen too. Responses, streams and
exceptions are built from the module that the client's class comes from: the two libraries' objects must not be mixed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any, Protocol

from ajet.capture.judge_calls import JudgeCalls, as_json
from ajet.capture.portal import Portal
from ajet.capture.refusals import Refusal
from ajet.capture.respond import EventStream, Reply
from ajet.interfaces.wire import Wire
from ajet.utils.patching import replaced

log = logging.getLogger("ajet")


class ClientsCapture(Protocol):
    """What the patched clients need of `ajet.capture.hook.Capture`, which has them patched."""

    @property
    def portal(self) -> Portal: ...

    @property
    def counters(self) -> Counter[str]: ...

    def match(self, request: Any) -> Wire | None: ...

    def begin(
        self, wire: Wire, request: Any, body: bytes, blocks_loop: bool
    ) -> Coroutine[Any, Any, Reply]: ...

    def judge_calls_of(self, request: Any) -> JudgeCalls | None: ...

    def locate(self, refusal: Refusal, request: Any) -> None: ...


@contextmanager
def patched(module: ModuleType, capture: ClientsCapture) -> Iterator[None]:
    """LLM calls by httpx2 or httpx are answered."""
    with (
        replaced(module.Client, send=_sync_send(capture, module, module.Client.send)),
        replaced(module.AsyncClient, send=_async_send(capture, module, module.AsyncClient.send)),
    ):
        yield


def _sync_send(capture: ClientsCapture, module: ModuleType, original: Any) -> Any:
    def send(client: Any, request: Any, **options: Any) -> Any:
        wire = capture.match(request)
        if wire is None or client.is_closed:
            judging = capture.judge_calls_of(request)
            body = request.read() if judging else b""
            response = original(client, request, **options)
            if judging:
                response.read()
                _keep(judging, request, body, response)
            return response
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
        if reply.refusal:
            capture.locate(reply.refusal, request)
        response = _response(_sync_events(module), capture.portal, timeout, reply, started)
        if not options.get("stream"):
            response.read()
        return response

    return send


def _async_send(capture: ClientsCapture, module: ModuleType, original: Any) -> Any:
    async def send(client: Any, request: Any, **options: Any) -> Any:
        wire = capture.match(request)
        if wire is None or client.is_closed:
            judging = capture.judge_calls_of(request)
            body = await request.aread() if judging else b""
            response = await original(client, request, **options)
            if judging:
                await response.aread()
                _keep(judging, request, body, response)
            return response
        started = time.monotonic()
        timeout = _Timeout(module, client, request)
        answering = capture.begin(wire, request, await request.aread(), False)
        reply = await timeout.wait_async(capture.portal, answering)
        if reply.refusal:
            capture.locate(reply.refusal, request)
        response = _response(_async_events(module), capture.portal, timeout, reply, started)
        if not options.get("stream"):
            await response.aread()
        return response

    return send


def _keep(judging: JudgeCalls, request: Any, body: bytes, response: Any) -> None:
    """Keep a judge's call whose response has been read; a failed one is repeated or fails the judge."""
    if response.status_code == 200:
        judging.add(str(request.url), as_json(body), as_json(response.content))


class _Timeout:
    """A client's timeouts: for the beginning of a reply, and for each of its events."""

    def __init__(self, module: ModuleType, client: Any, request: Any) -> None:
        self.module = module
        self.request = request
        timeout = request.extensions.get("timeout") or client.timeout.as_dict()
        seconds = timeout.get("read")
        self._seconds = None if seconds is None else float(seconds)

    def wait(self, portal: Portal, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine on the engine's loop and return its result. Raises the module's ReadTimeout; any exception
        raised here has cancelled the coroutine."""
        try:
            return portal.wait(coroutine, self._seconds)
        except TimeoutError:
            raise self._passed() from None

    async def wait_async(self, portal: Portal, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """As `wait`, on another loop."""
        try:
            return await portal.run(coroutine, self._seconds)
        except TimeoutError:
            raise self._passed() from None

    def _passed(self) -> Exception:
        error: Exception = self.module.ReadTimeout(
            "ajet: no answer within the client's timeout", request=self.request
        )
        return error


def _response(events: Any, portal: Portal, timeout: _Timeout, reply: Reply, started: float) -> Any:
    """The client's response; ``events`` is the stream class that its module expects."""
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
                await self._portal.leave_from_loop(self._events.aclose())

    return Events
