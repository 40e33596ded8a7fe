"""HTTP clients other than httpx are answered in this process as httpx is, with objects and errors of their own."""

from __future__ import annotations

import asyncio
import gc
import http.client
import io
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

import ajet
from ajet.capture.process.fork import ChildReports
from ajet.capture.process.install import install
from ajet.capture.refusals import Refusal, Refusals
from ajet.testing import ScriptedEngine
from tests.engines import Waiting, with_patience
from tests.patience import PATIENCE
from tests.tiers import thinned

aiohttp = pytest.importorskip("aiohttp")
requests = pytest.importorskip("requests")
urllib3 = pytest.importorskip("urllib3")

CLOSED = "https://127.0.0.1:9/v1"  # the discard port: a request that gets out fails at once
CHAT = f"{CLOSED}/chat/completions"
QUESTION: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = QUESTION | {"stream": True}


@dataclass
class Asked:
    """One request, and how long its client waits for the answer."""

    body: Any = field(default_factory=lambda: dict(QUESTION))
    url: str = CHAT
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def all_headers(self) -> dict[str, str]:
        return {"content-type": "application/json", **self.headers}

    @property
    def data(self) -> bytes:
        return json.dumps(self.body).encode()


class Client:
    """A client as a user has it: a status and a body, or the lines of a body as they come."""

    timeout: tuple[type[BaseException], ...] = (TimeoutError,)
    unreachable: tuple[type[BaseException], ...] = (OSError,)

    def ask(self, asked: Asked) -> tuple[int, bytes]:
        with self.lines(asked) as (status, lines):
            return status, b"".join(lines)

    @contextmanager
    def lines(self, asked: Asked) -> Iterator[tuple[int, Iterator[bytes]]]:
        raise NotImplementedError


class Requests(Client):
    timeout = (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError)
    unreachable = (requests.exceptions.ConnectionError,)

    @contextmanager
    def lines(self, asked: Asked) -> Iterator[tuple[int, Iterator[bytes]]]:
        with (
            requests.Session() as session,
            session.post(
                asked.url, json=asked.body, headers=asked.headers, timeout=asked.seconds, stream=True
            ) as response,
        ):
            yield response.status_code, (line + b"\n" for line in response.iter_lines(chunk_size=1))


class Urllib3(Client):
    timeout = (urllib3.exceptions.ReadTimeoutError,)
    unreachable = (urllib3.exceptions.HTTPError,)

    @contextmanager
    def lines(self, asked: Asked) -> Iterator[tuple[int, Iterator[bytes]]]:
        response = urllib3.PoolManager(retries=False).request(
            "POST",
            asked.url,
            body=asked.data,
            headers=asked.all_headers,
            timeout=asked.seconds,
            preload_content=False,
        )
        with closing(response):
            yield response.status, iter(response)


class HttpClient(Client):
    @contextmanager
    def lines(self, asked: Asked) -> Iterator[tuple[int, Iterator[bytes]]]:
        url = urlsplit(asked.url)
        cls = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        with closing(cls(url.netloc, timeout=asked.seconds)) as connection:
            connection.request("POST", url.path, asked.data, asked.all_headers)
            with connection.getresponse() as response:
                yield response.status, iter(response)


class Urllib(Client):
    @contextmanager
    def lines(self, asked: Asked) -> Iterator[tuple[int, Iterator[bytes]]]:
        request = urllib.request.Request(asked.url, asked.data, asked.all_headers)
        try:
            response = urllib.request.urlopen(request, timeout=asked.seconds)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            yield response.status, iter(response)


class Aiohttp(Client):
    unreachable = (aiohttp.ClientError,)

    @contextmanager
    def lines(self, asked: Asked) -> Iterator[tuple[int, Iterator[bytes]]]:
        with asyncio.Runner() as runner:
            session = runner.run(self._session(asked))
            try:
                post = session.post(asked.url, json=asked.body, headers=asked.headers)
                response = runner.run(self._entered(post))
                yield response.status, iter(lambda: runner.run(response.content.readline()), b"")
                response.close()
            finally:
                runner.run(session.close())

    async def _session(self, asked: Asked) -> Any:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=asked.seconds))

    async def _entered(self, post: Any) -> Any:
        return await post


CLIENTS = {
    "requests": Requests(),
    "urllib3": Urllib3(),
    "http.client": HttpClient(),
    "urllib": Urllib(),
    "aiohttp": Aiohttp(),
}
clients = pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))


