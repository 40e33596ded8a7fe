"""The hook on ``send`` of httpx2 and httpx: every LLM client ends there, so no user line changes.

Patched on the classes, so that clients built earlier, shared or subclassed are seen too. Responses,
streams and exceptions are built from the module that the client's class comes from: the two libraries'
objects must not be mixed.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from types import ModuleType
from typing import Any

from ajet.capture.context import current_label, current_session, passing_through
from ajet.capture.portal import Portal
from ajet.capture.session import Session
from ajet.capture.wires import Refused, Wire
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.types import AjetError

log = logging.getLogger("ajet")

BASE_URL = "http://ajet.invalid/v1"
"""The address of explicit handles: it exists nowhere, so that a missed capture cannot cost money."""

WIRES: tuple[Wire, ...] = (ChatCompletions(),)
_UNSUPPORTED = ("/responses", "/completions", "/messages")
_MODULES = ("httpx2", "httpx")
ResolveAgent = Callable[[str, Mapping[str, Any]], str | None]


class Capture:
    """Answers the LLM requests of this process while installed; one at a time.

    Which episode a request belongs to: the key in its Authorization header, else the contextvar. A
    stray request is refused in strict mode (a forgotten call to a paid API is money and a leak).
    """

    _installed: Capture | None = None

    def __init__(
        self, portal: Portal, *, strict: bool = True, resolve_agent: ResolveAgent | None = None
    ) -> None:
        self.portal = portal
        self.strict = strict
        self.counters: Counter[str] = Counter()
        self._resolve_agent = resolve_agent
        self._sessions: dict[str, Session] = {}
        self._originals: list[tuple[type, Any]] = []

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
        for cls, original in self._originals:
            cls.send = original  # type: ignore[attr-defined]
        self._originals.clear()
        Capture._installed = None

    def open(self, session: Session) -> None:
        """Answer requests that carry this session's key."""
        self._sessions[session.key] = session

    async def end(self, session: Session) -> None:
        """Cancel the session's calls; its key opens nothing any more."""
        self._sessions.pop(session.key, None)
        await self.portal.run(session.close())

    def _patch(self, cls: type, send: Any) -> None:
        self._originals.append((cls, cls.send))  # type: ignore[attr-defined]
        cls.send = send  # type: ignore[attr-defined]

    def match(self, request: Any) -> Wire | None:
        """The wire of a request that is ours to answer; None lets it go to the network."""
        if request.method != "POST" or passing_through.get():
            return None
        path = request.url.path.rstrip("/")
        for wire in WIRES:
            if path.endswith(wire.path):
                return wire if self.strict or self._find(request) else None
        if path.endswith(_UNSUPPORTED) and self.strict and self._find(request):
            return _Unsupported(path)
        return None

    def begin(
        self, wire: Wire, request: Any, body: bytes, blocks_loop: bool
    ) -> Coroutine[Any, Any, tuple[int, dict[str, Any]]]:
        """Everything that needs the caller's context, then the coroutine for the engine's loop."""
        session = self._find(request)
        label = current_label.get()
        agent = request.headers.get("x-ajet-agent") or label.agent
        target = request.headers.get("x-ajet-target") or label.target
        if session and not agent and self._resolve_agent:
            try:
                agent = self._resolve_agent(
                    session.episode, {"url": str(request.url), "headers": dict(request.headers)}
                )
            except Exception as error:
                session.counters["resolve_agent_failed"] += 1
                log.debug("ajet_resolve_agent: %r", error)
        return self._answer(wire, session, body, agent or "agent", target, blocks_loop)

    def _find(self, request: Any) -> Session | None:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        return self._sessions.get(key) or current_session.get()

    async def _answer(
        self,
        wire: Wire,
        session: Session | None,
        body: bytes,
        agent: str,
        target: str | None,
        blocks_loop: bool,
    ) -> tuple[int, dict[str, Any]]:
        try:
            if session is None:
                self.counters["stray_calls"] += 1
                raise Refused(
                    "an LLM call outside any episode was refused (strict mode). Make it inside the workflow, mark it with "
                    "`with ajet.passthrough():`, or set rollout.strict: false.",
                    code="outside_episode",
                )
            request = wire.parse(body)
            answers = await session.answer(request, agent, target, blocks_loop)
            return 200, wire.reply(request, answers, secrets.token_hex(12))
        except Refused as error:
            if session:
                session.counters[f"refused:{error.code}"] += 1
            return error.status, wire.error(error)
        except Exception as error:
            log.exception("an LLM call of %s failed", session.episode if session else "?")
            return 400, wire.error(Refused(f"{type(error).__name__}: {error}", code="internal_error"))


class _Unsupported(ChatCompletions):
    """Stands for wires that are not captured yet: an episode's call to one is refused by name."""

    def __init__(self, path: str) -> None:
        self.path = path

    def parse(self, body: bytes) -> Any:
        raise Refused(
            f"{self.path} is not captured; use chat completions in this agent", code="unsupported_wire"
        )


def _sync_send(capture: Capture, module: ModuleType, original: Any) -> Any:
    def send(client: Any, request: Any, **options: Any) -> Any:
        wire = capture.match(request)
        if wire is None:
            return original(client, request, **options)
        blocks_loop = _loop_is_running()
        if blocks_loop and not capture.counters["blocking_calls"]:
            log.warning(
                "a synchronous LLM client is used inside an async workflow: it stops all other episodes while it waits. "
                "Use the async client, or make the workflow a plain function."
            )
        capture.counters["blocking_calls"] += blocks_loop
        future = capture.portal.submit(capture.begin(wire, request, request.read(), blocks_loop))
        try:
            status, reply = future.result(_read_timeout(request))
        except FutureTimeout:
            future.cancel()
            raise module.ReadTimeout("ajet: no answer within the client's timeout", request=request) from None
        except BaseException:
            future.cancel()
            raise
        return _response(module, request, status, reply)

    return send


def _async_send(capture: Capture, module: ModuleType, original: Any) -> Any:
    async def send(client: Any, request: Any, **options: Any) -> Any:
        wire = capture.match(request)
        if wire is None:
            return await original(client, request, **options)
        answering = capture.portal.run(capture.begin(wire, request, await request.aread(), False))
        try:
            status, reply = await asyncio.wait_for(answering, _read_timeout(request))
        except TimeoutError:
            raise module.ReadTimeout("ajet: no answer within the client's timeout", request=request) from None
        return _response(module, request, status, reply)

    return send


def _read_timeout(request: Any) -> float | None:
    timeout = request.extensions.get("timeout") or {}
    value = timeout.get("read")
    return None if value is None else float(value)


def _response(module: ModuleType, request: Any, status: int, reply: dict[str, Any]) -> Any:
    headers = {"content-type": "application/json"}
    if status != 200:
        headers["x-should-retry"] = "false"  # it would fail again: SDKs must not sleep and repeat
    return module.Response(
        status, headers=headers, content=json.dumps(reply, ensure_ascii=False).encode(), request=request
    )


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
