"""What lets capture reach all that an agent may start: threads, forks, subprocesses, other HTTP clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.capture.forked import fork_safe
from ajet.capture.gateway import Gateway
from ajet.capture.missed import REMEDY, Listener, Missed, listening
from ajet.capture.propagation import propagated

if TYPE_CHECKING:
    from ajet.capture.hook import Capture


@dataclass(frozen=True, slots=True)
class Reach:
    """What stands around an installed capture."""

    gateway: Gateway
    missed: Listener

    def missed_line(self) -> str:
        """What was missed in all episodes, in one line; empty if nothing was."""
        total = self.missed.total
        if not total:
            return ""
        places = ", ".join(Missed(*address, n).where for address, n in total.most_common(3))
        return f"{total.total()} connections during episodes were not captured: {places}. {REMEDY}"


@contextmanager
def reach(
    capture: Capture,
    *,
    gateway: bool = False,
    refuse_missed: bool = False,
    all_threads: bool = False,
    models: Sequence[str] = ("policy",),
) -> Iterator[Reach]:
    """A block in which pools keep the episode, forked children are answered, missed calls are noted, and a
    gateway can be had; with ``gateway`` it listens from the beginning."""
    server = Gateway(capture.portal, capture.session_of, capture.wires, models=models)
    loop = capture.portal.loop
    listener = Listener(refuse=refuse_missed, engine_loop=loop, is_ours=server.is_at)
    with (
        propagated(threads=all_threads, engine_loop=loop),
        fork_safe(capture, server),
        listening(listener),
    ):
        try:
            if gateway:
                server.start()
            yield Reach(server, listener)
        finally:
            server.close()
