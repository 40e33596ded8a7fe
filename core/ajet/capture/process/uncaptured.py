"""Missed calls: connections that an episode makes and capture does not account for, and programs that it starts.

An agent whose HTTP client or wire capture does not know would reach a real endpoint, pay for it and learn nothing.
An audit hook sees every lookup and connection of this process, whatever library makes it; inside an episode it notes
host, port and the user's line, or refuses. Of programs, whose connections it does not see, it notes the first. It cannot
see connections of uvloop, of libraries with their own sockets, and of threads that lost the episode's context.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ajet.capture.context import passing_through
from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.session import Session, current_session
from ajet.types import AjetError
from ajet.utils.user_code import is_users

log = logging.getLogger("ajet")

MOST_LOCATIONS = 50
"""Maximum distinct connections that are reported per episode."""

REMEDY = (
    "If it calls a model, use an OpenAI-compatible or Anthropic client on httpx, aiohttp, requests or "
    "urllib, or give it the address of tuner.as_base_url(); if it does not, make it inside `with ajet.passthrough():`."
)


class MissedCall(AjetError):
    """A connection that capture does not see was refused (``rollout.missed: refuse``)."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Connections of one episode to one address from one line."""

    host: str
    port: int
    location: str
    """``agent.py:17``: the user's line; empty if no user code was running."""
    count: int = 1

    @property
    def where(self) -> str:
        """``api.example.com:443 (agent.py:17)``"""
        return f"{self.host}:{self.port}{f' ({self.location})' if self.location else ''}"


@dataclass(slots=True)
class _WatchedEpisode:
    """What is known about a running episode's connections."""

    task: asyncio.Task[Any] | None
    """The task of its workflow; None if the workflow is a function that has a thread of its own."""
    thread: int
    """The thread of its workflow."""
    found: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    names: dict[int, str] = field(default_factory=dict)
    """Port -> the host name that was last looked up to connect there."""


class Listener:
    """Notes the connections of running episodes. ``is_ours`` recognises the gateway's own address; connections made
    on the engine's loop are never an agent's."""

    def __init__(
        self,
        *,
        refuse: bool,
        engine_loop: asyncio.AbstractEventLoop,
        is_ours: Callable[[str, int], bool] = lambda host, port: False,
    ) -> None:
        self.total: Counter[tuple[str, int, str]] = Counter()
        self._refuse = refuse
        self._engine_loop = engine_loop
        self._is_ours = is_ours
        self._episodes: dict[str, _WatchedEpisode] = {}

    def begin(self, key: str) -> None:
        """The episode of a session's key begins in this task."""
        self._episodes[key] = _WatchedEpisode(asyncio.current_task(), threading.get_ident())

    def in_this_thread(self, key: str) -> None:
        """Its workflow runs in this thread."""
        if watched := self._episodes.get(key):
            watched.task, watched.thread = None, threading.get_ident()

    def end(self, key: str) -> tuple[Missed, ...]:
        """End the episode and return what it missed."""
        watched = self._episodes.pop(key, None)
        counts = watched.found if watched else {}
        self.total.update(counts)
        return tuple(Missed(*address, count) for address, count in counts.items())

    def found(self) -> list[Missed]:
        """What all ended episodes missed, the most frequent first."""
        return [Missed(*address, count) for address, count in self.total.most_common()]

    def location_of(self, session: Session | None) -> str:
        """The user's line that makes the current call of an episode, or of none; else where its workflow stands."""
        watched = self._episodes.get(session.key) if session else None
        location = location_on_stack(sys._getframe(1))
        return location or (_location_of_workflow(watched) if watched else "")

    def looked_up(self, host: Any, port: Any) -> None:
        """A name is about to be looked up."""
        host = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        if isinstance(host, str) and host and not _is_numeric(host):
            number = _port(port)
            if (watched := self._watched()) and not self._is_ours(host, number):
                watched.names[number] = host
                if host != "localhost":  # reported only on connecting: the lookup may be for listening
                    self._note(watched, host, number)

    def connects(self, connection: Any, address: Any) -> None:
        """A socket is about to be connected."""
        if not isinstance(address, tuple) or len(address) < 2 or connection.type & 0xF == socket.SOCK_DGRAM:
            return
        host, port = str(address[0]), _port(address[1])
        if (watched := self._watched()) and not self._is_ours(host, port):
            name = watched.names.get(port)
            if name is None or name == "localhost":
                self._note(watched, name or host, port)

    def starts(self, command: Any) -> None:
        """A program is about to be started."""
        session = current_session.get()
        if session is not None and not session.program and self._watched():
            words = [command] if isinstance(command, str | bytes | os.PathLike) else list(command or ())
            words = [os.fsdecode(word) if isinstance(word, bytes) else word for word in words]
            text = " ".join(" ".join(map(str, words)).split())
            short = text if len(text) <= _LONGEST_COMMAND else f"{text[: _LONGEST_COMMAND - 1]}…"
            location = location_on_stack(sys._getframe(1))
            session.program = f"{short} ({location})" if location else short

    def _watched(self) -> _WatchedEpisode | None:
        session = current_session.get()
        if session is None or passing_through.get() or asyncio._get_running_loop() is self._engine_loop:
            return None
        return self._episodes.get(session.key)

    def _note(self, watched: _WatchedEpisode, host: str, port: int) -> None:
        location = location_on_stack(sys._getframe(3)) or _location_of_workflow(watched)
        if len(watched.found) < MOST_LOCATIONS or (host, port, location) in watched.found:
            watched.found[host, port, location] += 1
        session = current_session.get()
        assert session
        session.counters["missed_connections"] += 1
        if self._refuse:
            raise MissedCall(
                f"a connection to {Missed(host, port, location).where} was refused (rollout.missed: refuse) because "
                f"capture does not see it. {REMEDY}"
            )


