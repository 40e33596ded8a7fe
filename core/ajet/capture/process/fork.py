"""Forked children: they inherit the episode, but not the engine's thread, so their calls would get no answer.

In a child the hooks on ``send`` are replaced: a call that capture would answer goes to the gateway of the
parent, with its episode's key and labels in the path, or is refused in one line if no gateway is running.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ajet.capture.clients import install_translated
from ajet.capture.clients.translated import Matcher
from ajet.capture.context import current_label
from ajet.capture.gateway.address import Caller, key_in, key_in_query, make_path, split_path
from ajet.capture.hook import STRAY
from ajet.capture.refusals import Refusal, Refusals
from ajet.capture.respond import refuse
from ajet.capture.session import Session, current_session
from ajet.capture.wires.unanswered import Unanswered
from ajet.interfaces.wire import Refused, Wire

if TYPE_CHECKING:
    from ajet.capture.gateway.server import Gateway
    from ajet.capture.hook import Capture

_NO_GATEWAY = (
    "this process was forked by the agent, and forked children are answered through the gateway only: set "
    "rollout.gateway: true, or start them with the variables of tuner.as_base_url().environment()"
)

_LONGEST_TOLD = 1_000
"""Maximum characters of each text in a reported refusal, so that buffers hold many."""

_live: tuple[Capture, Gateway, ChildReports] | None = None
_forward: _Forward | None = None
"""The forwarder of this process, if it is a forked child."""
_registered = False


class ChildReports:
    """Sockets over which forked children report refused calls to this process: their errors may be lost with them,
    like those in a pool that cannot be pickled. The sockets carry datagrams, which arrive whole."""

    def __init__(self, refusals: Refusals, session_of: Callable[[str], Session | None]) -> None:
        self._refusals = refusals
        self._session_of = session_of
        self._read, self._write = socket.socketpair(type=socket.SOCK_DGRAM)
        for end in (self._read, self._write):
            end.setblocking(False)

    def tell(self, refusal: Refusal, key: str | None) -> None:
        """Report a refusal, in a child, with the key of its episode. It is lost if the buffers are full."""
        told = {name: text[:_LONGEST_TOLD] for name, text in {**asdict(refusal), "key": key or ""}.items()}
        with suppress(OSError):
            self._write.send(json.dumps(told).encode())

    def collect(self) -> None:
        """Add what children have reported since the last call."""
        with suppress(BlockingIOError):
            while told := self._read.recv(1 << 16):
                refusal = json.loads(told)
                session = self._session_of(refusal.pop("key"))
                self._refusals.add(Refusal(**refusal))
                if session is not None:
                    session.child_refused = Refusal(**refusal)

    async def watch(self) -> None:
        """Collect from now on as soon as children report. Runs on the engine's loop, as `close` does."""
        asyncio.get_running_loop().add_reader(self._read, self.collect)

    async def close(self) -> None:
        """Collect the rest, and close the sockets."""
        asyncio.get_running_loop().remove_reader(self._read)
        self.collect()
        self._read.close()
        self._write.close()


@contextmanager
def fork_safe(capture: Capture, gateway: Gateway) -> Iterator[ChildReports]:
    """A block in which forked children reach the gateway. Fork handlers cannot be removed: one is registered
    permanently, the first time, and does nothing outside such blocks."""
    global _live, _registered
    if not _registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
        _registered = True
    reports = ChildReports(capture.refusals, capture.session_of)
    capture.portal.wait(reports.watch())
    outer, _live = _live, (capture, gateway, reports)
    try:
        yield reports
    finally:
        _live = outer
        capture.portal.wait(reports.close())


def _in_child() -> None:
    global _forward
    if _forward is not None:
        _forward.forget_clients()
    if _live is None or _forward is not None:
        return
    capture, gateway, reports = _live
    url = gateway.url if gateway.socket else None
    if gateway.socket:
        gateway.socket.close()  # the child's copy would keep the port open after the parent ends
    capture.__exit__(None, None, None)
    _forward = _Forward(capture, url, reports)
    for module in capture.patched:
        _forward.install(module)
    _forward.undo_translated = install_translated(Matcher(capture.is_llm_path, _forward.is_ours))


