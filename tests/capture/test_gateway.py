"""The gateway: capture behind a loopback socket, spoken to by SDKs, curl and raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import gzip
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import ajet
from ajet.capture.gateway.address import make_path, split_path
from ajet.capture.gateway.encodings import decoded
from ajet.capture.gateway.server import Gateway
from ajet.capture.process.garbage import rare_full_collections
from ajet.capture.process.install import install
from ajet.capture.session import Session
from ajet.interfaces.wire import Refused
from ajet.interfaces.workflow import EpisodeEndpoint
from ajet.testing import ScriptedEngine
from tests.engines import Meeting, Waiting, with_patience
from tests.patience import PATIENCE
from tests.properties import drawn, examples

USER: Any = [{"role": "user", "content": "hi"}]
ASK: dict[str, Any] = {"model": "m", "messages": USER}


class Served:
    """A bench with a gateway."""

    def __init__(self, bench: Any, gateway: Gateway) -> None:
        self.bench = bench
        self.gateway = gateway
        self.url = gateway.start()

    def post(
        self, path: str = "/v1/chat/completions", key: str | None = None, **options: Any
    ) -> httpx.Response:
        """A request over the socket."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with ajet.passthrough():  # or the hook would answer it
            body = {} if "content" in options else {"json": ASK}
            headers |= options.pop("headers", {})
            return httpx.post(f"{self.url}{path}", headers=headers, timeout=PATIENCE, **body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=PATIENCE, **options)

    def metric(self, name: str) -> float:
        """A value of /metrics."""
        lines = self.get("/metrics").text.splitlines()
        return next(
            (float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"ajet_gateway_{name}")), 0.0
        )


Serve = Callable[..., Served]


@pytest.fixture
def serve(bench: Any) -> Iterator[Serve]:
    """Make a bench whose gateway listens."""
    stack = contextlib.ExitStack()

    def make(engine: Any, **options: Any) -> Served:
        b = bench(engine)
        gateway = Gateway(b.portal, b.capture.session_of, b.capture.wires, **options)
        stack.callback(gateway.close)
        return Served(b, gateway)

    with stack:
        yield make


