"""What one request may cost: its work is bounded before it begins, and what takes long is done beside the loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

import ajet
from ajet.capture.gateway import bodies, connections
from ajet.capture.gateway.connections import MOST_HEAD_BYTES, Connections
from ajet.capture.gateway.server import Gateway
from ajet.capture.respond import Reply, respond
from ajet.capture.session import Session, current_session
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.interfaces.wire import brief
from ajet.testing import ScriptedEngine
from tests.patience import PATIENCE

ONE = b'{"role":"user","content":"a"}'
TOOL = b'{"type":"function","function":{"name":"t"}}'
CONTEXT = 4_096


@pytest.fixture
def engine(tokenizer: Any) -> ScriptedEngine:
    return ScriptedEngine(tokenizer, lambda request, prompt: "ok", context_length=CONTEXT)


@pytest.fixture
def served(bench: Any, engine: ScriptedEngine) -> Iterator[Any]:
    """A bench, and its gateway."""
    b = bench(engine)
    gateway = Gateway(b.portal, b.capture.session_of, b.capture.wires)
    gateway.start()
    with contextlib.closing(gateway), ajet.passthrough():
        yield b, gateway


def answer(bench: Any, body: bytes, session: Session | None = None) -> Reply:
    """What a request gets in this process."""
    with contextlib.ExitStack() as stack:
        session = session or stack.enter_context(bench.session())
        reply: Reply = bench.portal.submit(respond(ChatCompletions(), session, body, "agent", None)).result(
            PATIENCE
        )
    return reply


def error(reply: Reply) -> tuple[int, str, str]:
    found = json.loads(reply.body)["error"]
    return reply.status, found["code"], found["message"]


def post(gateway: Gateway, key: str, body: bytes) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    with ajet.passthrough():  # also in threads, or the hook would answer
        return httpx.post(
            f"{gateway.url}/v1/chat/completions", content=body, headers=headers, timeout=PATIENCE
        )


def chat(*contents: str, **options: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": c} for c in contents], **options}).encode()


# ------------------------------------------------------------------ schemas


def test_a_schema_that_backtracks_is_answered_and_others_are_not_held_up(served: Any) -> None:
    b, gateway = served
    b.engine._script = lambda request, prompt: json.dumps("a" * 60 + "!")
    schema = {"type": "string", "pattern": "^(a+)+$"}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with b.session() as session:
        refused = post(gateway, session.key, chat("hi", response_format=wanted))
    assert refused.status_code == 422 and 'does not match "^(a+)+$"' in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "schema", [{"pattern": "(?=a)b"}, {"type": "nothing"}], ids=["lookaround", "no schema"]
)
def test_a_schema_that_cannot_be_applied_is_refused_before_anything_is_sampled(
    bench: Any, engine: ScriptedEngine, schema: Any
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    status, code, _ = error(answer(bench(engine), chat("hi", response_format=wanted)))
    assert (status, code) == (400, "invalid_request") and not engine.requests


def test_schemas_are_applied_beside_the_loop(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    b, gateway = served
    going, go_on = threading.Event(), threading.Event()

    def slow(schema: Any, content: Any) -> None:
        going.set()
        assert go_on.wait(PATIENCE)

    monkeypatch.setattr("ajet.capture.structured._apply", slow)
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string"}}}
    with b.session() as session, b.session("other") as other:
        asking = threading.Thread(
            target=post, args=(gateway, session.key, chat("hi", response_format=wanted))
        )
        asking.start()
        assert going.wait(PATIENCE)
        assert post(gateway, other.key, chat("hi")).status_code == 200
        go_on.set()
        asking.join(PATIENCE)


# ------------------------------------------------------------------ chats


def test_a_million_messages_are_refused_before_they_are_read(
    bench: Any, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    b, body = bench(engine), b'{"messages":[' + b",".join([ONE] * 1_000_000) + b"]}"
    with monkeypatch.context() as patch:
        patch.setattr("json.loads", lambda text: pytest.fail("it was read"))
        reply = answer(b, body)
    status, code, message = error(reply)
    assert (status, code) == (413, "request_too_large") and "1,000,002 objects and lists" in message


def test_two_hundred_thousand_tools_are_refused_before_they_are_read(
    bench: Any, engine: ScriptedEngine
) -> None:
    body = b'{"messages":[' + ONE + b'],"tools":[' + b",".join([TOOL] * 200_000) + b"]}"
    assert error(answer(bench(engine), body))[:2] == (413, "request_too_large")


@pytest.mark.parametrize("colon", [b":", b" \n:"])
@pytest.mark.parametrize("field", [b"logit_bias", b"metadata", b"unknown"])
def test_a_flat_object_of_many_keys_is_refused_before_it_is_read(
    bench: Any, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, colon: bytes, field: bytes
) -> None:
    members = b",".join(b'"%d"%s0' % (number, colon) for number in range(300_000))
    b, body = bench(engine), b'{"messages":[' + ONE + b'],"%s":{%s}}' % (field, members)
    with monkeypatch.context() as patch:
        patch.setattr("json.loads", lambda text: pytest.fail("it was read"))
        reply = answer(b, body)
    status, code, message = error(reply)
    assert (status, code) == (413, "request_too_large") and "more than 100,000 keys" in message


def test_an_error_shows_the_beginning_of_a_value_without_writing_all_of_it() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    began = time.process_time()
    assert brief(list(range(1_000_000))).startswith("[0, 1, 2") and brief(deep).startswith("[[[")
    assert len(brief(dict.fromkeys(map(str, range(1000))))) == 61 and brief("ü") == '"\\u00fc"'
    assert time.process_time() - began < 0.2


class Counting:
    """A tokenizer that counts the characters that it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def encode(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer.encode(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_of_a_text_far_too_long_no_more_is_tokenised_than_some_contexts(
    bench: Any, engine: ScriptedEngine
) -> None:
    b = bench(engine)
    b.chat.tokenizer = counting = Counting(engine.tokenizer)
    with b.session() as session:
        status, code, message = error(answer(b, chat("a few words " * 2_500_000), session))
        assert (status, code) == (400, "context_length_exceeded") and "30,000,000 characters" in message
        assert counting.characters < 20 * CONTEXT
        assert session.counters["context_overflow"] == 1 and not session.record.chats, "nothing is kept of it"


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b",".join([ONE] * 1_025) + b"]}",
        chat(*["a" * 30_000] * 2),
        json.dumps(
            {"messages": [{"role": "user", "content": "a"}] * 2, "tools": [{"b" * 99_999: 1}]}
        ).encode(),
    ],
    ids=["messages", "texts", "a tool"],
)
def test_what_cannot_fit_in_the_context_is_refused_without_being_rendered(
    bench: Any, engine: ScriptedEngine, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench(engine)
    monkeypatch.setattr(b.chat, "render", lambda *_: pytest.fail("it was rendered"))
    status, code, message = error(answer(b, body))
    assert (status, code) == (400, "context_length_exceeded") and "the model's context holds 4,096" in message


def test_tools_have_a_limit_whatever_the_context(bench: Any, engine: ScriptedEngine) -> None:
    body = b'{"messages":[' + ONE + b'],"tools":[' + b",".join([TOOL] * 513) + b"]}"
    with (b := bench(engine)).session() as session:
        status, code, message = error(answer(b, body, session))
    assert (status, code) == (400, "invalid_request") and "at most 512" in message
    assert not session.counters["context_overflow"], "shortening the history would not help"


def test_a_chat_that_a_template_might_shorten_is_measured_by_its_rendering(
    bench: Any, engine: ScriptedEngine
) -> None:
    status, code, message = error(answer(bench(engine), chat("a few words " * 1_000)))
    assert (status, code) == (400, "context_length_exceeded") and "the prompt has" in message


def test_a_job_may_allow_less_than_the_models_context(bench: Any, tokenizer: Any) -> None:
    b = bench(
        ScriptedEngine(tokenizer, lambda request, prompt: "one two three four five", context_length=CONTEXT)
    )
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

    def ask(limit: int, **options: Any) -> Any:
        chat: Any = [{"role": "user", "content": "count"}]
        session = Session("e", "e", dataclasses.replace(b.answerer(), limit=limit))
        b.capture.open(session)
        token = current_session.set(session)
        try:
            return client.chat.completions.create(model="m", messages=chat, **options)
        finally:
            current_session.reset(token)

    whole = ask(CONTEXT)
    prompt, answer = whole.usage.prompt_tokens, whole.usage.completion_tokens
    assert whole.choices[0].finish_reason == "stop"
    cut = ask(prompt + answer - 2)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", answer - 2)
    assert ask(prompt + answer - 2, max_tokens=1).usage.completion_tokens == 1
    with pytest.raises(openai.BadRequestError, match=f"the model's context holds {prompt} with the answer"):
        ask(prompt)


def test_spaces_of_which_many_fit_are_not_refused_by_their_length(bench: Any, tokenizer: Any) -> None:
    text = " " * 20_000
    tokens = len(tokenizer.encode(text))
    engine = ScriptedEngine(tokenizer, lambda r, p: "ok", context_length=tokens + 100)
    assert answer(bench(engine), chat(text)).status == 200


def test_token_ids_beyond_the_context_are_refused_before_they_are_looked_at(
    bench: Any, engine: ScriptedEngine
) -> None:
    b = bench(engine)
    body = json.dumps({"prompt": [10**6] * (CONTEXT + 1), "max_tokens": 1}).encode()
    completions = next(w for w in BUILTIN_WIRES if w.path == "/completions")
    with b.session() as session:
        reply = b.portal.submit(respond(completions, session, body, "agent", None)).result(PATIENCE)
    assert error(reply)[1] == "context_length_exceeded"


def test_a_large_new_chat_is_rendered_beside_the_loop_and_others_are_answered_meanwhile(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    b, gateway = served
    b.engine.context_length = 1 << 20
    rendered, threads = b.chat._continuing.begin, []
    going, go_on = threading.Event(), threading.Event()

    def slow(messages: Any, tools: Any) -> Any:
        if len(messages[0]["content"]) > 60_000:
            threads.append(threading.current_thread().name)
            going.set()
            assert go_on.wait(PATIENCE)
        return rendered(messages, tools)

    monkeypatch.setattr(b.chat._continuing, "begin", slow)
    statuses = []
    with b.session() as session, b.session("other") as other:
        ask = lambda: statuses.append(post(gateway, session.key, chat("words " * 12_000)).status_code)  # noqa: E731
        asking = threading.Thread(target=ask)
        asking.start()
        assert going.wait(PATIENCE)
        assert httpx.get(f"{gateway.url}/health", timeout=PATIENCE).status_code == 200
        assert post(gateway, other.key, chat("hi")).status_code == 200
        go_on.set()
        asking.join(PATIENCE)
    assert statuses == [200] and len(threads) == 1, "the loop uses what was rendered"
    assert threads[0].startswith("ajet-off-loop")


def test_calls_in_this_process_are_numbered_as_they_come_whatever_their_size(
    bench: Any, tokenizer: Any
) -> None:
    """Their numbers decide their seeds, so that deterministic runs must not depend on threads."""
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok", context_length=1 << 20))

    async def ask_at_once() -> None:
        bodies_ = (chat("words " * 20_000), chat("hi"))
        await asyncio.gather(*(respond(ChatCompletions(), session, body, "agent", None) for body in bodies_))

    with b.session() as session:
        b.portal.submit(ask_at_once()).result(PATIENCE)
    assert [c.prompt.length > 1_000 for c in sorted(session.record.calls, key=lambda c: c.number)] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        (chat("hi", stop=["a"] * 65), "invalid_request", "stop has 65 texts"),
        (b'{"messages":' + b"[" * 90_000 + b"]" * 90_000 + b"}", "invalid_json", "not JSON"),
        (b'{"messages":[' + b"1," * 1_000_001 + b"1]}", "request_too_large", "1,000,001 values"),
    ],
    ids=["stops", "brackets", "values"],
)
def test_other_requests_that_would_cost_much_are_refused(
    bench: Any, engine: ScriptedEngine, body: bytes, code: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = error(answer(bench(engine), body))
    assert found[1] == code and reason in found[2]
    assert not caplog.records


def test_of_many_faults_an_error_names_a_few(bench: Any, engine: ScriptedEngine) -> None:
    unknown = {f"unknown_{n}": 1 for n in range(50_000)} | {"long" * 25_000: 1}
    _, code, message = error(answer(bench(engine), chat("hi", **unknown)))
    assert code == "unsupported_parameter" and "and 49,991 more of this request" in message
    assert len(message) < 2_000


def test_refusals_are_kept_as_long_as_there_are_few(
    bench: Any, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet.capture.session._MOST_REFUSALS", 3)
    b = bench(engine)
    with b.session() as session:
        replies = [answer(b, chat("hi", unknown=1), session) for _ in range(5)]
    assert len(session.refusals) == 3 and session.counters["refused:unsupported_parameter"] == 5
    assert all(reply.refusal and reply.refusal.code == "unsupported_parameter" for reply in replies)


def test_a_deeply_nested_tool_is_a_fault_of_the_request(
    bench: Any, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    deep = b'{"a":' * 800 + b"1" + b"}" * 800
    tool = b'{"type":"function","function":{"name":"t","parameters":' + deep + b"}}"
    status, code, _ = error(answer(bench(engine), b'{"messages":[' + ONE + b'],"tools":[' + tool + b"]}"))
    assert status == 400 and code in ("invalid_request", "invalid_json")
    assert not caplog.records


# ------------------------------------------------------------------ ids


def test_an_episode_whose_id_no_encoding_can_say_is_answered(bench: Any, engine: ScriptedEngine) -> None:
    b = bench(engine)
    with b.session("1.0/\ud800/0") as session:
        assert answer(b, chat("hi"), session).status == 200
        assert answer(b, chat("hi", stream=True), session).status == 200
    with b.session("1.0/\ud801/0") as other:
        assert answer(b, chat("hi"), other).status == 200
    first, _, of_other = (request.sampling.seed for request in engine.requests)
    assert first != of_other


# ------------------------------------------------------------------ bodies and connections


def connect(gateway: Gateway, sent: bytes) -> socket.socket:
    connection = socket.create_connection(
        ("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=PATIENCE
    )
    with contextlib.suppress(ConnectionError):
        connection.sendall(sent)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    found = b""
    with connection, contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            found += part
    return found


def test_the_bodies_of_all_calls_together_are_bounded_and_no_key_takes_the_room_of_another(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    b, gateway = served
    monkeypatch.setattr(bodies, "MOST_HELD", 200_000)
    with b.session() as session, b.session("other") as other:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {session.key}\r\ncontent-length: 90000\r\n\r\n"
        held = connect(gateway, head.encode() + b" " * 80_000)
        while gateway._app._bodies._held < 80_000:
            pass
        refused = post(gateway, session.key, b" " * 50_000)
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "busy"
        assert post(gateway, other.key, b" " * 50_000).status_code == 400, "it was read"
        held.close()
        while gateway._app._bodies._held:
            pass
        assert post(gateway, session.key, chat("hi")).status_code == 200


def test_the_body_of_who_has_no_key_is_not_read(served: Any) -> None:
    _, gateway = served
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n"
    reply = all_of(connect(gateway, head))
    assert reply.startswith(b"HTTP/1.1 401") and b"connection: close" in reply


@pytest.mark.parametrize(
    ("length", "status"), [(b"0" * 5_000 + b"5", 413), (b"0" * 9 + b"5 ", 400)], ids=["thousands", "a few"]
)
def test_a_length_of_thousands_of_digits_is_a_length_too_large(
    served: Any, length: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    b, gateway = served
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: " + length
    assert all_of(connect(gateway, head + b"\r\n\r\n12345")).startswith(b"HTTP/1.1 401")
    with b.session() as session:
        key = f"\r\nx-api-key: {session.key}\r\n\r\n12345".encode()
        assert all_of(connect(gateway, head + key)).startswith(b"HTTP/1.1 %d" % status)
    assert not caplog.records


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\nx: " + b"a" * (1 << 20),
        b"GET /health HTTP/1.1\r\n" + b"x: a\r\n" * (1 << 18),
        b"GET /" + b"a" * (1 << 20),
        b"\r\n" * (1 << 19),
        b"POST /none HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x: a\r\n" * (1 << 18),
        b"POST /none HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"a" * (1 << 20),
    ],
    ids=["a header", "headers", "a URL", "empty lines", "trailers", "marks of a chunk"],
)
def test_what_comes_beside_bodies_is_bounded(served: Any, sent: bytes) -> None:
    _, gateway = served
    reply = all_of(connect(gateway, sent))
    # Where the client is still sending, the answer may be lost with the connection.
    assert reply.startswith((b"HTTP/1.1 431", b"HTTP/1.1 404")) or not reply
    assert httpx.get(f"{gateway.url}/health", timeout=PATIENCE).status_code == 200


def test_a_whole_head_that_is_too_large_is_refused_however_it_arrives(served: Any) -> None:
    _, gateway = served
    for size in (MOST_HEAD_BYTES + 1, 100_000):
        head = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: "
        reply = all_of(connect(gateway, head + b"a" * (size - len(head) - 4) + b"\r\n\r\n"))
        assert reply.startswith(b"HTTP/1.1 431") or not reply


def test_a_head_of_the_allowed_size_is_read_also_after_another_request(served: Any) -> None:
    _, gateway = served
    with httpx.Client(timeout=PATIENCE) as client:
        for _ in range(3):
            headers = {"x-long": "a" * (MOST_HEAD_BYTES - 1_000)}
            assert client.get(f"{gateway.url}/health", headers=headers).status_code == 200


def test_many_incomplete_heads_hold_little_together(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, gateway = served
    monkeypatch.setattr(connections, "MOST_HEADS_BYTES", 40_000)
    begun = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: "
    with contextlib.ExitStack() as held:
        for _ in range(10):
            held.enter_context(connect(gateway, begun))
        whole = begun + b"a" * 10_000 + b"\r\nconnection: close\r\n\r\n"
        assert all_of(connect(gateway, whole)).startswith(b"HTTP/1.1 200"), "it came at once"
        assert b"at most 3 KiB" in all_of(connect(gateway, begun + b"a" * 10_000))


@pytest.mark.whole
@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
@pytest.mark.parametrize("after_another", [False, True])
def test_a_head_that_does_not_come_is_not_waited_for(
    served: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes, after_another: bool
) -> None:
    _, gateway = served
    if after_another and not sent:
        pytest.skip("a connection may rest after a request")
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    before = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" if after_another else b""
    replies = all_of(connect(gateway, before + sent))
    assert b"HTTP/1.1 408" in replies and replies.startswith(b"HTTP/1.1 200") is after_another


def test_what_is_not_http_is_refused_before_its_end(served: Any) -> None:
    _, gateway = served
    assert all_of(connect(gateway, b"\x16\x03\x01\x02\x00\x01\x00")).startswith(b"HTTP/1.1 400")


def test_of_too_many_connections_without_a_request_the_oldest_go(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, gateway = served
    monkeypatch.setattr(connections, "MOST_HALF_OPEN", 8)
    monkeypatch.setattr(gateway._server.config.http.held, "most", 8)
    half_open = [connect(gateway, b"GET /health HTTP/1.1\r\nhost: ") for _ in range(40)]
    for connection in half_open[:32]:
        assert all_of(connection) == b""
    assert httpx.get(f"{gateway.url}/health", timeout=PATIENCE).status_code == 200
    last = half_open[-1]
    last.sendall(b"localhost\r\n\r\n")
    assert last.recv(100).startswith(b"HTTP/1.1 200")
    for connection in half_open[32:]:
        connection.close()


@pytest.mark.whole
def test_clients_that_connect_at_once_and_ask_later_are_all_answered(served: Any) -> None:
    _, gateway = served
    opened = [connect(gateway, b"") for _ in range(connections.MOST_HALF_OPEN + 64)]
    assert httpx.get(f"{gateway.url}/health", timeout=PATIENCE).status_code == 200, "all were accepted"
    for connection in opened:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert all(all_of(connection).startswith(b"HTTP/1.1 200") for connection in opened)


class Held:
    """A connection that notes its end."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name = name
        self.told = told

    def give_up(self, status: int, reason: str) -> None:
        self.told.append(f"{self.name} {status}")

    def drop(self) -> None:
        self.told.append(self.name)


def test_connections_that_rest_outlast_many_that_ask_nothing(
    bench: Any, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_HALF_OPEN", 1)
    told: list[str] = []

    async def many() -> None:
        open_ = Connections(most=2)
        resting, *fresh = (Held(name, told) for name in ("resting", "first", "second", "third"))
        open_.opened(resting)
        open_.asks(resting)
        open_.rests(resting)
        for connection in fresh:
            open_.opened(connection)
        assert told == ["first", "second"]
        for connection in (resting, fresh[-1]):
            open_.closed(connection)

    bench(engine).portal.submit(many()).result(PATIENCE)


@pytest.mark.whole
def test_late_connections_are_given_up_a_few_in_each_turn_of_the_loop(
    bench: Any, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.0)
    told: list[str] = []

    async def many() -> None:
        open_ = Connections(most=200)
        for n in range(200):
            open_.opened(Held(str(n), told))
        turns = [0]
        while len(told) < 200:
            await asyncio.sleep(0)
            if len(told) > turns[-1]:
                turns.append(len(told))
        assert turns == [0, 64, 128, 192, 200]

    bench(engine).portal.submit(many()).result(PATIENCE)


def test_of_too_many_connections_those_go_that_rest(bench: Any, engine: ScriptedEngine) -> None:
    told: list[str] = []

    async def many() -> None:
        open_ = Connections(most=3)
        busy, resting, fresh, last, more = (
            Held(name, told) for name in ("busy", "resting", "fresh", "last", "more")
        )
        for connection in (busy, resting):
            open_.opened(connection)
            open_.asks(connection)
        open_.rests(resting)
        open_.opened(fresh)
        assert not told
        open_.opened(last)
        assert told == ["resting"]
        open_.asks(last)
        open_.opened(more)
        assert told == ["resting", "fresh"], "nothing rests, so who has not asked yet goes"
        for connection in (busy, last, more):
            open_.closed(connection)

    bench(engine).portal.submit(many()).result(PATIENCE)


@pytest.mark.parametrize("path", ["/health", "/metrics"])
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "attacker.example"},
        {"origin": "http://attacker.example"},
        {"origin": "null"},
        {"origin": "http://[x"},
    ],
)
def test_pages_without_a_key_are_not_for_web_pages_of_elsewhere(
    served: Any, path: str, headers: dict[str, str]
) -> None:
    _, gateway = served
    assert httpx.get(f"{gateway.url}{path}", headers=headers, timeout=PATIENCE).status_code == 403
    port = gateway.url.rpartition(":")[2]
    same = {"host": f"localhost:{port}", "origin": f"http://localhost:{port}"}
    assert httpx.get(f"{gateway.url}{path}", headers=same, timeout=PATIENCE).status_code == 200


# ------------------------------------------------------------------ the end


SERVER = """
import time
from ajet.capture.gateway import stopping
from ajet.capture.sampling import SamplingPolicy
from ajet.runs.serve import serve
from ajet.testing import ScriptedEngine
from ajet_local.starter.calculator import Calculator

class Stuck(ScriptedEngine):
    async def generate(self, request):
        print("stuck", flush=True)
        while True:
            time.sleep(1)

stopping.SECONDS_TO_END = 0.5
serve(Stuck(Calculator().tokenizer(0)[0], None), models=["m"], key="k", host="127.0.0.1", port=0, most_calls=9,
      policy=SamplingPolicy(False), ready=lambda url: print(url, flush=True))
"""


@pytest.mark.whole
def test_sigterm_ends_a_server_whose_loop_is_blocked_for_ever() -> None:
    command = [sys.executable, "-c", textwrap.dedent(SERVER)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout
    url = process.stdout.readline().strip()
    ask: Callable[[], Any] = lambda: httpx.post(  # noqa: E731
        f"{url}/v1/chat/completions", content=chat("hi"), headers={"x-api-key": "k"}, timeout=PATIENCE
    )

    def blocked() -> None:
        with ajet.passthrough(), contextlib.suppress(httpx.HTTPError):
            ask()

    asking = threading.Thread(target=blocked)
    asking.start()
    assert process.stdout.readline() == "stuck\n"
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE)
    asking.join(PATIENCE)
    assert process.returncode == 128 + 15 and "still busy 0.5 s after SIGTERM" in errors
