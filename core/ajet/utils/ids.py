"""Random ids."""

from __future__ import annotations

import os
import secrets

_BYTES, _MANY = 12, 256
_drawn: list[str] = []
os.register_at_fork(after_in_child=_drawn.clear)


def new_id() -> str:
    """24 hex digits that cannot be guessed. Many are drawn at a time: each draw asks the system, and lets other threads take the
    interpreter."""
    while True:
        try:
            return _drawn.pop()
        except IndexError:
            digits = secrets.token_hex(_BYTES * _MANY)
            _drawn.extend(digits[i : i + 2 * _BYTES] for i in range(0, len(digits), 2 * _BYTES))