def ok(tokenizer: Any, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(tokenizer, lambda request, prompt: "ok", **options)


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


# ------------------------------------------------------------------ who asks


@pytest.mark.parametrize(
    "give",
    [
        lambda key: {"headers": {"authorization": f"Bearer {key}"}},
        lambda key: {"headers": {"authorization": f"bearer {key}"}},
        lambda key: {"headers": {"x-api-key": key}},
        lambda key: {"path": f"/k/{key}/v1/chat/completions"},
        lambda key: {"path": f"/k/{key}/any/prefix/chat/completions/"},
        lambda key: {"path": f"/a/solver/k/{key}/v1/chat/completions?api-version=3"},
    ],
    ids=["bearer", "in small letters", "x-api-key", "in the path", "below a prefix", "with an agent"],
)
def test_the_key_opens_its_episode_wherever_it_stands(serve, tokenizer, give) -> None:
    served = serve(ok(tokenizer))
    with served.bench.session("one") as one, served.bench.session("other") as other:
        response = served.post(**give(one.key))
    assert response.status_code == 200 and response.json()["choices"][0]["message"]["content"] == "ok"
    assert (len(one.record.calls), len(other.record.calls)) == (1, 0)


def test_without_a_key_with_a_wrong_one_and_after_the_end_nothing_is_opened(serve, tokenizer) -> None:
    served = serve(ok(tokenizer))
    with served.bench.session() as session:
        responses = [served.post(), served.post(key="ajet-guessed"), served.post(key=session.key[:-1])]
        # A wrong key in the path is not mended by a right one in a header.
        responses.append(served.post(path="/k/wrong/v1/chat/completions", key=session.key))
    responses.append(served.post(key=session.key))
    assert [r.status_code for r in responses] == [401] * 5
    assert all(r.json()["error"]["code"] == "invalid_api_key" for r in responses)
    assert "the request has no key" in responses[0].text and "its episode has ended" in responses[-1].text
    assert (
        "Send the key that `ajet serve` has printed, or in an episode that of tuner.as_base_url()"
        in responses[0].text
    )
    assert responses[0].headers["www-authenticate"] == "Bearer"
    assert not session.record.calls and served.metric('refused_total{code="invalid_api_key"}') == 5


def test_agent_and_target_come_from_the_path_or_from_headers(serve, tokenizer) -> None:
    served = serve(ok(tokenizer))
    with served.bench.session() as session:
        served.post(path="/a/na%C3%AFve%20%2F%20solver/v1/chat/completions", key=session.key)
        served.post(key=session.key, headers={"x-ajet-agent": "critic"})
        refused = served.post(path="/t/nobody/v1/chat/completions", key=session.key)
    assert [e.agent for e in session.record.exchanges] == ["naïve / solver", "critic"]
    assert refused.status_code == 400 and "nobody" in refused.text


@pytest.mark.whole
@examples(100)
@given(st.lists(st.one_of(st.none(), st.text(min_size=1)), min_size=3, max_size=3))
def test_paths_say_whatever_was_put_into_them(parts: list[str | None]) -> None:
    key, agent, target = (p if p is None or p.isprintable() else None for p in parts)
    path = make_path(key, agent, target)
    assert path.isascii() and split_path(f"{path}/v1/chat/completions") == (
        key,
        agent,
        target,
        "/v1/chat/completions",
    )


def test_of_a_path_of_names_only_the_first_are_cut_off() -> None:
    rest = "/k/z" * 8_000
    assert split_path("/k/a/a/b/t/c" + "/k/d" * 3 + rest) == ("d", "b", "c", rest)


def test_an_endpoint_is_an_address_and_a_key_and_variables_for_a_subprocess(
    serve, tokenizer, monkeypatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet")
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    served = serve(ok(tokenizer))
    tuner = ajet.Tuner("", "key", {"as_base_url": served.gateway.as_base_url})
    base_url, api_key = tuner.as_base_url(agent="a b")
    assert (base_url, api_key) == (f"{served.url}/a/a%20b/v1", "key")
    endpoint = EpisodeEndpoint(base_url, api_key)
    assert endpoint.keyed_url == f"{served.url}/k/key/a/a%20b/v1"
    variables = endpoint.environment()
    assert variables["ANTHROPIC_BASE_URL"] == f"{served.url}/a/a%20b"
    assert (
        variables["OPENAI_BASE_URL"] == variables["OPENAI_API_BASE"] == variables["AJET_BASE_URL"] == base_url
    )
    assert variables["AJET_KEYED_URL"] == endpoint.keyed_url
    assert "ANTHROPIC_AUTH_TOKEN" not in variables
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "the user's own")
    assert endpoint.environment()["ANTHROPIC_AUTH_TOKEN"] == "key"
    assert variables["NO_PROXY"] == "intranet,127.0.0.1"


# ------------------------------------------------------------------ clients


def test_the_sdk_against_the_socket_gives_the_record_that_the_hook_gives(serve, tokenizer) -> None:
    served = serve(ok(tokenizer))
    records = []
    for through in (ajet.passthrough, contextlib.nullcontext):
        with served.bench.session("e") as session, through():
            client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=session.key, max_retries=0)
            first = client.chat.completions.create(**ASK)
            again = [*USER, first.choices[0].message, {"role": "user", "content": "more"}]
            client.chat.completions.create(model="m", messages=again)
        records.append(
            [(c.prompt.ids().tolist(), c.generation.token_ids.tolist()) for c in session.record.calls]
        )
    assert len(records[0]) == 2 and records[0] == records[1]
    assert served.metric('calls_total{status="200"}') == 2, "the second pair went through the hook"


def test_streams_come_as_events_while_they_are_sampled(serve, tokenizer) -> None:
    served = serve(ok(tokenizer))
    with served.bench.session() as session, ajet.passthrough():
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=session.key, max_retries=0)
        pieces = list(client.chat.completions.create(**ASK, stream=True))
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == "ok"
    assert len(session.record.calls) == 1


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
@pytest.mark.parametrize("stream", [False, True])
def test_curl(serve, tokenizer, stream) -> None:
    served = serve(ok(tokenizer))
    with served.bench.session() as session:
        command = ["curl", "-sSN", "--max-time", "60", f"{served.url}/v1/chat/completions", "-d", "@-"]
        command += ["-H", f"Authorization: Bearer {session.key}", "-H", "Content-Type: application/json"]
        told = json.dumps({**ASK, "stream": stream})
        output = subprocess.run(
            command, input=told, capture_output=True, text=True, timeout=PATIENCE, check=True
        ).stdout
    if stream:
        assert output.startswith("data: {") and output.rstrip().endswith("data: [DONE]")
    else:
        assert json.loads(output)["choices"][0]["message"]["content"] == "ok"
    assert len(session.record.calls) == 1


