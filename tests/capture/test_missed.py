"""Calls that capture cannot see are told with host and line, or refused; what is explained is not told."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

import ajet
from ajet.capture.process.install import install
from ajet.capture.process.uncaptured import Missed, MissedCall
from ajet.interfaces.workflow import LoadedWorkflow
from ajet.plugins import load_plugins
from ajet.rollout.episode import Episode, EpisodeRunner, Plan
from ajet.testing import ScriptedEngine
from ajet.types import GenerateRequest, Generation, Task
from tests.patience import PATIENCE

Run = Callable[..., Episode]
HERE = Path(__file__).name


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """A server that answers every request of some foreign client; its address."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(60)
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(PATIENCE)


@pytest.fixture
def run(bench: Any, tokenizer: Any) -> Run:
    """One episode of a function."""
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))

    def go(workflow: Callable[..., Any], *, refuse: bool = False) -> Episode:
        plan = Plan("1.0/t/0", "0/0", Task("t"), 0, 0)
        plugins = load_plugins()

        async def episode() -> Episode:
            with install(b.capture, refuse_missed=refuse) as around:
                handles = {**plugins.handles, "as_base_url": around.gateway.as_base_url}
                flow = LoadedWorkflow("test", workflow, asyncio.iscoroutinefunction(workflow), 2)
                runner = EpisodeRunner(
                    workflow=flow,
                    answerer=b.answerer(),
                    capture=b.capture,
                    handles=handles,
                    timeout=20.0,
                    board=b.board,
                    hook=plugins.manager.hook,
                    missed=around.missed,
                )
                return await runner.run(plan, 0)

        return asyncio.run(episode())

    return go


def line_of(function: Callable[..., Any], text: str) -> str:
    """``test_missed.py:17``: the line of a function that holds a text."""
    lines = Path(__file__).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return f"{HERE}:{next(n for n in range(first, len(lines)) if text in lines[n - 1])}"


def only(episode: Episode) -> Missed:
    (found,) = episode.missed
    assert episode.counters["missed_connections"] == found.count
    return found


# ------------------------------------------------------------------ told


def test_an_agent_on_requests_is_told_with_its_line(run: Run, server: Any) -> None:
    requests = pytest.importorskip("requests")

    def agent(task: Any, tuner: Any) -> str:
        return str(requests.post(f"http://127.0.0.1:{server[1]}/models/x:answer", json={}).text)

    episode = run(agent)
    missed = only(episode)
    assert (missed.host, missed.port, missed.count) == ("127.0.0.1", server[1], 1)
    assert missed.location.endswith(line_of(agent, "requests.post"))
    assert episode.failure == "nothing_captured" and missed.location in episode.error


@pytest.mark.parametrize("fails", [False, True])
def test_an_agent_in_a_program_that_it_starts_is_told_of_the_gateway(run: Run, fails: bool) -> None:
    def agent(task: Any, tuner: Any) -> str:
        subprocess.run([sys.executable, "-S", "-c", "raise SystemExit(2)"], check=fails)
        return "done"

    episode = run(agent)
    assert episode.failed and "-S -c raise SystemExit(2) (" in episode.error
    assert line_of(agent, "subprocess.run") in episode.error and "the gateway's address" in episode.error
    if fails:
        assert episode.failure == "workflow:CalledProcessError"
    else:
        assert episode.failure == "nothing_captured:program" and "cmd:COMMAND" in episode.failed.remedy


def test_a_program_that_was_started_beside_a_captured_call_is_no_failure(run: Run) -> None:
    def agent(task: Any, tuner: Any) -> Any:
        subprocess.run([sys.executable, "-S", "-c", "pass"])
        client = openai.OpenAI(api_key="unset", base_url="http://127.0.0.1:1/v1")
        messages: Any = [{"role": "user", "content": "hi"}]
        return client.chat.completions.create(model="m", messages=messages).choices[0].message.content

    assert run(agent).failure is None


def test_an_agent_on_aiohttp_is_told_with_its_line(run: Run, server: Any) -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def agent(task: Any, tuner: Any) -> str:
        async with aiohttp.ClientSession() as client:
            response = await client.post(f"http://127.0.0.1:{server[1]}/models/x:answer", json={})
            return str(await response.text())

    missed = only(run(agent))
    assert (missed.host, missed.port) == ("127.0.0.1", server[1])
    assert missed.location.endswith(line_of(agent, "await client.post"))


@pytest.mark.parametrize("library", ["requests", "aiohttp", "urllib"])
def test_a_name_that_is_looked_up_is_told_as_it_was_said(run: Run, library: str) -> None:
    """By the lookup, which may well fail: nothing need be reached."""
    url = "http://llm.invalid:8443/models/x:answer"
    if library != "urllib":
        module = pytest.importorskip(library)

    def with_requests(task: Any, tuner: Any) -> None:
        with pytest.raises(module.ConnectionError):
            module.post(url, json={})

    def with_urllib(task: Any, tuner: Any) -> None:
        import urllib.request

        with pytest.raises(OSError):
            urllib.request.urlopen(url, timeout=5)

    async def with_aiohttp(task: Any, tuner: Any) -> None:
        async with module.ClientSession() as client:
            with pytest.raises(module.ClientError):
                await client.post(url, json={})

    agent = {"requests": with_requests, "aiohttp": with_aiohttp, "urllib": with_urllib}[library]
    text = {"requests": "module.post", "aiohttp": "await client.post", "urllib": "urlopen"}[library]
    missed = only(run(agent))
    assert (missed.host, missed.port) == ("llm.invalid", 8443)
    assert missed.location.endswith(line_of(agent, text))


