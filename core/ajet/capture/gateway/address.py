"""How a request to the gateway names its session: keys, agents and targets in URL paths and headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote

_PARTS = {"k": 0, "a": 1, "t": 2}
_MOST_PARTS = 2 * len(_PARTS)
"""Further ones belong to the rest of a path: cutting each off copies all of the others."""


class Caller(NamedTuple):
    """The caller, as far as the request names it. ``path`` is the rest of the URL's path."""

    key: str | None
    agent: str | None
    target: str | None
    path: str


def make_path(key: str | None = None, agent: str | None = None, target: str | None = None) -> str:
    """``/k/<key>/a/<agent>/t/<target>``, without the parts that are not given."""
    given = zip(_PARTS, (key, agent, target), strict=True)
    return "".join(f"/{letter}/{quote(value, safe='')}" for letter, value in given if value)


def split_path(path: str) -> Caller:
    """The caller that a raw (still percent-encoded) path names, and the rest of it."""
    parts: list[str | None] = [None, None, None]
    for _ in range(_MOST_PARTS):
        if len(path) < 3 or path[0] != "/" or path[2] != "/" or path[1] not in _PARTS:
            break
        letter = path[1]
        value, slash, rest = path[3:].partition("/")
        parts[_PARTS[letter]] = unquote(value)
        path = slash + rest
    key, agent, target = parts
    return Caller(key, agent, target, path.rstrip("/"))


def key_in(header: Callable[[str], str | None]) -> str | None:
    """The key of a request's headers: ``Authorization: Bearer``, else ``x-api-key``, ``api-key`` or ``x-goog-api-key``."""
    given = header("authorization")
    if given:
        scheme, _, key = given.partition(" ")
        return key.strip() if scheme.lower() == "bearer" else given
    return header("x-api-key") or header("api-key") or header("x-goog-api-key")


def key_in_query(query: bytes) -> str | None:
    """The key of a URL's query, ``?key=``, as clients of Google's API may send it."""
    return parse_qs(query.decode("latin-1")).get("key", [None])[0] if b"key=" in query else None