def content(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


def deltas(lines: Iterator[bytes]) -> Iterator[str]:
    """The texts of a streamed answer."""
    for line in lines:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])["choices"][0]["delta"].get("content") or ""


@pytest.fixture
def answering(bench: Any, tokenizer: Any) -> Any:
    return bench(ScriptedEngine(tokenizer, lambda r, p: "one two three"))


# ------------------------------------------------------------------ answered


@clients
def test_a_call_is_answered_in_process_and_recorded(client: Client, answering: Any) -> None:
    import httpx

    with answering.session() as plain:
        httpx.post(CHAT, json=QUESTION)
    with answering.session() as session:
        status, body = client.ask(Asked())
    assert (status, content(body)) == (200, "one two three")
    (ours,), (expected,) = session.record.calls, plain.record.calls
    assert ours.end.ids().tolist() == expected.end.ids().tolist() and ours.trained


@clients
def test_a_streamed_answer_comes_piece_by_piece(client: Client, bench: Any, tokenizer: Any) -> None:
    """The engine ends only when the client has seen a piece."""
    seen: list[str] = []
    engine = Waiting(tokenizer, lambda r, p: "one two three", until=lambda: any(seen))
    with bench(engine).session() as session, client.lines(Asked(STREAM)) as (status, lines):
        for text in deltas(lines):
            seen.append(text)
    assert status == 200 and "".join(seen) == "one two three"
    assert len([text for text in seen if text]) > 1
    assert len(session.record.calls) == 1


@clients
def test_a_streamed_answer_that_is_closed_half_way_stops_its_generation(
    client: Client, bench: Any, tokenizer: Any
) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: "one two three", seconds_between=600)
    with bench(engine).session() as session:
        with client.lines(Asked(STREAM)) as (_, lines):
            next(deltas(lines))
        gc.collect()
        with_patience(lambda seconds: threading.Event().wait(seconds), lambda: engine.cancelled)
    assert not session.record.calls


@clients
def test_the_clients_timeout_is_its_own_and_stops_the_generation(
    client: Client, bench: Any, tokenizer: Any
) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: "late", seconds=600)

    def ask(seconds: float) -> None:
        with pytest.raises(client.timeout):
            client.ask(Asked(seconds=seconds))

    with bench(engine).session() as session:
        with_patience(ask, lambda: engine.requests)
        with_patience(lambda s: threading.Event().wait(s), lambda: engine.cancelled == len(engine.requests))
    assert not session.record.calls


@clients
def test_the_timeout_between_pieces_is_the_clients_own(client: Client, bench: Any, tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: "one two three", seconds_between=600)

    def ask(seconds: float) -> None:
        with (
            pytest.raises(client.timeout),
            client.lines(Asked(STREAM, seconds=seconds)) as (_, lines),
        ):
            list(lines)

    with bench(engine).session():
        with_patience(ask, lambda: engine.requests)


@clients
def test_labels_and_the_header_name_the_agent(client: Client, answering: Any) -> None:
    with answering.session() as session:
        with ajet.label(agent="labelled"):
            client.ask(Asked())
        client.ask(Asked(headers={"x-ajet-agent": "in_the_header"}))
        client.ask(Asked(url=CHAT.replace("/v1", "/a/in_the_path/v1")))
    assert [e.agent for e in session.record.exchanges] == ["labelled", "in_the_header", "in_the_path"]


@clients
def test_the_key_identifies_the_episode_in_a_thread_without_its_context(
    client: Client, answering: Any
) -> None:
    with answering.session() as session:
        asked = Asked(headers={"Authorization": f"Bearer {session.key}"})
        thread = threading.Thread(target=client.ask, args=(asked,))
        thread.start()
        thread.join(PATIENCE)
    assert len(session.record.calls) == 1
    status, body = client.ask(asked)
    assert status == 401 and b"no running episode" in body


def test_the_other_wires_are_answered_too(answering: Any) -> None:
    with answering.session() as session:
        messages = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        said = requests.post(f"{CLOSED}/messages", json=messages).json()
        reply = requests.post(f"{CLOSED}/responses", json={"model": "m", "input": "hi"}).json()
    assert said["content"][0]["text"] == "one two three"
    assert reply["output"][0]["content"][0]["text"] == "one two three"
    assert len(session.record.calls) == 2


