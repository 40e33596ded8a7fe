"""What an environment service takes from strangers: bounded requests, instances and names, and its own end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from ajet.environments import serving
from ajet_environments.service import server as service
from tests.patience import PATIENCE

from .conftest import Counting, health, settled

ABOUT = {"env_type": "counting", "task_id": "1"}


def post(url: str, path: str, body: Any, **headers: str) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return httpx2.post(f"{url}{path}", content=content, headers=headers, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 100_000, 400),
        (b"[" * 90_000 + b"]" * 90_000, 400),
        (b'{"a":' + b"[]," * 200_000, 413),
        (b"[1]", 400),
        (b"\xff", 400),
    ],
    ids=["open brackets", "brackets", "many lists", "a list", "no text"],
)
def test_a_body_that_cannot_be_read_is_the_clients_fault(url: str, body: bytes, status: int) -> None:
    response = post(url, "/create", body)
    assert response.status_code == status and response.json()["success"] is False


def test_instances_are_bounded_and_a_release_makes_room() -> None:
    with serving(Counting, most_instances=2) as url:
        for name in "ab":
            assert post(url, "/create", {**ABOUT, "instance_id": name}).status_code == 200
        refused = post(url, "/create", {**ABOUT, "instance_id": "c"})
        assert refused.status_code == 429 and "most_instances" in refused.json()["error"]
        assert health(url)["open"] == 2
        post(url, "/release", {"instance_id": "a"})
        assert post(url, "/create", {**ABOUT, "instance_id": "c"}).status_code == 200


HANGING = {"env_type": "hanging", "task_id": "1", "instance_id": "a"}
STEP = {**HANGING, "messages": [{"role": "assistant", "content": "go"}]}


@pytest.fixture
def hanging() -> Iterator[tuple[str, threading.Event, threading.Event]]:
    """A service with its only instance, `HANGING`, whose steps set the first event and last until the second."""
    going, go_on = threading.Event(), threading.Event()

    class Hanging(Counting):
        env_type = "hanging"

        def step(self, message: Any) -> Any:
            going.set()
            go_on.wait(PATIENCE)
            return super().step(message)

    with serving(Hanging, most_instances=1) as url:
        post(url, "/create", HANGING)
        yield url, going, go_on
        go_on.set()


def test_an_instance_whose_thread_does_not_end_keeps_its_place(
    hanging: tuple[str, threading.Event, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, going, go_on = hanging
    monkeypatch.setattr(service, "_CLOSE_SECONDS", 0.1)
    stepping = threading.Thread(target=post, args=(url, "/step", STEP))
    stepping.start()
    assert going.wait(PATIENCE)
    assert post(url, "/release", HANGING).json()["data"] is True
    assert health(url)["open"] == 0
    again = {**HANGING, "instance_id": "b"}
    assert post(url, "/create", again).status_code == 429
    go_on.set()
    stepping.join(PATIENCE)
    while (created := post(url, "/create", again)).status_code == 429:
        pass
    assert created.status_code == 200


def test_calls_that_wait_for_one_instance_are_bounded(
    hanging: tuple[str, threading.Event, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _, go_on = hanging
    monkeypatch.setattr(service, "_MOST_WAITING", 3)
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(post(url, "/step", STEP).status_code)
        if statuses.count(429) == 4:
            go_on.set()

    threads = [threading.Thread(target=ask) for _ in range(8)]  # one runs, three wait
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert statuses.count(429) == 4 and statuses.count(200) == 4


def test_calls_that_come_in_one_turn_of_the_loop_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MOST_WAITING", 3)

    async def ask() -> list[Any]:
        instance = service._Instance(lambda: Counting("9", {}), set())
        calls = (instance.call("info", {}) for _ in range(8))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await instance.close()
        return answers

    refused = [answer for answer in asyncio.run(ask()) if isinstance(answer, Exception)]
    assert [str(answer) for answer in refused] == ["3 calls of the instance are waiting already"] * 4


def test_names_are_short_and_few_of_unknown_ones_are_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/create", "/release", "/step"):
        assert post(url, path, {**ABOUT, "instance_id": "x" * 201}).status_code == 400
    monkeypatch.setattr(service, "_MOST_REMEMBERED", 3)
    for name in "abcde":
        post(url, "/release", {"instance_id": name})
    statuses = [post(url, "/create", {**ABOUT, "instance_id": name}).status_code for name in "abcde"]
    assert statuses == [200, 200, 409, 409, 409]
    settled(url, 2, 0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": ""}, 415),
        ({"content_type": "application/json; charset=utf-8"}, 200),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "attacker.example"}, 403),
        ({"host": "attacker.example", "origin": "http://attacker.example"}, 403),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:80", "origin": "http://[::1]:80"}, 200),
    ],
    ids=str,
)
def test_a_web_page_of_elsewhere_cannot_have_its_visitor_ask(
    url: str, headers: dict[str, str], status: int
) -> None:
    response = post(url, "/create", ABOUT, **headers)
    assert response.status_code == status and health(url)["created"] == (status == 200)


SERVICE = """
import time
from ajet.capture.gateway import stopping
from ajet.environments import ServedEnvironment, serve

class Hanging(ServedEnvironment):
    env_type = "hanging"
    def start(self): return "go"
    def step(self, message): return "on"
    def evaluate(self): return 0
    async def close(self):
        time.sleep(1000)  # on the loop, of all places

stopping.SECONDS_TO_END = 0.5
serve(Hanging, port=0)
"""


@pytest.mark.whole
def test_sigterm_ends_a_service_whose_environments_do_not_close() -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=pipe, stderr=pipe, text=True)
    assert process.stdout
    url = process.stdout.readline().split()[-1]
    assert post(url, "/create", {"env_type": "hanging", "task_id": "1"}).status_code == 200
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM and "still busy" in errors
