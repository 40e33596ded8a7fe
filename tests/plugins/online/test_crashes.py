"""Clients chat, rate and commit while the explorer is killed: all that was acknowledged is in the store, once."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet_online.schema import State
from ajet_online.store import Store
from tests.plugins.online.conftest import Cluster

KEY = "crash-key-0123456789"
CLIENTS = 4


class Explorer:
    """A process that is killed and started again on the same port."""

    def __init__(self, where: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._where = where
        self.start()

    def start(self) -> None:
        script = Path(__file__).with_name("explorer_driver.py")
        command = [sys.executable, str(script), self._where, str(self.port), KEY]
        root = Path(__file__).parents[3]
        self._process = subprocess.Popen(command, cwd=root, env=_environment(root))
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/health")
                return
            except httpx.HTTPError:
                assert self._process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)


def _environment(root: Path) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(root)}


class Client(threading.Thread):
    """Chats, rates each reply and commits now and then; notes what the explorer has acknowledged."""

    def __init__(self, port: int, number: int, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._url, self._number, self._over = f"http://127.0.0.1:{port}", number, over
        self.replies: list[str] = []
        self.ratings: dict[str, float] = {}
        self.committed: set[str] = set()

    def run(self) -> None:
        messages: list[Any] = []
        turn = 0
        while not self._over.is_set():
            turn += 1
            messages = [*messages[-6:], {"role": "user", "content": f"{self._number} {turn}"}]
            reply = self._post("/v1/chat/completions", {"model": "m", "messages": messages})
            if reply is None:
                messages.pop()
                continue
            messages.append(reply["choices"][0]["message"])
            name = reply["id"].removeprefix("chatcmpl-")
            self.replies.append(name)
            task = {
                "msg_ids": [reply["id"]],
                "reward": float(turn),
                "task_id": f"{self._number}",
                "run_id": turn,
            }
            if self._post("/feedback", task):
                self.ratings[name] = float(turn)
                if turn % 3 == 0 and self._post("/commit", {"task_id": f"{self._number}", "run_id": turn}):
                    self.committed.add(name)

    def _post(self, path: str, body: Any) -> dict[str, Any] | None:
        """The answer; None without one, after a moment."""
        try:
            answer = httpx.post(
                self._url + path, json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=30
            )
        except httpx.HTTPError:
            time.sleep(0.1)
            return None
        if answer.status_code != 200:
            time.sleep(0.1)
            return None
        found: dict[str, Any] = answer.json()
        return found


def acknowledged_survives(where: str, kills: int, cluster: Cluster | None) -> None:
    draw = random.Random(kills)
    explorer, over = Explorer(where), threading.Event()
    clients = [Client(explorer.port, number, over) for number in range(CLIENTS)]
    try:
        for client in clients:
            client.start()
        for number in range(kills):
            time.sleep(draw.uniform(0.2, 1.0))
            if cluster and number % 2:
                cluster.stop("immediate")
                cluster.start()
                continue
            explorer.kill()
            explorer.start()
        time.sleep(1.0)
    finally:
        over.set()
        for client in clients:
            client.join(60)
        explorer.kill()
    store = Store.open(where)
    found = list(store.all())
    store.close()
    by_id = {trace.id: trace for trace in found}
    assert max(Counter(trace.id for trace in found).values()) == 1
    replies = [name for client in clients for name in client.replies]
    assert len(replies) >= 4 * CLIENTS and not [name for name in replies if name not in by_id]
    for client in clients:
        assert {name: by_id[name].reward for name in client.ratings} == client.ratings
        assert {by_id[name].state for name in client.committed} <= {State.READY}
    assert sum(len(client.committed) for client in clients) > 0
    for trace in found:
        assert trace.parent is None or by_id[trace.parent].conversation == trace.conversation


def test_what_was_acknowledged_survives_kills_of_the_explorer_and_of_postgresql() -> None:
    cluster = Cluster()
    try:
        acknowledged_survives(cluster.database(), 4, cluster)
    finally:
        cluster.close()


@pytest.mark.slow
def test_it_survives_many_kills(tmp_path: Path) -> None:
    acknowledged_survives(str(tmp_path / "traces.db"), 10, None)
    cluster = Cluster()
    try:
        acknowledged_survives(cluster.database(), 10, cluster)
    finally:
        cluster.close()
