"""The runners that are started: the first of them is told of the calls of frameworks' agents."""

from __future__ import annotations

import os

from ajet_online.runner.watching import Watcher

watchers: list[Watcher] = []

# A forked process has none of the threads of its parent's runners.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchers.clear)


def current_watcher() -> Watcher | None:
    """None if no runner is started."""
    return watchers[0] if watchers else None
