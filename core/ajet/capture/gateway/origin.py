"""Requests that a web page elsewhere has its visitor's browser send: a server without keys must not answer them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit


def foreign(headers: Mapping[str, str], listens_on: str) -> str | None:
    """Why a request comes from somewhere else, by its headers (names in small letters); None if it does not.

    A browser names the page in ``Origin``. A page whose name was made to lead here (DNS rebinding) needs none, but
    its name stands in ``Host``, where a server on loopback expects loopback.
    """
    host = _split(f"//{headers.get('host', '')}").hostname or ""
    origin = headers.get("origin")
    if origin is not None and (not host or _split(origin).netloc.lower() != headers["host"].lower()):
        return f"a web page of {origin[:100]} may not ask here"
    if host and is_loopback(listens_on) and not is_loopback(host):
        return f"the name {host[:100]} in the Host header is not of this machine: use localhost"
    return None


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(url: str) -> SplitResult:
    """The parts of a URL; they are empty if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")
