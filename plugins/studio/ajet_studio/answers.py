"""What the server answers: JSON that every browser can read, with no NaN, and lone surrogates only as escapes; or why it cannot answer,
as for a query whose numbers are none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from ajet_studio.lines import finite


class RefusedView(Exception):
    """An answer with an HTTP status and one line of text, for the page to show."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def missing(text: str) -> RefusedView:
    """Status 404."""
    return RefusedView(404, text)


def wrong(text: str) -> RefusedView:
    """Status 400."""
    return RefusedView(400, text)


def number(text: str | None, name: str, default: int | None = None) -> int | None:
    """A whole number of a query. Raises RefusedView (400)."""
    if text in (None, ""):
        return default
    try:
        return int(str(text))
    except ValueError:
        raise wrong(f"{name}: {str(text)[:40]!r} is not a whole number") from None


def real(text: str | None, name: str) -> float | None:
    """A number of a query. Raises RefusedView (400)."""
    if text in (None, ""):
        return None
    try:
        value = float(str(text))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise wrong(f"{name}: {str(text)[:40]!r} is not a number")
    return value


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def thinned(rows: Sequence[Any], most: int) -> Sequence[Any]:
    """At most so many rows, evenly, the first and last always."""
    if len(rows) <= most:
        return rows
    if most == 1:
        return rows[-1:]
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def json_answer(value: Any, status: int = 200) -> Response:
    """A value as an answer; NaN and infinities are null."""
    try:
        body = msgspec.json.encode(value)  # NaN is null
    except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, ValueError):
        body = json.dumps(finite(value), default=str).encode()  # ASCII
    return Response(body, status, media_type="application/json")


def error(status: int, text: str) -> Response:
    """An error in one line."""
    return json_answer({"error": " ".join(text.split())}, status)
