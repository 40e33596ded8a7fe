"""Finds the episode that a request of this process belongs to, and answers it: the logic behind the patched clients.

The clients are patched in `ajet.capture.clients`; user code does not change.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any
from urllib.parse import unquote

from ajet.capture.clients import httpx, install_translated
from ajet.capture.clients.translated import Matcher
from ajet.capture.context import current_label, passing_through
from ajet.capture.gateway.address import Caller, key_in_query, split_path
from ajet.capture.judge_calls import JudgeCalls, judge_calls
from ajet.capture.portal import Portal
from ajet.capture.refusals import Refusal, Refusals
from ajet.capture.respond import Reply, caller, find_wire, refuse, respond
from ajet.capture.session import Session, current_session, is_key, threads_without_session
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.capture.wires.unanswered import Unanswered, find_unanswered
from ajet.interfaces.wire import Refused, Wire
from ajet.types import AjetError

log = logging.getLogger("ajet")

BASE_URL = "http://ajet.invalid/v1"
"""The address of explicit handles. It does not exist, so a call that capture misses cannot cost money."""

STRAY = (
    "an LLM call outside any episode was refused (strict mode). Make it inside the workflow, mark it with "
    "`with ajet.passthrough():`, or set rollout.strict: false."
)
_LOST = (
    "an LLM call in a plain thread, which is outside any episode, was refused (strict mode). Set rollout.threads: all, "
    "so that threads belong to the episode that starts them."
)
_DEAD = "the key belongs to no running episode: its episode has ended. Create new clients in each episode."
_MODULES = ("httpx2", "httpx")
_KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
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
        stray: str = STRAY,
    ) -> None:
        self.portal = portal
        self.strict = strict
        self.wires = wires
        self.counters: Counter[str] = Counter()
        self.refusals = Refusals()
        """Refused calls of ended episodes, and of calls outside any episode."""
        self.location_of: Callable[[Session | None], str] = lambda session: ""
        """The user's line that makes the current call of an episode, or of none."""
        self.patched: list[ModuleType] = []
        """httpx2 and httpx, as far as they are installed."""
        self._undo = ExitStack()
        self._stray = stray
        self._resolve_agent = resolve_agent
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> Capture:
        if Capture._installed is not None:
            raise AjetError(
                "capture is already installed in this process: run one job at a time per process."
            )
        Capture._installed = self
        self.patched = [importlib.import_module(name) for name in _MODULES if importlib.util.find_spec(name)]
        for module in self.patched:
            self._undo.enter_context(httpx.patched(module, self))
        self._undo.callback(
            install_translated(Matcher(self.is_llm_path, lambda r: self.match(r) is not None))
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
        Capture._installed = None

    @classmethod
    def is_installed(cls) -> bool:
        """Whether capture is installed in this process."""
        return cls._installed is not None

    def open(self, session: Session) -> None:
        """Answer requests that carry this session's key."""
        self._sessions[session.key] = session

    async def end(self, session: Session) -> None:
        """Cancel the session's calls and invalidate its key."""
        self._sessions.pop(session.key, None)
        await self.portal.run(session.close())
        for refusal in session.refusals:
            self.refusals.add(refusal)

    def session_of(self, key: str) -> Session | None:
        """The open session that a key belongs to."""
        return self._sessions.get(key)

    def is_llm_path(self, raw_path: bytes) -> bool:
        """Whether capture recognises this URL path as that of an LLM API, for any HTTP client."""
        return _place(tuple(self.wires), raw_path)[0] is not None

    def match(self, request: Any) -> Wire | None:
        """The wire of a request that capture answers; None lets the request go to the network."""
        if request.method != "POST":
            return None
        judging = judge_calls.get()
        if judging and judging.replies:
            return _place(tuple(self.wires), request.url.raw_path)[0]
        if passing_through.get():
            return None
        wire, asked = _place(tuple(self.wires), request.url.raw_path)
        is_answered = not isinstance(wire, Unanswered)
        if wire is None or (self.strict and is_answered):
            return wire
        return wire if (self.strict or is_answered) and self._find(_headers(request), asked) else None

    def begin(self, wire: Wire, request: Any, body: bytes, blocks_loop: bool) -> Coroutine[Any, Any, Reply]:
        """Everything that needs the caller's context, then the coroutine for the engine's loop."""
        judging = judge_calls.get()
        if judging and judging.replies:
            return _recorded(wire, judging, body)
        headers, asked = _headers(request), _place(tuple(self.wires), request.url.raw_path)[1]
        session = self._find(headers, asked)
        is_dead = self._is_dead(asked.key, headers)
        if is_dead or session is None:
            self.counters["stray_calls"] += 1
            return self._refuse(wire, self._stray_error(is_dead), request)
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

    def judge_calls_of(self, request: Any) -> JudgeCalls | None:
        """What keeps the reply to a request that goes to the network: the judge's calls, if a judge makes it."""
        judging = judge_calls.get()
        is_call = judging is not None and request.method == "POST" and self.is_llm_path(request.url.raw_path)
        return judging if is_call else None

    def _find(self, headers: Mapping[str, str], asked: Caller) -> Session | None:
        for name in _KEY_HEADERS:
            if name in headers and (session := self._sessions.get(headers[name].removeprefix("Bearer "))):
                return session
        return self._sessions.get(asked.key or "") or current_session.get()

    def _is_dead(self, in_path: str | None, headers: Mapping[str, str]) -> bool:
        """Whether the request has a key of a session that is no longer open: it must not reach another one."""
        given = [headers[name].removeprefix("Bearer ") for name in _KEY_HEADERS if name in headers]
        ours = [key for key in given if is_key(key)] + ([in_path] if in_path else [])
        return bool(ours) and not any(key in self._sessions for key in ours)

    def _stray_error(self, is_dead: bool) -> Refused:
        if is_dead:
            return Refused(_DEAD, code="invalid_api_key", status=401)
        is_lost = threading.current_thread() in threads_without_session
        return Refused(_LOST if is_lost else self._stray, code="outside_episode")

    def _refuse(self, wire: Wire, error: Refused, request: Any) -> Coroutine[Any, Any, Reply]:
        refusal = Refusal(error.code, str(error))
        self.locate(refusal, request)
        self.refusals.add(refusal)

        async def answer() -> Reply:
            return refuse(wire, error, refusal)

        return answer()

    def locate(self, refusal: Refusal, request: Any) -> None:
        """Note the address and the user's line of a refused call, in the thread that makes it."""
        asked = _place(tuple(self.wires), request.url.raw_path)[1]
        refusal.url = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}{asked.path}"
        refusal.location = self.location_of(self._find(_headers(request), asked))


async def _recorded(wire: Wire, judging: JudgeCalls, body: bytes) -> Reply:
    """What a recording answers a judge."""
    try:
        response = judging.reply(body)
    except Refused as error:
        return refuse(wire, error)
    is_stream = isinstance(response, str)
    return Reply(200, (response if is_stream else json.dumps(response)).encode(), is_stream=is_stream)


@functools.lru_cache(512)
def _place(wires: tuple[Wire, ...], raw_path: bytes) -> tuple[Wire | None, Caller]:
    """The wire that a URL's path belongs to, and the caller that it names."""
    asked = split_path(raw_path.partition(b"?")[0].decode("ascii", "replace"))
    path = unquote(asked.path)
    return find_wire(wires, path) or find_unanswered(path), asked


def _headers(request: Any) -> dict[str, str]:
    """The headers that matter here, also a key that the URL has instead: each access to httpx's own searches all of them."""
    headers = {
        _READ_HEADERS[name]: value.decode("latin-1")
        for key, value in request.headers.raw
        if (name := key.lower()) in _READ_HEADERS
    }
    if key_in_url := key_in_query(request.url.query):
        headers.setdefault("x-goog-api-key", key_in_url)
    return headers
