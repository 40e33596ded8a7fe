"""The numbers of a query."""

from __future__ import annotations

import math

from ajet_studio.problems import wrong


def number(text: str | None, name: str, default: int | None = None) -> int | None:
    """A whole number of a query. Raises Refused (400)."""
    if text in (None, ""):
        return default
    try:
        return int(str(text))
    except ValueError:
        raise wrong(f"{name}: {str(text)[:40]!r} is not a whole number") from None


def real(text: str | None, name: str) -> float | None:
    """A number of a query. Raises Refused (400)."""
    if text in (None, ""):
        return None
    try:
        value = float(str(text))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise wrong(f"{name}: {str(text)[:40]!r} is not a number")
    return value
