"""Nearest names, for errors about misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` without its question mark, or nothing when no name is near."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}" if matches else ""
