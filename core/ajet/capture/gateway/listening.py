"""Listening sockets for AgentJet's servers."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ajet.capture.gateway.origin import is_loopback
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