@pytest.mark.whole
@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_node_without_any_package(serve, tokenizer) -> None:
    served = serve(ok(tokenizer))
    script = (
        "const r = await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', {method: 'POST', body: process.argv[1],"
        "headers: {authorization: 'Bearer ' + process.env.OPENAI_API_KEY}});"
        "console.log((await r.json()).choices[0].message.content)"
    )
    with served.bench.session() as session:
        endpoint = EpisodeEndpoint(f"{served.url}/v1", session.key)
        ran = subprocess.run(
            ["node", "--input-type=module", "-e", script, json.dumps(ASK)],
            env={**os.environ, **endpoint.environment()},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert ran.stdout.strip() == "ok", ran.stderr
    assert len(session.record.calls) == 1


@pytest.mark.whole
def test_sixty_four_at_once_each_in_its_own_episode(serve, tokenizer) -> None:
    engine = Meeting(tokenizer, lambda r, p: p.split("question ")[-1].split("<")[0], parties=64)
    served = serve(engine)

    async def ask(client: httpx.AsyncClient, n: int, key: str) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": f"question {n}"}]}
        response = await client.post(
            f"{served.url}/v1/chat/completions", json=body, headers={"x-api-key": key}, timeout=PATIENCE
        )
        return str(response.json()["choices"][0]["message"]["content"])

    async def all_of_them() -> list[str]:
        async with httpx.AsyncClient() as client:
            return await asyncio.gather(*(ask(client, n, s.key) for n, s in enumerate(sessions)))

    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(served.bench.session(f"e{n}")) for n in range(64)]
        stack.enter_context(ajet.passthrough())
        answers = asyncio.run(all_of_them())
    assert answers == [str(n) for n in range(64)]
    assert all(len(s.record.calls) == 1 for s in sessions)


# ------------------------------------------------------------------ clients that go away


def raw(served: Served, body: bytes, key: str, *, path: str = "/v1/chat/completions") -> socket.socket:
    """A connection with a request sent."""
    connection = socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), timeout=PATIENCE)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels_its_generation_and_leaves_no_ghost_call(
    serve, tokenizer, stream
) -> None:
    engine = ok(tokenizer, seconds=600)
    served = serve(engine)
    with served.bench.session() as session:
        connection = raw(served, json.dumps({**ASK, "stream": stream}).encode(), session.key)
        assert eventually(lambda: served.metric("in_flight") == 1)
        connection.close()
        assert eventually(lambda: engine.cancelled == 1)
        assert eventually(lambda: session.in_flight == 0 and served.metric("in_flight") == 0)
    assert not session.record.calls and not session.record.exchanges
    assert served.metric("disconnects_total") == 1


@pytest.mark.whole
def test_a_client_timeout_leaves_no_ghost_call(serve, tokenizer) -> None:
    engine = ok(tokenizer, seconds=600)
    served = serve(engine)

    def ask(seconds: float) -> None:
        address: Any = {"base_url": f"{served.url}/v1", "api_key": session.key}
        client = openai.OpenAI(**address, max_retries=2, timeout=seconds)
        with ajet.passthrough(), pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(**ASK)

    with served.bench.session() as session:
        with_patience(ask, lambda: len(engine.requests) >= 3, 0.3)
        assert eventually(lambda: session.in_flight == 0 and engine.cancelled == len(engine.requests))
    assert not session.record.calls


def test_a_cancelled_task_leaves_no_ghost_call(serve, tokenizer) -> None:
    engine = ok(tokenizer, seconds=600)
    served = serve(engine)

    async def give_up() -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=session.key) as client:
            task = asyncio.create_task(client.chat.completions.create(**ASK))
            while not session.in_flight:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with served.bench.session() as session:
        with ajet.passthrough():
            asyncio.run(give_up())
        assert eventually(lambda: engine.cancelled == 1 and session.in_flight == 0)
    assert not session.record.calls and served.metric("disconnects_total") == 1


def test_a_killed_subprocess_leaves_no_ghost_call(serve, tokenizer) -> None:
    engine = ok(tokenizer, seconds=600)
    served = serve(engine)
    script = (
        "import os, sys, urllib.request as r; "
        "r.urlopen(r.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', sys.argv[1].encode(), "
        "{'x-api-key': os.environ['OPENAI_API_KEY']}))"
    )
    with served.bench.session() as session:
        environment = {**os.environ, **EpisodeEndpoint(f"{served.url}/v1", session.key).environment()}
        process = subprocess.Popen([sys.executable, "-c", script, json.dumps(ASK)], env=environment)
        assert eventually(lambda: session.in_flight == 1)
        process.kill()
        process.wait(PATIENCE)
        assert eventually(lambda: engine.cancelled == 1 and session.in_flight == 0)
    assert not session.record.calls and not session.record.exchanges


