"""Ports for servers that are to be told theirs."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port where nobody listens, below those that systems give to whoever does not ask for one: until a
    test's server has it, no server or client of another test, in another process, gets it by chance."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
