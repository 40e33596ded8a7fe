"""Answers as JSON that every browser can read: no NaN, and lone surrogates only as escapes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.responses import Response

from ajet_studio.lines import finite


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
