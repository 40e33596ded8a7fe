"""Strangers and a customer flood an explorer, which reads next to nothing of it. `bench/online_flood.py` times the others."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ajet.capture.gateway import bodies
from ajet.capture.gateway.bodies import MOST_PAGE_BYTES
from ajet_online.keys import Key, Keys
from tests.patience import PATIENCE
from tests.plugins.online.serving import CHAT, OTHER, Server, user

HUGE = 30 << 20
FLOOD = [
    b'{"reward": 1, "task_id": "t", "msg_ids": ["' + b"a" * HUGE + b'"]}',
    b'{"msg_ids": ["a"], "task_id": "t", "comment": "' + b"a" * HUGE + b'"}',
    b'{"x": [' + b"[]," * 10_000_000 + b"[]]}",
]
PATHS = ("/feedback", "/commit", "/rollback", "/v1/chat/completions")


@pytest.fixture
def url(file: Path) -> str:
    """SQLite is enough here."""
    return f"sqlite:///{file}"


@pytest.fixture
def most_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of bodies that the explorer has taken, piece by piece."""
    read: list[int] = []

    class Counting(bodies.Bodies):
        def read(self, key: str, headers: Any, receive: Any, most: int | None = None) -> Any:
            async def counted() -> Any:
                message = await receive()
                read.append(len(message.get("body", b"")))
                return message

            return super().read(key, headers, counted, most)

    monkeypatch.setattr("ajet.capture.gateway.server.Bodies", Counting)
    yield read


def begun(server: Server, path: str, length: int | None, body: bytes, key: str = "") -> socket.socket:
    """A connection that has sent what the server takes of a body at once."""
    host, _, port = server.url.rpartition("/")[2].rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE)
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n{size}\r\n\r\n"
    connection.send(head.encode() + body)
    return connection


def status_of(connection: socket.socket) -> int:
    return int(connection.recv(1 << 12).split()[1])


@pytest.mark.whole
def test_a_flood_is_not_read_and_others_are_answered_meanwhile(
    serve: Callable[..., Server], most_read: list[int]
) -> None:
    server = serve(
        Keys([Key("paying", CHAT, ("chat", "feedback")), Key("customer", OTHER, ("chat", "feedback"))])
    )
    with ExitStack() as open_ones:
        strangers = [begun(server, PATHS[n % len(PATHS)], HUGE, b" " * 50_000) for n in range(100)]
        strangers += [begun(server, path, None, b"c350\r\n" + b" " * 50_000) for path in PATHS]
        customers = [begun(server, "/feedback", len(body), body[:50_000], OTHER) for body in FLOOD]
        pieces = [
            begun(server, "/feedback", None, b"%x\r\n" % (1 << 18) + body[: 1 << 18], OTHER) for body in FLOOD
        ]
        for connection in (*strangers, *customers, *pieces):
            open_ones.enter_context(connection)
        reply = server.ask([user("hi")])
        assert {status_of(connection) for connection in strangers} == {401}
        assert {status_of(connection) for connection in (*customers, *pieces)} == {413}
        given = {"msg_ids": [reply.id], "reward": 1, "task_id": "t", "details": True}
        assert server.post("/feedback", given).json()["rated"] == [reply.id]
    # Of the pieces, what had come when the limit was passed; the others are a chat and a feedback.
    assert sum(most_read) < len(pieces) * 2 * MOST_PAGE_BYTES + 1_000
