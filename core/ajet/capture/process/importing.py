"""LLM calls that user code makes while it is imported: no episode runs yet, so they are refused."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.process.uncaptured import location_on_stack

log = logging.getLogger("ajet")


@contextmanager
def refusing_calls(what: str) -> Iterator[None]:
    """A block in which ``what``, such as ``workflow agent.py:run``, is imported. Its LLM calls raise what the client
    raises for status 400; if the code swallows that error, a warning reports the call."""
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