def test_a_client_that_goes_away_in_the_middle_of_a_stream_leaves_no_ghost_call(serve, tokenizer) -> None:
    engine = ok(tokenizer, seconds_between=600)
    served = serve(engine)
    with served.bench.session() as session:
        connection = raw(served, json.dumps({**ASK, "stream": True}).encode(), session.key)
        assert b"200" in connection.recv(4096)
        connection.close()
        assert eventually(lambda: engine.cancelled == 1 and session.in_flight == 0)
        assert eventually(lambda: served.metric("in_flight") == 0)
    assert not session.record.calls and served.metric("disconnects_total") == 1


@pytest.mark.slow
def test_a_client_that_goes_away_before_it_has_read_all_that_was_sampled_leaves_no_ghost_call(
    serve, tokenizer
) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: [5] * 60_000, context_length=1 << 20)
    served = serve(engine)
    with served.bench.session() as session:
        slow = raw(served, json.dumps({**ASK, "stream": True}).encode(), session.key)
        assert eventually(lambda: served.metric("in_flight") == 1)
        assert eventually(lambda: engine.requests and session.in_flight == 0), "it is sampled to the end"
        slow.close()
        assert eventually(lambda: served.metric("in_flight") == 0)
    assert engine.cancelled == 0 and not session.record.calls and not session.record.exchanges


def test_an_episode_that_ends_answers_its_waiting_callers(serve, tokenizer) -> None:
    engine = ok(tokenizer, seconds=600)
    served = serve(engine)
    answers: list[httpx.Response] = []
    with served.bench.session() as session:
        waiting = threading.Thread(target=lambda: answers.append(served.post(key=session.key)))
        waiting.start()
        assert eventually(lambda: session.in_flight == 1)
    waiting.join(PATIENCE)
    assert engine.cancelled == 1 and not session.record.calls
    assert answers[0].status_code == 400 and "has ended" in answers[0].text


@pytest.mark.whole
def test_a_client_that_reads_slowly_holds_its_stream_up_and_nobody_else(serve, tokenizer) -> None:
    tokens = 20_000  # more events than the buffers of both sides hold
    script = lambda r, p: [5] * tokens if "long" in p else "ok"  # noqa: E731
    served = serve(ScriptedEngine(tokenizer, script, context_length=1 << 20))
    ask = {"model": "m", "messages": [{"role": "user", "content": "long"}], "stream": True}
    with served.bench.session() as session:
        slow = raw(served, json.dumps(ask).encode(), session.key)
        with served.bench.session("other") as other:
            assert eventually(lambda: served.metric("in_flight") == 1)
            time.sleep(0.5)
            assert served.post(key=other.key).status_code == 200
        assert not session.record.calls, "the last event waits to be taken"
        received, end = 0, b""
        while not end.endswith(b"0\r\n\r\n"):
            chunk = slow.recv(1 << 20)
            received, end = received + len(chunk), (end + chunk)[-8:]
        slow.close()
        assert eventually(lambda: len(session.record.calls) == 1)
    assert received > 100 * tokens


@pytest.mark.whole
def test_a_gateway_that_closes_tells_its_callers_to_come_again_and_can_be_started_anew(
    serve, tokenizer
) -> None:
    engine = ok(tokenizer, seconds=600)
    served = serve(engine)
    answers: list[httpx.Response] = []
    with served.bench.session() as session:
        waiting = threading.Thread(target=lambda: answers.append(served.post(key=session.key)))
        waiting.start()
        assert eventually(lambda: session.in_flight == 1)
        served.gateway.close()
        waiting.join(PATIENCE)
        assert answers[0].status_code == 503 and answers[0].headers["retry-after"] == "1"
        assert engine.cancelled == 1 and session.in_flight == 0
        engine._seconds = 0.0
        served.url = served.gateway.start()
        assert served.post(key=session.key).status_code == 200
    assert len(session.record.calls) == 1


