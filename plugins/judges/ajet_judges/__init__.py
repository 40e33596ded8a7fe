"""Judges that compare a response with the task's known answer."""

from __future__ import annotations

from ajet import Judge, hookimpl
from ajet_judges.numeric import Math
from ajet_judges.text import Contains, Exact

__all__ = ["Contains", "Exact", "Math"]


@hookimpl
def ajet_judges() -> list[type[Judge]]:
    return [Exact, Contains, Math]
