"""Named breakpoints: ``ajet.breakpoint("TAG")`` stops only when the job was started with ``--break TAG``."""

from __future__ import annotations

import pdb
import sys

_enabled: set[str] = set()


def enable(tags: set[str]) -> None:
    """Make these tags stop; the tag ``*`` means all."""
    _enabled.update(tags)


def breakpoint(tag: str) -> None:
    """Stop in the debugger at the caller's line if ``tag`` is enabled; otherwise do nothing."""
    if tag not in _enabled and "*" not in _enabled:
        return
    if sys.breakpointhook is sys.__breakpointhook__:
        pdb.Pdb(nosigint=True).set_trace(sys._getframe(1))
    else:  # an IDE's own debugger
        sys.breakpointhook()


def under_debugger() -> bool:
    """Whether a tracing debugger or an enabled breakpoint is active, so that deadlines should be off."""
    return bool(_enabled) or sys.gettrace() is not None or "debugpy" in sys.modules