def test_episodes_that_share_an_aiohttp_session_never_mix(bench: Any, tokenizer: Any) -> None:
    def answer(request: Any, prompt: str) -> str:
        return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]

    shared: list[Any] = []

    async def agent(task: Any) -> str:
        shared.append(shared[0] if shared else aiohttp.ClientSession())
        asked = {"model": "m", "messages": [{"role": "user", "content": task.id}]}
        async with shared[0].post(CHAT, json=asked) as response:
            answered = await response.json()
        if len(shared) == 16:
            await shared[0].close()
        return str(answered["choices"][0]["message"]["content"])

    episodes = bench(ScriptedEngine(tokenizer, answer, seconds=0.01)).run(agent, tasks=16, concurrency=16)
    assert [e.output.response for e in episodes] == [e.plan.task.id for e in episodes]
    assert all(len(e.record.calls) == 1 for e in episodes)


# ------------------------------------------------------------------ bodies


@pytest.mark.parametrize(
    "body",
    [
        lambda: Asked().data,
        lambda: Asked().data.decode(),
        lambda: io.BytesIO(Asked().data),
        lambda: iter([Asked().data[:9], Asked().data[9:]]),
    ],
    ids=["bytes", "text", "file", "parts"],
)
def test_a_body_may_be_whatever_the_client_takes(body: Callable[[], Any], answering: Any) -> None:
    async def by_aiohttp(data: Any) -> bytes:
        async with aiohttp.ClientSession() as session, session.post(CHAT, data=data) as response:
            return bytes(await response.read())

    async def parts() -> Any:
        for part in body():
            yield part

    with answering.session() as session:
        assert content(requests.post(CHAT, data=body()).content) == "one two three"
        connection = http.client.HTTPSConnection("127.0.0.1:9")
        connection.request("POST", "/v1/chat/completions", body(), encode_chunked=True)
        assert content(connection.getresponse().read()) == "one two three"
        is_iterator = isinstance(body(), Iterator) and not hasattr(body(), "read")
        assert content(asyncio.run(by_aiohttp(parts() if is_iterator else body()))) == "one two three"
    assert len(session.record.calls) == 3


# ------------------------------------------------------------------ not answered


@clients
def test_a_call_outside_an_episode_is_refused_in_strict_mode(client: Client, answering: Any) -> None:
    status, body = client.ask(Asked())
    assert status == 400 and b"outside any episode" in body
    assert answering.capture.counters["stray_calls"] == 1


@clients
def test_passthrough_reaches_the_real_endpoint(client: Client, answering: Any) -> None:
    with answering.session() as session, ajet.passthrough(), pytest.raises(client.unreachable):
        client.ask(Asked())
    assert not session.record.exchanges and not session.refusals


@clients
def test_what_is_no_llm_call_reaches_its_server(client: Client, answering: Any, page: str) -> None:
    with answering.session() as session:
        assert client.ask(Asked(url=f"{page}/search")) == (200, b"hi\n")
    assert not session.record.exchanges


@clients
def test_after_capture_the_client_is_as_it_was(client: Client, bench: Any, tokenizer: Any) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))
    b.capture.__exit__(None, None, None)
    with pytest.raises(client.unreachable):
        client.ask(Asked())
    b.capture.__enter__()


@clients
def test_headers_beyond_ascii_go_to_servers_and_to_capture(client: Client, answering: Any, page: str) -> None:
    headers = {"x-name": "Jos\xe9"}
    with answering.session() as session:
        assert client.ask(Asked(url=f"{page}/search", headers=headers)) == (200, b"hi\n")
        assert client.ask(Asked(headers=headers))[0] == 200
    assert len(session.record.calls) == 1


@clients
@pytest.mark.parametrize(
    "address", ["http://[::1]:9", f"http://127.0.0.1:9/{'a' * 70_000}"], ids=["v6", "long"]
)
def test_no_address_leads_around_capture(client: Client, address: str, answering: Any) -> None:
    status, body = client.ask(Asked(url=f"{address}/v1/chat/completions"))
    assert status == 400 and b"outside any episode" in body
    with answering.session() as session:
        assert client.ask(Asked(url=f"{address}/v1/chat/completions"))[0] == 200
    assert len(session.record.calls) == 1


