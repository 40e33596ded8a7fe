"""Extends capture to everything an agent may start: threads, forks, subprocesses, other HTTP clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.capture.gateway.server import Gateway
from ajet.capture.process.fork import ChildReports, fork_safe
from ajet.capture.process.threads import propagated
from ajet.capture.process.uncaptured import REMEDY, Listener, listening
from ajet.capture.refusals import RefusedCalls
from ajet.interfaces.workflow import EpisodeEndpoint

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