def test_a_gateway_that_drains_ends_its_calls_and_takes_no_new_ones(serve, tokenizer) -> None:
    refused: list[httpx.Response] = []
    served = serve(Waiting(tokenizer, lambda r, p: "ok", until=lambda: len(refused) == 2))
    answers: list[httpx.Response] = []
    with served.bench.session() as session:
        waiting = threading.Thread(target=lambda: answers.append(served.post(key=session.key)))
        waiting.start()
        assert eventually(lambda: session.in_flight == 1)
        closing = threading.Thread(target=served.gateway.close, args=(PATIENCE,))
        closing.start()
        assert eventually(lambda: served.gateway._app.closing)
        refused += [served.post(key=session.key), httpx.get(f"{served.url}/health")]
        waiting.join(PATIENCE)
        closing.join(PATIENCE)
    assert answers[0].status_code == 200 and [one.status_code for one in refused] == [503, 503]
    assert not closing.is_alive()


# ------------------------------------------------------------------ limits


@pytest.mark.parametrize("agent", ["my%00agent", "a%0Ab", "%ED%A0%80", "a" * 257])
def test_a_name_that_is_no_name_of_an_agent_is_refused(serve, tokenizer, agent: str) -> None:
    served = serve(ok(tokenizer))
    with served.bench.session() as session:
        answer = served.post(path=f"/k/{session.key}/a/{agent}/v1/chat/completions")
    assert answer.status_code == 400 and "the name of an agent has at most 256" in answer.text


def test_a_body_that_is_too_large_is_refused_before_it_is_held(serve, tokenizer) -> None:
    served = serve(ok(tokenizer), most_bytes=1 << 20)
    with served.bench.session() as session:
        announced = served.post(key=session.key, content=b" " * (2 << 20))

        def pieces() -> Iterator[bytes]:
            yield from [b" " * (1 << 19)] * 4

        unannounced = served.post(key=session.key, content=pieces())
        assert served.post(key=session.key).status_code == 200
    assert [announced.status_code, unannounced.status_code] == [413, 413]
    assert announced.json()["error"]["code"] == "request_too_large"


def test_more_calls_than_may_run_at_once_are_told_to_come_again(serve, tokenizer) -> None:
    refused = lambda: statuses.count(429) == 3  # noqa: E731
    served = serve(Waiting(tokenizer, lambda r, p: "ok", until=refused), most_calls=2)
    statuses: list[int] = []
    with served.bench.session() as session:
        threads = [
            threading.Thread(target=lambda: statuses.append(served.post(key=session.key).status_code))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200, 200, 429, 429, 429]
        assert served.post(key=session.key).status_code == 200, "and then it goes on"


def test_a_port_that_is_taken_is_named(serve, tokenizer, bench) -> None:
    served = serve(ok(tokenizer))
    port = int(served.url.rpartition(":")[2])
    second = Gateway(served.bench.portal, lambda key: None, served.bench.capture.wires, port=port)
    with pytest.raises(ajet.AjetError, match=f"cannot listen on 127.0.0.1:{port}: .* Choose another port"):
        second.start()
    assert second.socket is None and not second.is_at("127.0.0.1", port)


# ------------------------------------------------------------------ pages


def test_health_metrics_and_models(serve, tokenizer) -> None:
    served = serve(ok(tokenizer), models=["policy", "critic"])
    with served.bench.session() as session:
        assert served.get("/health").json() == {"status": "ok", "in_flight": 0}
        assert served.get("/v1/models").status_code == 401
        models = served.get("/v1/models", headers={"authorization": f"Bearer {session.key}"}).json()
        assert [m["id"] for m in models["data"]] == ["policy", "critic"]
        assert served.get("/v1/models/any").status_code == 401
        model = served.get("/v1/models/gpt-5.5", headers={"x-api-key": session.key}).json()
        assert (model["id"], model["object"], model["type"]) == ("gpt-5.5", "model", "model"), (
            "any name will do"
        )
        usage = served.post(key=session.key).json()["usage"]
    assert served.metric('call_seconds_bucket{le="+Inf"}') == served.metric("call_seconds_count") == 1
    assert served.metric('call_seconds_bucket{le="300"}') == 1 and served.metric("call_seconds_sum") > 0
    assert served.metric(f'build_info{{version="{importlib.metadata.version("ajet")}"}}') == 1
    assert served.metric('tokens_total{kind="prompt"}') == usage["prompt_tokens"]
    assert served.metric('tokens_total{kind="completion"}') == usage["completion_tokens"]


