"""LLM calls of shadow runs go to the explorer, by whatever client and to whatever address the agent makes them.

The clients are patched as `ajet.capture` patches them, and their requests are answered by requests of our own: a client of the
service keeps connections that belong to its event loop, so a shadow run must not use them.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from types import ModuleType
from typing import Any

import httpx2

from ajet.capture.clients import httpx, install_translated
from ajet.capture.clients.translated import Matcher
from ajet.capture.context import passing_through
from ajet.capture.portal import Portal
from ajet.capture.respond import Reply, find_wire, refuse
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.capture.wires.unanswered import Unanswered, find_unanswered
from ajet.interfaces.wire import Refused, Wire
from ajet_online.runner.shadow import Shadow, current_shadow, in_shadow_run

SAMPLING = ("temperature", "top_p", "top_k", "topP", "topK", "seed")
"""Parameters that the explorer decides. With the temperature 0 of an agent in production, all runs of a group would be the same,
and could not be trained."""
BUSY = (429, 503)
ATTEMPTS = 4


class Forwarding:
    """Answers the LLM calls of shadow runs, for `ajet.capture.clients`."""

    def __init__(self) -> None:
        # A count above 0 keeps the client's patch from warning about blocked loops.
        self.counters: Counter[str] = Counter(blocking_calls=1)

    @property
    def portal(self) -> Portal:
        with _lock:  # as `functools.cache` lets several threads make one
            return _portal()

    def match(self, request: Any) -> Wire | None:
        """The wire of a request that goes to the explorer."""
        if not in_shadow_run() or request.method != "POST" or passing_through.get():
            return None
        return _wire(request.url.path)

    def begin(self, wire: Wire, request: Any, body: bytes, blocks_loop: bool) -> Coroutine[Any, Any, Reply]:
        """The explorer's reply."""
        shadow = current_shadow.get()
        assert shadow
        return _reply(wire, shadow, body)

    def judge_calls_of(self, request: Any) -> None:
        """No judge makes these calls."""

    def locate(self, refusal: Any, request: Any) -> None:
        """Refusals are not collected; the agent raises them."""


_forwarding = Forwarding()


@contextmanager
def calls_forwarded(module: ModuleType) -> Iterator[None]:
    """Send LLM calls of shadow runs by httpx or httpx2 to the explorer."""
    with httpx.patched(module, _forwarding):
        yield


@contextmanager
def calls_of_other_clients_forwarded() -> Iterator[None]:
    """A block in which other HTTP clients make their LLM calls in shadow runs through httpx2."""
    undo = install_translated(
        Matcher(lambda path: in_shadow_run() and _wire(path.decode()) is not None, _is_forwarded)
    )
    try:
        yield
    finally:
        undo()


def _is_forwarded(request: httpx2.Request) -> bool:
    return _forwarding.match(request) is not None


def _wire(path: str) -> Wire | None:
    """None for a path at which no text is generated, such as that of embeddings."""
    if wire := find_wire(BUILTIN_WIRES, path):
        return wire
    unanswered = find_unanswered(path)
    return unanswered if unanswered and unanswered.generates_text else None


async def _reply(wire: Wire, shadow: Shadow, body: bytes) -> Reply:
    # This context is a copy of the agent's, and the request below must go out.
    current_shadow.set(None)
    if isinstance(wire, Unanswered):
        return refuse(wire, wire.refusal)
    try:
        asked = _without_sampling(json.loads(body))
        for attempt in range(ATTEMPTS):
            response = await _client().post(
                f"{shadow.explorer}/v1{wire.path.removeprefix('/v1')}",
                json=asked,
                headers={"Authorization": f"Bearer {shadow.key}"},
            )
            if response.status_code not in BUSY or attempt == ATTEMPTS - 1:
                break
            await asyncio.sleep(float(response.headers.get("retry-after", 1)))
    except Exception as error:
        return refuse(wire, Refused(f"the explorer cannot be asked: {error!r}", code="explorer", status=502))
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    return Reply(response.status_code, response.content, is_stream=is_stream)


def _without_sampling(body: dict[str, Any]) -> dict[str, Any]:
    """A request without the parameters that the explorer decides; Google's API has them in an object of their own."""
    kept = {name: value for name, value in body.items() if name not in SAMPLING}
    return {
        name: _without_sampling(value) if name in ("generationConfig", "generation_config") else value
        for name, value in kept.items()
    }


_lock = threading.Lock()


@functools.cache
def _portal() -> Portal:
    """A thread for the requests, as long as the process runs. It keeps nothing of the shadow run that starts it."""
    return Context().run(Portal)


@functools.cache
def _client() -> httpx2.AsyncClient:
    """Made in the portal's thread. Without a timeout: that of the agent's client holds."""
    return httpx2.AsyncClient(timeout=None)


def _forget() -> None:
    """A forked process has no threads of its parent, and perhaps its locked lock."""
    global _lock
    _lock = threading.Lock()
    _portal.cache_clear()
    _client.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