_STARTS = {"subprocess.Popen": 1, "os.posix_spawn": 1, "os.system": 0}
"""Audit events of a program's start, and which of their arguments has its command."""
_LONGEST_COMMAND = 60
_listener: Listener | None = None
_installed = False


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A block in which a listener learns of connections. Audit hooks cannot be removed: one is installed
    permanently, the first time, and does nothing outside such blocks."""
    global _listener, _installed
    if not _installed:
        sys.addaudithook(_audit)
        _installed = True
    outer, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = outer


def _audit(event: str, args: tuple[Any, ...]) -> None:
    listener = _listener
    if listener is None:
        return
    if event == "socket.connect":
        listener.connects(args[0], args[1])
    elif event == "socket.getaddrinfo":
        listener.looked_up(args[0], args[1])
    elif event in _STARTS:
        listener.starts(args[_STARTS[event]])


def location_on_stack(frame: FrameType | None, *, through_loops: bool = False) -> str:
    """``agent.py:17``: the innermost line of the user's own code that leads to a frame; empty if none does.
    A line that runs an event loop leads to everything on the loop, so it counts only with ``through_loops``."""
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno}"
        if not through_loops and code.co_name in _LOOPS and code.co_filename.startswith(_ASYNCIO):
            return ""
        frame = frame.f_back
    return ""


def _location_of_workflow(watched: _WatchedEpisode) -> str:
    """Where a workflow stands while a helper's thread or task connects for it."""
    awaited: Any = watched.task.get_coro() if watched.task else None
    if awaited is None or getattr(awaited, "cr_running", False):  # eager tasks start helpers before they wait
        frame = sys._current_frames().get(watched.thread)
        if running := location_on_stack(frame, through_loops=awaited is None):
            return running
    location = ""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and is_users(frame.f_code.co_filename):
            location = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return location


_ASYNCIO = str(Path(asyncio.__file__).parent)
_LOOPS = ("_run", "_run_once", "run_forever", "run_until_complete")


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _port(port: Any) -> int:
    if isinstance(port, bytes):
        port = port.decode("ascii", "replace")
    if isinstance(port, int):
        return port
    if isinstance(port, str):
        try:
            return int(port) if port.isdecimal() else socket.getservbyname(port)
        except OSError:
            return 0
    return 0


@contextmanager
def refusing_calls(what: str) -> Iterator[None]:
    """A block in which ``what``, such as ``workflow agent.py:run``, is imported. Its LLM calls raise what the client
    raises for status 400, as no episode runs yet; if the code swallows that error, a warning reports the call."""
    if Capture.is_installed():  # it refuses them as calls outside any episode
        yield
        return
    stray = (
        f"an LLM call was refused because it was made while {what} is imported, before any episode: it would have reached "
        "the real API. Make it inside the workflow, or mark it with `with ajet.passthrough():`"
    )
    portal = Portal()
    try:
        with Capture(portal, stray=stray) as capture:
            capture.location_of = lambda session: location_on_stack(sys._getframe(1), through_loops=True)
            yield
    finally:
        portal.close()
    for refused in capture.refusals.found():
        log.warning("%s. %s", refused.line, refused.message)