def test_tokens_of_sessions_that_follow_each_other_behind_one_key_are_counted_once(serve, tokenizer) -> None:
    until = lambda: len(engine.requests) != 4  # noqa: E731 - the fourth waits for the fifth
    engine = Waiting(tokenizer, lambda r, p: "ok", until=until)
    served = serve(engine)
    capture = served.bench.capture
    with served.bench.session("full") as full:
        for _ in range(3):
            served.post(key=full.key)
        last = threading.Thread(target=lambda: served.post(key=full.key))
        last.start()
        assert eventually(lambda: len(engine.requests) == 4)
        following = Session("next", "next", full.answerer, key=full.key)  # as `ajet serve` does it
        capture.open(following)
        served.post(key=full.key)
        last.join(PATIENCE)
    calls = [*full.record.calls, *following.record.calls]
    assert len(calls) == 5
    assert served.metric('tokens_total{kind="prompt"}') == sum(c.prompt.length for c in calls)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/chat/completions", 405),
        ("POST", "/v1/embeddings", 404),
        ("POST", "/", 404),
        ("OPTIONS", "/health", 404),
        ("GET", "/v1/model", 404),
        ("GET", "//chat/completions", 405),
        ("HEAD", "/health", 200),
    ],
)
def test_what_is_not_served_says_so(serve, tokenizer, method, path, status) -> None:
    response = httpx.request(method, f"{serve(ok(tokenizer)).url}{path}")
    assert response.status_code == status
    if method != "HEAD":
        assert response.json()["error"]["message"]


def test_a_probe_of_the_base_url_is_answered(serve, tokenizer) -> None:
    served = serve(ok(tokenizer))
    assert httpx.head(f"{served.url}/").status_code == 200
    assert "/v1" in served.get("/").text


def test_a_client_that_wants_a_websocket_is_told_at_once_to_use_http(serve, tokenizer) -> None:
    served = serve(ok(tokenizer))
    wanted = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    answer = served.get("/v1/responses", headers={**wanted, "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="})
    assert answer.status_code == 426 and "takes POST" in answer.json()["error"]["message"]


def gzipped(data: bytes) -> bytes:
    """Two parts, as a client that flushes writes them."""
    return gzip.compress(data[:5]) + gzip.compress(data[5:])


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzipped), ("X-GZIP", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)],
)
def test_a_compressed_body_is_read(serve, tokenizer, encoding, pack) -> None:
    served = serve(ok(tokenizer))
    with served.bench.session() as session:
        content = pack(json.dumps(ASK).encode())
        answer = served.post(key=session.key, content=content, headers={"content-encoding": encoding})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("encoding", "content", "status", "said"),
    [
        ("gzip", gzip.compress(b" " * (64 << 20)), 413, "larger than 1 MiB"),
        ("deflate", zlib.compress(b" " * (64 << 20)), 413, "larger than 1 MiB"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-4], 400, "not gzip"),
        ("gzip", b"{}", 400, "not gzip"),
        ("deflate", b"{}", 400, "not deflate"),
        ("br", b"{}", 415, "content-encoding is 'br'"),
        ("gzip, gzip", b"{}", 415, "content-encoding"),
    ],
)
def test_a_compressed_body_that_is_too_large_damaged_or_unknown_is_refused(
    serve, tokenizer, encoding, content, status, said
) -> None:
    served = serve(ok(tokenizer), most_bytes=1 << 20)
    with served.bench.session() as session:
        answer = served.post(key=session.key, content=content, headers={"content-encoding": encoding})
        assert served.post(key=session.key).status_code == 200
    assert answer.status_code == status and said in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"") * 200_000),
        ("gzip", b"".join(gzip.compress(b"x" * 30) for _ in range(1000)) * 100),
        ("deflate", zlib.compress(b"") * 500_000),
        ("deflate", raw_deflate(b"") * 2_000_000),
        ("deflate", b"\x78\x9c" + b"\0\0\0\xff\xff" * 800_000),
        ("deflate", b"\0\0\0\xff\xff" * 800_000),
    ],
    ids=["gzip", "little in each", "deflate", "raw deflate", "empty blocks", "raw empty blocks"],
)
def test_a_body_of_millions_of_empty_parts_is_refused_at_once(encoding: str, body: bytes) -> None:
    began = time.process_time()
    with pytest.raises(Refused, match="the request's body is not"):
        decoded(body, encoding, 32 << 20)
    assert time.process_time() - began < 0.2


@pytest.mark.parametrize("pack", [gzipped, gzip.compress, zlib.compress, raw_deflate])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
def test_a_compressed_body_of_any_size_is_read_whole(pack: Any, size: int) -> None:
    content = os.urandom(size)
    encoding = "gzip" if pack in (gzipped, gzip.compress) else "deflate"
    assert decoded(pack(content), encoding, size) == content
    assert size == 0 or decoded(pack(content), encoding, size - 1) is None


