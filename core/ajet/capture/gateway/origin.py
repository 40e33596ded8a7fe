"""Cross-site requests from a visitor's browser: a server without keys must not answer them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit


def foreign(headers: Mapping[str, str], listens_on: str) -> str | None:
    """Why a request is cross-site, by its headers (names in lower case); None if it is not.

    A browser names the page in ``Origin``. A page whose host name resolves to this server (DNS rebinding) sends none,
    but its name is in ``Host``, where a server on loopback expects a loopback name.
    """
    host = _split(f"//{headers.get('host', '')}").hostname or ""
    origin = headers.get("origin")
    if origin is not None and (not host or _split(origin).netloc.lower() != headers["host"].lower()):
        return f"requests from web pages of {origin[:100]} are not allowed"
    if host and is_loopback(listens_on) and not is_loopback(host):
        return f"the name {host[:100]} in the Host header is not a name of this machine: use localhost"
    return None


def is_loopback(host: str) -> bool:
    """Whether a name or address is a loopback one."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(url: str) -> SplitResult:
    """The parts of a URL, empty if the text is not a URL."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")
