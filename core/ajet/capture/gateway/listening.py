"""Listening sockets for AgentJet's servers, and requests that they must not answer: cross-site ones of a visitor's browser."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, urlsplit

from ajet.types import AjetError

QUEUED = 2048
"""Connections that the kernel queues until they are accepted."""


def listen(host: str, port: int, who: str) -> socket.socket:
    """A listening socket; port 0 is a free one. Raises AjetError if the address cannot be bound."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    # asyncio does not set it for sockets made elsewhere; without it each reply waits 40 ms for the client's ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(QUEUED)
        return listening
    except OSError as error:
        listening.close()
        raise AjetError(
            f"{who} cannot listen on {host}:{port}: {error.strerror or error}. Choose another port, or 0 for any free port."
        ) from error


def url_of(host: str, port: int) -> str:
    """``http://127.0.0.1:port``: the URL at which clients on this machine reach the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def warn_of_network(host: str, say: Callable[[str], None]) -> None:
    """Say so if others than this machine can reach the address."""
    if not is_loopback(host):
        say(
            f"warning: {host} is not a loopback address: anyone who can reach it and has the key can use the model; HTTP is "
            "not encrypted."
        )


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