# ------------------------------------------------------------------ whatever is sent


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    [
        "model",
        "messages",
        "tools",
        "n",
        "stream",
        "stop",
        "max_tokens",
        "temperature",
        "tool_choice",
        "logprobs",
        "response_format",
        "input",
        "prompt",
        "system",
        "stream_options",
        "seed",
        "metadata",
        "top_p",
    ]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={"role": st.sampled_from(["user", "assistant", "tool", "system"]) | JSON, "content": JSON},
    ),
    max_size=3,
)
BODIES = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(FIELDS, JSON, max_size=6).map(lambda value: json.dumps({**ASK, **value}).encode()),
    MESSAGES.map(lambda value: json.dumps({"model": "m", "messages": value}).encode()),
)
PATHS = st.sampled_from(
    ["/chat/completions", "/completions", "/responses", "/messages", "/models", "/metrics", "/", "/v1/x"]
)


@pytest.mark.properties
def test_fuzzed_requests_never_end_in_a_5xx_a_hang_or_a_traceback(serve, tokenizer) -> None:
    served = serve(ok(tokenizer))

    @drawn(150, suppress_health_check=list(HealthCheck))
    @given(PATHS, BODIES, st.booleans())
    def check(path: str, body: bytes, with_key: bool) -> None:
        key = session.key if with_key else None
        response = client.post(
            f"{served.url}/v1{path}", content=body, headers={"x-api-key": key} if key else {}
        )
        assert response.status_code < 500, response.text
        assert "Traceback" not in response.text and 'File "' not in response.text

    with (
        served.bench.session() as session,
        ajet.passthrough(),
        httpx.Client(timeout=PATIENCE) as client,
    ):
        check()
    assert served.get("/health").json()["in_flight"] == 0


