"""The backbone `trinity`: Trinity-RFT trains in processes of its own, while agents run and an engine samples here.

Importing this package imports neither Trinity nor torch; its modules import them when a job runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from ajet import Finding, Plugin, hookimpl
from ajet_trinity.plugin import Trinity
from ajet_trinity.versions import findings


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [Trinity]


@hookimpl
def ajet_doctor() -> Iterable[Finding]:
    """Whether Trinity is installed, and the versions of what it needs."""
    return findings()