class _Forward:
    """Replaces ``send`` in a child."""

    def __init__(self, capture: Capture, url: str | None, reports: ChildReports) -> None:
        self._capture = capture
        self._url = url
        self._reports = reports
        self.undo_translated: Callable[[], None] | None = None
        """Never called: the patches of the other clients are undone when nothing refers to it."""
        self.forget_clients()

    def forget_clients(self) -> None:
        """Use new clients: a child's child must not write to its parent's connections."""
        self._sync: dict[str, Any] = {}
        self._async: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def install(self, module: ModuleType) -> None:
        """Patch both clients of httpx2 or httpx."""
        send, async_send = module.Client.send, module.AsyncClient.send

        def forward(client: Any, request: Any, **options: Any) -> Any:
            wire = self._wire(request)
            if wire is None:
                return send(client, request, **options)
            ours, refused = self._rewritten(module, wire, request, request.read())
            if refused is not None:
                return refused
            if module.__name__ not in self._sync:
                self._sync[module.__name__] = module.Client(trust_env=False, timeout=None)
            return send(self._sync[module.__name__], ours, **_streaming(options))

        async def forward_async(client: Any, request: Any, **options: Any) -> Any:
            wire = self._wire(request)
            if wire is None:
                return await async_send(client, request, **options)
            ours, refused = self._rewritten(module, wire, request, await request.aread())
            if refused is not None:
                return refused
            clients = self._async.setdefault(asyncio.get_running_loop(), {})
            if module.__name__ not in clients:
                clients[module.__name__] = module.AsyncClient(trust_env=False, timeout=None)
            return await async_send(clients[module.__name__], ours, **_streaming(options))

        module.Client.send = forward
        module.AsyncClient.send = forward_async

    def is_ours(self, request: Any) -> bool:
        """Whether a request goes to the gateway, or is refused."""
        return self._wire(request) is not None

    def _wire(self, request: Any) -> Wire | None:
        if self._url and str(request.url).startswith(f"{self._url}/"):
            return None  # it already goes to the gateway
        return self._capture.match(request)

    def _key(self, request: Any) -> str | None:
        given = key_in(request.headers.get), key_in_query(request.url.query), _asked(request).key
        opened = (self._capture.session_of(key) for key in given if key)
        session = next(filter(None, opened), None) or current_session.get()
        return session.key if session else None

    def _rewritten(self, module: ModuleType, wire: Wire, request: Any, body: bytes) -> tuple[Any, Any]:
        """The request rewritten for the gateway, or the response that refuses it."""
        key = self._key(request)
        if key is None or self._url is None or isinstance(wire, Unanswered):
            error = _refused(wire, key)
            refusal = Refusal(error.code, str(error))
            self._capture.locate(refusal, request)
            self._reports.tell(refusal, key)
            reply = refuse(wire, error)
            return None, module.Response(
                reply.status, headers=reply.headers, content=reply.body, request=request
            )
        label, asked = current_label.get(), _asked(request)
        agent = request.headers.get("x-ajet-agent") or asked.agent or label.agent
        target = request.headers.get("x-ajet-target") or asked.target or label.target
        dropped = ("host", "authorization", "x-api-key", "api-key", "x-goog-api-key", "content-length")
        headers = [(k, v) for k, v in request.headers.raw if k.lower().decode("latin-1") not in dropped]
        url = f"{self._url}{make_path(key, agent, target)}/v1{wire.path}"
        ours = module.Request("POST", url, headers=headers, content=body, extensions=request.extensions)
        return ours, None


def _refused(wire: Wire, key: str | None) -> Refused:
    """Why a child's call is not sent to the gateway."""
    if key is None:
        return Refused(STRAY, code="outside_episode")
    return wire.refusal if isinstance(wire, Unanswered) else Refused(_NO_GATEWAY, code="no_gateway")


def _asked(request: Any) -> Caller:
    return split_path(request.url.raw_path.partition(b"?")[0].decode("ascii", "replace"))


def _streaming(options: dict[str, Any]) -> dict[str, Any]:
    return {"stream": options.get("stream", False)}
