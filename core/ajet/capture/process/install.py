"""Extends capture to everything an agent may start: threads, forks, subprocesses, other HTTP clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, thread
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ajet.capture.gateway.server import Gateway
from ajet.capture.process.fork import ChildReports, fork_safe
from ajet.capture.process.printed import printed_by_episode
from ajet.capture.process.uncaptured import REMEDY, Listener, listening
from ajet.capture.refusals import RefusedCalls
from ajet.capture.session import current_session, threads_without_session
from ajet.interfaces.workflow import EpisodeEndpoint
from ajet.utils.patching import replaced

if TYPE_CHECKING:
    from ajet.capture.hook import Capture

_MOST_LINES = 3
"""Groups of refused calls that a run's output lists one by one."""


@dataclass(frozen=True, slots=True)
class InstalledCapture:
    """What surrounds an installed capture."""

    capture: Capture
    gateway: Gateway
    missed: Listener
    children: ChildReports
    url: str = ""
    """Where programs on other machines reach the gateway; empty if there are none."""

    def as_base_url(
        self, tuner: Any, *, agent: str | None = None, target: str | None = None
    ) -> EpisodeEndpoint:
        """See `Gateway.as_base_url`: with the address for programs on other machines, if there is one."""
        endpoint = self.gateway.as_base_url(tuner, agent=agent, target=target)
        if not self.url:
            return endpoint
        return endpoint._replace(base_url=self.url + endpoint.base_url.removeprefix(self.gateway.url))

    def refused(self) -> list[RefusedCalls]:
        """The LLM calls that were refused so far, forked children's too."""
        self.children.collect()
        return self.capture.refusals.found()

    def lines(self) -> list[str]:
        """Lines on refused and missed calls, for the end of a run."""
        refusals = self.refused()
        lines = [f"{refused.line}. {refused.message}" for refused in refusals[:_MOST_LINES]]
        if rest := sum(refused.count for refused in refusals[_MOST_LINES:]):
            lines.append(f"{rest} further LLM calls were refused for other causes or from other lines")
        return [*lines, *filter(None, [self.missed_line()])]

    def missed_line(self) -> str:
        """One line on the connections missed in all episodes; empty if there were none."""
        places = self.missed.found()
        if not places:
            return ""
        locations = ", ".join(missed.where for missed in places[:_MOST_LINES])
        connections = sum(missed.count for missed in places)
        return f"{connections} connections during episodes were not captured: {locations}. {REMEDY}"


@contextmanager
def install(
    capture: Capture,
    *,
    gateway: bool = False,
    refuse_missed: bool = False,
    all_threads: bool = False,
    models: Sequence[str] = ("policy",),
    host: str = "127.0.0.1",
    port: int = 0,
    url: str = "",
) -> Iterator[InstalledCapture]:
    """A block in which thread pools keep the episode, forked children are answered, missed calls are noted, and a
    gateway is available at ``host`` and ``port``; with ``gateway`` it listens from the beginning. ``url`` is where programs on
    other machines reach it."""
    server = Gateway(capture.portal, capture.session_of, capture.wires, models=models, host=host, port=port)
    loop = capture.portal.loop
    listener = Listener(refuse=refuse_missed, engine_loop=loop, is_ours=server.is_at)
    capture.location_of = listener.location_of
    with (
        propagated(threads=all_threads, engine_loop=loop),
        fork_safe(capture, server) as children,
        listening(listener),
    ):
        try:
            if gateway:
                server.start()
            yield InstalledCapture(capture, server, listener, children, url)
        finally:
            server.close()


@contextmanager
def propagated(*, threads: bool, engine_loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """A block in which jobs of thread pools, and with ``threads`` plain threads too, that are started inside an
    episode run in the context of their caller. The engine's own jobs are unchanged.

    ``ThreadPoolExecutor.submit`` carries the caller's context, one copy per job, so shared pools stay correct;
    ``loop.run_in_executor``, and with it every framework's sync tools, uses it. A plain thread that a library starts once, inside
    some episode, and uses for everything would belong to that episode forever. What it prints always does.
    """
    submit, start = ThreadPoolExecutor.submit, threading.Thread.start
    threads_without_session.clear()

    def carries() -> bool:
        return current_session.get() is not None and asyncio._get_running_loop() is not engine_loop

    def submit_carrying(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if carries():
            return submit(self, copy_context().run, fn, *args, **kwargs)
        return submit(self, fn, *args, **kwargs)

    def start_carrying(self: Any) -> None:
        if carries() and getattr(self, "_target", None) is not thread._worker:
            run, printed = self.run, printed_by_episode.get()
            if threads:
                run = partial(copy_context().run, run)
            else:
                threads_without_session.add(self)
            # Also a traceback belongs to the episode.
            self.run = lambda: (printed_by_episode.set(printed), run())
        start(self)

    with (
        replaced(ThreadPoolExecutor, submit=submit_carrying),
        replaced(threading.Thread, start=start_carrying),
    ):
        yield