def test_urllib3_1_which_names_fewer_parameters_is_answered(
    monkeypatch: pytest.MonkeyPatch, bench: Any, tokenizer: Any
) -> None:
    def urlopen(
        self: Any,
        method: str,
        url: str,
        body: Any = None,
        headers: Any = None,
        retries: Any = None,
        timeout: Any = None,
        chunked: bool = False,
        **response_kw: Any,
    ) -> None:
        raise AssertionError("it was sent")

    monkeypatch.setattr(urllib3.connectionpool.HTTPConnectionPool, "urlopen", urlopen)
    with bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session():
        pool = urllib3.HTTPSConnectionPool("127.0.0.1", 9)
        whole = pool.urlopen("POST", "/v1/chat/completions", Asked().data)
        part = pool.urlopen("POST", "/v1/chat/completions", Asked().data, preload_content=False)
        assert content(whole.data) == "ok" and content(part.read()) == "ok"


def test_the_default_timeout_of_sockets_holds_for_http_client(
    bench: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: "late", seconds=600)

    def ask(seconds: float) -> None:
        monkeypatch.setattr(socket, "getdefaulttimeout", lambda: seconds)
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(CHAT, Asked().data)

    with bench(engine).session():
        with_patience(ask, lambda: engine.requests)


def test_aiohttp_that_waits_to_be_told_to_go_on_is_told(answering: Any) -> None:
    async def ask() -> bytes:
        timeout = aiohttp.ClientTimeout(total=60)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(CHAT, json=QUESTION, expect100=True) as response,
        ):
            return bytes(await response.read())

    with answering.session() as session:
        assert content(asyncio.run(ask())) == "one two three"
    assert len(session.record.calls) == 1


@pytest.fixture
def page() -> Iterator[str]:
    """The address of a server that answers each request with a line."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(60)
                received = b""
                while b"]}" not in received:
                    received += connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nhi\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield "http://{}:{}".format(*listening.getsockname())
        thread.join(PATIENCE)


# ------------------------------------------------------------------ forked children, imports


@pytest.mark.whole
@pytest.mark.parametrize("gateway", [True, False], ids=["with a gateway", "without"])
@clients
@thinned
def test_a_forked_child_is_answered_through_the_gateway(
    client: Client, gateway: bool, answering: Any
) -> None:
    with install(answering.capture, gateway=gateway) as around:
        with answering.session() as session:
            status, body = in_a_fork(client, Asked())
            streamed, lines = in_a_fork(client, Asked(STREAM))
        refused = around.refused()
    if gateway:
        assert (status, content(body)) == (200, "one two three")
        assert streamed == 200 and "".join(deltas(iter(lines.splitlines()))) == "one two three"
        assert len(session.record.calls) == 2 and not refused
    else:
        assert (status, streamed) == (400, 400), body
        assert b"rollout.gateway: true" in body
        assert sum(r.count for r in refused) == 2 and not session.record.calls


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/chat"])
@clients
def test_a_forked_child_is_refused_what_its_parent_is_refused(
    client: Client, path: str, answering: Any
) -> None:
    with install(answering.capture, gateway=True) as around:
        with answering.session():
            asked = Asked(url=f"https://127.0.0.1:9{path}")
            expected, answered = client.ask(asked), in_a_fork(client, asked)
        (refused,) = around.refused()
    assert expected[0] == 400 and answered == expected
    assert refused.count == 2 and refused.code == "unsupported_wire"


def test_what_forked_children_tell_comes_whole_whatever_its_size() -> None:
    refusals = Refusals()
    reports = ChildReports(refusals, lambda key: None)
    for _ in range(40):
        reports.tell(Refusal("code", "message", "http://host/" + "x" * 5_000), None)
    reports.tell(Refusal("code", "é" * 5_000), None)
    asyncio.run(reports.close())
    first, second = refusals.found()
    assert first.count == 40 and len(first.where) <= 1_000
    assert second.count == 1 and len(second.message) <= 1_000


def in_a_fork(client: Client, asked: Asked) -> tuple[int, bytes]:
    """What a client is answered in a forked child."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            status, body = client.ask(asked)
            os.write(writable, json.dumps([status, body.decode()]).encode())
        except BaseException as error:
            os.write(writable, json.dumps([0, repr(error)]).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable, "rb") as pipe:
        status, body = json.load(pipe)
    os.waitpid(child, 0)
    return status, body.encode()


@pytest.mark.whole
def test_a_library_is_patched_when_the_program_imports_it_and_not_imported_before() -> None:
    program = (
        "import sys\n"
        "from ajet.capture.hook import Capture\n"
        "from ajet.capture.portal import Portal\n"
        "with Capture(Portal()):\n"
        "    print([name for name in ('aiohttp', 'requests', 'urllib3') if name in sys.modules])\n"
        "    import requests\n"
        f"    print(requests.post({CHAT!r}, json={{}}).status_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "400"]
