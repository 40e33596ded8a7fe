"""Clients chat, rate and commit while explorer, trainer and database are killed: all that was acknowledged is in the store, once,
and is trained once."""

from __future__ import annotations

import os
import random
import signal
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
import yaml

from ajet.rollout.checkpoints import checkpoints, fault, step_of
from ajet.rollout.recorder import live_lines
from ajet_online.schema import TraceState
from ajet_online.store import TraceStore
from ajet_online.trace import Trace
from ajet_online.versions import Version, Versions
from tests.patience import PATIENCE
from tests.plugins.online.conftest import Cluster
from tests.tiny import save_tiny_model
from tests.warm import Warm

KEY = "crash-key-0123456789"
CLIENTS = 4


class Explorer:
    """A process that is killed and started again on the same port."""

    def __init__(self, where: str, model: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._where, self._model = where, model
        self.start()

    def start(self) -> None:
        script = Path(__file__).with_name("explorer_driver.py")
        command = [sys.executable, str(script), self._where, str(self.port), KEY, str(self._model)]
        root = Path(__file__).parents[3]
        self._process = subprocess.Popen(command, cwd=root, env=_environment(root))
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/health")
                return
            except httpx.HTTPError:
                assert self._process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)


class Trainer:
    """`ajet online train`, which is killed and started again."""

    def __init__(self, where: str, model: Path, folder: Path) -> None:
        job = {
            "model": str(model),
            # The explorer serves version 0 all the time.
            "train": {"batch_size": 4, "learning_rate": 1e-4, "max_staleness": 1_000_000},
            "backbone": {"local": {"threads": 1}},
            "plugins": {
                "online": {
                    "store": where,
                    "folder": str(folder / "online"),
                    "poll": "50ms",
                    "rollback": {"enabled": False},  # otherwise an update waits for many ratings
                }
            },
        }
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        self.folder = folder
        self.start()

    def start(self) -> None:
        self._process = Warm("online", "train", "job.yaml", cwd=self.folder)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE)

    def restart(self) -> None:
        self.kill()
        self.start()

    def end(self) -> str:
        """Let it finish its update, and recover from the kill before; what it has said."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
        output, _ = self._process.communicate(timeout=PATIENCE)
        return str(output)


def _environment(root: Path) -> dict[str, str]:
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
                "reward": 1 / turn,
                "task_id": f"{self._number}",
                "run_id": turn,
            }
            if self._post("/feedback", task):
                self.ratings[name] = 1 / turn
                if turn % 3 == 0 and self._post("/commit", {"task_id": f"{self._number}", "run_id": turn}):
                    self.committed.add(name)

    def _post(self, path: str, body: Any) -> dict[str, Any] | None:
        """The answer; None without one, after a moment."""
        try:
            answer = httpx.post(
                self._url + path, json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=PATIENCE
            )
        except httpx.HTTPError:
            time.sleep(0.1)
            return None
        if answer.status_code != 200:
            time.sleep(0.1)
            return None
        found: dict[str, Any] = answer.json()
        return found


def acknowledged_survives(where: str, kills: int, cluster: Cluster | None, model: Path, folder: Path) -> None:
    draw = random.Random(kills)
    explorer, over = Explorer(where, model), threading.Event()
    trainer = Trainer(where, model, folder)
    clients = [Client(explorer.port, number, over) for number in range(CLIENTS)]
    try:
        for client in clients:
            client.start()
        for number in range(kills):
            time.sleep(draw.uniform(0.2, 1.5))
            if number % 3 == 0:
                trainer.restart()
            elif number % 3 == 1 and cluster:
                cluster.stop("immediate")
                cluster.start()
            else:
                explorer.kill()
                explorer.start()
        _until_trained_again(where, 3)
    finally:
        over.set()
        for client in clients:
            client.join(PATIENCE)
        explorer.kill()
        said = trainer.end()
    store = TraceStore.open(where)
    found, known = list(store.all()), Versions(store).all()
    store.close()
    by_id = {trace.id: trace for trace in found}
    assert max(Counter(trace.id for trace in found).values()) == 1
    replies = [name for client in clients for name in client.replies]
    assert len(replies) >= 4 * CLIENTS and not [name for name in replies if name not in by_id]
    for client in clients:
        assert {name: by_id[name].reward for name in client.ratings} == client.ratings
        committed = {by_id[name].state for name in client.committed}
        assert committed <= {TraceState.READY, TraceState.LEASED, TraceState.TRAINED, TraceState.DISCARDED}
    assert sum(len(client.committed) for client in clients) > 0
    for trace in found:
        assert trace.parent is None or by_id[trace.parent].conversation == trace.conversation
    trained_once(found, known, folder, said)


def trained_once(found: list[Trace], known: list[Version], folder: Path, said: str) -> None:
    """Each version has learned from the traces that are marked with it, from no others, and every checkpoint is a version's."""
    (run_dir,) = (path for path in (folder / "online").iterdir() if path.is_dir())
    journal = [line for line in live_lines(run_dir / "episodes.jsonl") if line["phase"] == "train"]
    numbers = {step_of(Path(v.path)): v.number for v in known if v.number and fault(Path(v.path)) is None}
    assert numbers, said
    learned: dict[int, Counter[str]] = {}
    for line in journal:
        learned.setdefault(line["step"], Counter())[line["task"]] += 1
    for step, number in numbers.items():
        marked = Counter(
            f"{t.key}/{t.task_id}/{t.run_id}/{t.reward}"
            for t in found
            if t.state == TraceState.TRAINED and t.step == number
        )
        assert learned[step] == marked
    assert {step_of(path) for path in checkpoints(run_dir)} <= set(numbers)
    assert max(sum(learned.values(), Counter()).values()) == 1
    assert {t.step for t in found if t.state == TraceState.TRAINED} <= {v.number for v in known}


def _until_trained_again(where: str, least: int) -> None:
    """Wait for the next version, which shows that the last trainer has recovered, and for more than ``least``."""
    store = TraceStore.open(where)
    deadline = time.monotonic() + PATIENCE
    known = max(least, len(Versions(store).all()))
    while len(Versions(store).all()) <= known:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    store.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), tokenizer)


@pytest.mark.whole
def test_what_was_acknowledged_survives_kills_of_explorer_trainer_and_postgresql(
    model: Path, tmp_path: Path
) -> None:
    cluster = Cluster()
    try:
        acknowledged_survives(cluster.database(), 4, cluster, model, tmp_path)
    finally:
        cluster.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_it_survives_many_kills(model: Path, tmp_path: Path, kind: str) -> None:
    if kind == "sqlite":
        acknowledged_survives(str(tmp_path / "traces.db"), 20, None, model, tmp_path)
        return
    cluster = Cluster()
    try:
        acknowledged_survives(cluster.database(), 20, cluster, model, tmp_path)
    finally:
        cluster.close()