@drawn(60, suppress_health_check=list(HealthCheck))
@given(
    data=st.binary(min_size=1, max_size=300)
    | st.text(max_size=100).map(lambda t: f"POST {t} HTTP/1.1\r\n\r\n".encode())
)
def check_bytes(address: tuple[str, int], data: bytes) -> None:
    with (
        socket.create_connection(address, timeout=PATIENCE) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
        assert b" 50" not in answer.split(b"\r\n")[0] and b"Traceback" not in answer


@pytest.mark.properties
def test_bytes_that_are_no_http_end_the_connection_and_nothing_else(serve, tokenizer, caplog) -> None:
    served = serve(ok(tokenizer))
    check_bytes(("127.0.0.1", int(served.url.rpartition(":")[2])))
    assert not caplog.records, "anyone could fill the disk with lines"
    with served.bench.session() as session:
        assert served.post(key=session.key).status_code == 200


# ------------------------------------------------------------------ forks and threads


FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def in_a_fork(work: Callable[[], str], seconds: float = PATIENCE) -> str:
    """What ``work`` returns in a forked child; fails after ``seconds``."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:  # the child must never return into pytest
        try:
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    deadline = time.monotonic() + seconds
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail("the child hangs")
        time.sleep(0.02)
    with os.fdopen(read) as pipe:
        return pipe.read()


def asks(asynchronous: bool, stream: bool = False) -> Callable[[], str]:
    def ask() -> str:
        client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0, timeout=PATIENCE)
        if stream:
            pieces = client.chat.completions.create(**ASK, stream=True)
            return "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
        return client.chat.completions.create(**ASK).choices[0].message.content or ""

    async def ask_async() -> str:
        client = openai.AsyncOpenAI(
            base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0, timeout=PATIENCE
        )
        return (await client.chat.completions.create(**ASK)).choices[0].message.content or ""

    return (lambda: asyncio.run(ask_async())) if asynchronous else ask


@FORKS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_forked_child_is_answered_through_the_gateway(bench, tokenizer, asynchronous) -> None:
    b = bench(ok(tokenizer))
    with install(b.capture, gateway=True), b.session() as session:
        with ajet.label(agent="child / one"):
            assert in_a_fork(asks(asynchronous)) == "ok"
        assert asks(asynchronous)() == "ok", "the parent goes on by itself"
    assert [e.agent for e in session.record.exchanges] == ["child / one", "agent"]


@FORKS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_streams_through_the_gateway(bench, tokenizer) -> None:
    b = bench(ok(tokenizer))
    with install(b.capture, gateway=True), b.session() as session:
        assert in_a_fork(asks(False, stream=True)) == "ok"
    assert len(session.record.calls) == 1


@FORKS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_without_a_gateway_a_forked_child_is_told_what_to_do_and_does_not_hang(bench, tokenizer) -> None:
    b = bench(ok(tokenizer))
    with install(b.capture), b.session() as session:
        started = time.monotonic()
        said = in_a_fork(asks(False))
        assert "BadRequestError" in said and "rollout.gateway: true" in said
        assert time.monotonic() - started < 30
    assert not session.record.exchanges


@FORKS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_outside_any_episode_is_refused(bench, tokenizer) -> None:
    b = bench(ok(tokenizer))
    with install(b.capture, gateway=True):
        assert "outside any episode" in in_a_fork(asks(False))


@pytest.mark.kept
@FORKS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_and_its_child_ask_at_once_each_over_a_connection_of_its_own(bench, tokenizer) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: p.split("number ")[-1].split("<")[0], seconds=0.5))

    def ask(name: str) -> str:
        client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0, timeout=PATIENCE)
        messages: Any = [{"role": "user", "content": f"number {name}"}]
        return client.chat.completions.create(model="m", messages=messages).choices[0].message.content or ""

    def both() -> str:
        said = [ask("1")]  # its connection is kept
        work = threading.Thread(target=contextvars.copy_context().run, args=(lambda: said.append(ask("2")),))
        pid = os.fork()
        if not pid:
            os._exit(0 if ask("3") == "3" else 1)
        work.start()
        status = os.waitpid(pid, 0)[1]
        work.join()
        return f"{said} {status}"

    with install(b.capture, gateway=True), b.session() as session:
        assert in_a_fork(both) == "['1', '2'] 0"
    assert len(session.record.calls) == 3


@FORKS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_way_from_a_forked_child_to_the_gateway_is_no_missed_call(bench, tokenizer) -> None:
    b = bench(ok(tokenizer))

    async def begin() -> None:
        around.missed.begin(session.key)

    with install(b.capture, gateway=True, refuse_missed=True) as around, b.session() as session:
        asyncio.run(begin())
        assert in_a_fork(asks(False)) == "ok"
        assert not around.missed.end(session.key)


@FORKS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_childs_address_names_its_agent(bench, tokenizer) -> None:
    b = bench(ok(tokenizer))

    def ask() -> str:
        client = openai.OpenAI(base_url="http://127.0.0.1:9/a/solver/v1", api_key="k", max_retries=0)
        return client.chat.completions.create(**ASK).choices[0].message.content or ""

    with install(b.capture, gateway=True), b.session() as session:
        assert in_a_fork(ask) == "ok"
    assert [e.agent for e in session.record.exchanges] == ["solver"]


def test_jobs_of_a_shared_pool_stay_in_the_episode_that_gave_them(bench, tokenizer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    b = bench(ok(tokenizer))
    with install(b.capture), ThreadPoolExecutor(2) as pool:
        sessions = []
        for name in ("one", "two"):
            with b.session(name) as session:
                jobs = [pool.submit(asks(False)) for _ in range(4)]
                assert [job.result(PATIENCE) for job in jobs] == ["ok"] * 4
            sessions.append(session)
        outside = pool.submit(asks(False))
        with pytest.raises(openai.BadRequestError, match="outside any episode"):
            outside.result(PATIENCE)
    assert [len(s.record.calls) for s in sessions] == [4, 4]


@pytest.mark.parametrize("everything", [False, True])
def test_plain_threads_keep_the_episode_only_where_the_job_says_so(bench, tokenizer, everything) -> None:
    b = bench(ok(tokenizer))
    said: list[str] = []

    def work() -> None:
        try:
            said.append(asks(False)())
        except openai.BadRequestError as error:
            said.append(str(error))

    with install(b.capture, all_threads=everything), b.session():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(PATIENCE)
    assert said[0] == "ok" if everything else "outside any episode" in said[0]


def test_an_install_leaves_nothing_behind(bench, tokenizer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    before = (ThreadPoolExecutor.submit, threading.Thread.start)
    b = bench(ok(tokenizer))
    with install(b.capture, all_threads=True) as around:
        url = around.gateway.start()
        assert httpx.get(f"{url}/health").status_code == 200
    assert before == (ThreadPoolExecutor.submit, threading.Thread.start)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


@pytest.mark.whole
def test_full_collections_pass_over_what_was_alive_before_and_are_as_they_were_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc, "unfreeze", gc.unfreeze.__wrapped__)  # type: ignore[attr-defined]  # tests/conftest.py
    before = gc.get_threshold()
    with rare_full_collections():
        assert gc.get_freeze_count() > 1_000
        assert gc.get_threshold()[2] > before[2]
        cycle: list[Any] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1, "what is new is collected"
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0