def test_many_connections_of_one_line_are_one_entry(run: Run, server: Any) -> None:
    def agent(task: Any, tuner: Any) -> None:
        for _ in range(5):
            socket.create_connection(server).close()

    assert only(run(agent)).count == 5


def test_a_sync_tool_in_a_pool_is_told_with_the_line_that_waits_for_it(run: Run, server: Any) -> None:
    async def agent(task: Any, tuner: Any) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: socket.create_connection(server).close())

    assert only(run(agent)).location.endswith(line_of(agent, "run_in_executor"))


def test_a_workflow_that_does_not_wait_yet_is_told_with_the_line_where_it_stands(
    run: Run, server: Any
) -> None:
    """As with aiohttp's eager tasks, which look a name up before the workflow waits for them."""

    async def agent(task: Any, tuner: Any) -> None:
        connect = functools.partial(
            asyncio.get_running_loop().run_in_executor, None, socket.create_connection
        )
        connection, _ = connect(server), time.sleep(0.2)
        (await connection).close()

    assert only(run(agent)).location.endswith(line_of(agent, "time.sleep"))


def test_a_wire_that_capture_does_not_know_is_told_too(run: Run, server: Any) -> None:
    async def agent(task: Any, tuner: Any) -> None:
        async with httpx.AsyncClient() as client:
            await client.post(f"http://127.0.0.1:{server[1]}/models/x:answer", json={})

    assert only(run(agent)).location.endswith(line_of(agent, "await client.post"))


# ------------------------------------------------------------------ not told


def test_what_is_explained_is_not_told(run: Run, server: Any) -> None:
    async def agent(task: Any, tuner: Any) -> str:
        client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k")
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        with ajet.passthrough():
            socket.create_connection(server).close()
            await asyncio.to_thread(lambda: socket.create_connection(server).close())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.connect(("127.0.0.1", 9))  # says which interface would be used; sends nothing
        listening = await asyncio.start_server(lambda r, w: None, "localhost", 0)
        listening.close()
        return answer.choices[0].message.content or ""

    episode = run(agent)
    assert (episode.failure, episode.missed) == (None, ())


def test_the_gateway_explains_a_client_that_capture_cannot_see(run: Run) -> None:
    async def agent(task: Any, tuner: Any) -> None:
        url = urlsplit(tuner.as_base_url(agent="foreign").keyed_url)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]})
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        head = f"POST {url.path}/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        assert b"200 OK" in await reader.readline()
        writer.close()

    episode = run(agent, refuse=True)
    assert (episode.failure, episode.missed) == (None, ())
    assert [e.agent for e in episode.record.exchanges] == ["foreign"]


def test_outside_episodes_nothing_is_told(bench: Any, tokenizer: Any, server: Any) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))
    with install(b.capture, refuse_missed=True) as around:
        socket.create_connection(server).close()
    assert around.missed_line() == ""


def test_a_frozen_model_is_asked_by_the_engines_thread_and_explained(
    bench: Any, tokenizer: Any, server: Any
) -> None:
    from ajet.capture.targets import Target

    class Hosted:
        async def complete(self, messages: Any, tools: Any, sampling: Any) -> Any:
            async with httpx.AsyncClient() as client:
                text = (await client.get(f"http://127.0.0.1:{server[1]}/")).text
            return {"role": "assistant", "content": text}

    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    with (
        install(b.capture, refuse_missed=True),
        b.session(targets=(Target("critic", ("*",), Hosted(), trained=False),)),
    ):
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert answer.choices[0].message.content == "hi"


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize("address", ["127.0.0.1", "llm.invalid"])
def test_refused_connections_raise_in_the_agents_call_and_reach_nothing(
    run: Run, server: Any, address: str
) -> None:
    raised: list[BaseException] = []

    def agent(task: Any, tuner: Any) -> None:
        try:
            socket.create_connection((address, server[1]))
        except MissedCall as error:
            raised.append(error)
            raise

    episode = run(agent, refuse=True)
    assert episode.failure == "workflow:MissedCall" and episode.missed
    said = str(raised[0])
    assert f"{address}:{server[1]} (" in said and line_of(agent, "socket.create_connection") in said
    assert "passthrough" in said and "as_base_url" in said and "\n" not in said


def test_refused_in_requests_and_aiohttp_alike(run: Run, server: Any) -> None:
    requests = pytest.importorskip("requests")
    aiohttp = pytest.importorskip("aiohttp")
    url = f"http://127.0.0.1:{server[1]}/"

    def with_requests(task: Any, tuner: Any) -> None:
        requests.get(url)

    async def with_aiohttp(task: Any, tuner: Any) -> None:
        async with aiohttp.ClientSession() as client:
            await client.get(url)

    for agent in (with_requests, with_aiohttp):
        assert run(agent, refuse=True).failure == "workflow:MissedCall"


def test_connections_of_an_engine_are_its_own(bench: Any, tokenizer: Any) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    class Remote(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            socket.create_connection(listening.getsockname()).close()
            return await super().generate(request)

    b = bench(Remote(tokenizer, lambda r, p: "ok"))
    with install(b.capture, refuse_missed=True) as around, b.session() as session:

        async def begin() -> None:
            around.missed.begin(session.key)

        asyncio.run(begin())
        client = openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1", max_retries=0)
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        missed = around.missed.end(session.key)
    listening.close()
    assert answer.choices[0].message.content == "ok"
    assert not missed
