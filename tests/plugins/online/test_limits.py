"""Limits of keys, and of sessions in memory."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import openai
import pytest

from ajet.capture.gateway.bodies import MOST_BYTES, MOST_PAGE_BYTES
from ajet.interfaces.wire import Refused
from ajet.tracker.call import MessageNode
from ajet.types import ConfigError, GenerateRequest, Generation
from ajet_online import explorer
from ajet_online.database import StoreFailed
from ajet_online.keys import Key, KeyLimits, Keys
from ajet_online.store import TraceStore
from tests.patience import PATIENCE
from tests.plugins.online.serving import CHAT, OTHER, Server, said, user

Serve = Callable[..., Server]


@pytest.fixture
def url(file: Path) -> str:
    """SQLite is enough here."""
    return f"sqlite:///{file}"


def allowed(limits: KeyLimits, key: Key) -> bool:
    """Whether the key may make a call now."""
    try:
        with limits.call(key):
            return True
    except Refused:
        return False


def test_the_rate_is_a_bucket_that_fills_up() -> None:
    now = [0.0]
    limits, key = KeyLimits(9, lambda: now[0]), Key("app", CHAT, ("chat",), rate=2)
    assert [allowed(limits, key) for _ in range(3)] == [True, True, False]
    with (
        pytest.raises(Refused, match="'app' may make 2 calls a minute; try again in 30 s") as found,
        limits.call(key),
    ):
        pass
    assert (found.value.status, found.value.retry_after) == (429, 30)
    now[0] = 30.0
    assert [allowed(limits, key) for _ in range(2)] == [True, False]
    now[0] = 1000.0
    assert [allowed(limits, key) for _ in range(3)] == [True, True, False]
    assert all(allowed(limits, Key("other", "x", ())) for _ in range(100))


def test_so_many_calls_at_once() -> None:
    limits, key = KeyLimits(9), Key("app", CHAT, ("chat",), concurrency=2)
    with limits.call(key), limits.call(key):
        assert not allowed(limits, key)
        assert allowed(limits, Key("other", "x", (), concurrency=1))
    assert allowed(limits, key)


def test_a_call_above_the_rate_is_told_when_to_try_again(serve: Serve) -> None:
    now = [0.0]
    server = serve(Keys([Key("app", CHAT, ("chat",), rate=1)]), limits=KeyLimits(9, lambda: now[0]))
    assert server.get("/v1/models").status_code == 200, "which is no call"
    server.ask([user("a")])
    now[0] = 20.0
    for stream in (False, True):
        refused = server.post(
            "/v1/chat/completions", {"model": "m", "messages": [user("a")], "stream": stream}
        )
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "40")
        assert (
            "may make 1 calls a minute; try again in 40 s" in refused.text and "rate_limited" in refused.text
        )
    now[0] = 60.0
    server.ask([user("a")])


def test_calls_above_the_concurrency_are_refused_whatever_their_run(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(Keys([Key("app", CHAT, ("chat",), concurrency=1)]))
    began, go_on = threading.Event(), threading.Event()
    generate = server.engine.generate

    async def wait(request: GenerateRequest) -> Generation:
        began.set()
        await asyncio.to_thread(go_on.wait, 30)
        return await generate(request)

    monkeypatch.setattr(server.engine, "generate", wait)
    first = threading.Thread(target=server.ask, args=([user("a")], f"{CHAT}~one"))
    first.start()
    try:
        assert began.wait(PATIENCE)
        with pytest.raises(openai.RateLimitError, match="may make 1 calls at once"):
            server.ask([user("a")], f"{CHAT}~two")
    finally:
        go_on.set()
        first.join(PATIENCE)
    server.ask([user("a")], f"{CHAT}~two")


@pytest.mark.parametrize(
    ("path", "most", "said"),
    [
        ("POST /v1/chat/completions", MOST_BYTES, b"larger than 32 MiB"),
        ("POST /feedback", MOST_PAGE_BYTES, b"larger than 64 KiB"),
        ("POST /commit", MOST_PAGE_BYTES, b"larger than 64 KiB"),
        ("POST /rollback", MOST_PAGE_BYTES, b"larger than 64 KiB"),
        ("GET /online/status", MOST_PAGE_BYTES, b"larger than 64 KiB"),
    ],
)
def test_a_body_above_the_limit_is_not_read(serve: Serve, path: str, most: int, said: bytes) -> None:
    server = serve(Keys.single(CHAT))
    connection = HTTPConnection(httpx.URL(server.url).netloc.decode(), timeout=PATIENCE)
    connection.putrequest(*path.split())
    connection.putheader("Authorization", f"Bearer {CHAT}")
    connection.putheader("Content-Length", str(most + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413 and said in answer.read()
    connection.close()


def test_a_page_of_pieces_is_read_up_to_the_limit(serve: Serve) -> None:
    server = serve()
    pieces = iter([b'{"msg_ids": ["a"], "task_id": "t", "comment": "', *[b"a" * 10_000] * 10, b'"}'])
    headers = {"Authorization": f"Bearer {CHAT}"}
    answer = httpx.post(f"{server.url}/feedback", content=pieces, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 413


def test_pages_count_as_calls_of_their_key(serve: Serve) -> None:
    now = [0.0]
    keys = Keys([Key("app", CHAT, ("chat", "feedback"), rate=4), Key("other", OTHER, ("feedback",), rate=1)])
    server = serve(keys, limits=KeyLimits(9, lambda: now[0]))
    reply = server.ask([user("a")])
    body = {"msg_ids": [reply.id], "reward": 1, "task_id": "t"}
    answers = [server.post("/feedback", body).status_code, server.post("/commit", b"").status_code]
    assert [*answers, server.post("/feedback", {"reward": 1}).status_code] == [200, 200, 400]
    refused = server.post("/feedback", body)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "15")
    assert server.post("/commit", b"", OTHER).status_code == 200, "which has a rate of its own"


def test_a_page_whose_body_does_not_come_counts_for_the_concurrency_of_its_key(serve: Serve) -> None:
    server = serve(Keys([Key("app", CHAT, ("feedback",), concurrency=1), Key("other", OTHER, ("feedback",))]))
    connection = HTTPConnection(httpx.URL(server.url).netloc.decode(), timeout=PATIENCE)
    connection.putrequest("POST", "/commit")
    connection.putheader("Authorization", f"Bearer {CHAT}")
    connection.putheader("Content-Length", "10")
    connection.endheaders(b"{")
    while server.post("/commit", b"").status_code != 429:
        pass
    assert server.post("/commit", b"", OTHER).status_code == 200
    connection.close()
    while server.post("/commit", b"").status_code != 200:
        pass


def test_no_key_takes_all_calls_from_the_others() -> None:
    several = Keys([Key("app", CHAT, ("chat",)), Key("other", OTHER, ("chat",))])
    limits = KeyLimits(several.share(3))
    app, other = Key("app", CHAT, ()), Key("other", OTHER, ())
    with limits.call(app):
        assert not allowed(limits, app) and allowed(limits, other)
    assert Keys.single(CHAT).share(3) == 3


def test_a_page_is_read_and_stored_beside_the_loop_and_a_slow_store_holds_up_no_chat(
    serve: Serve, store: TraceStore
) -> None:
    server = serve()
    reply = server.ask([user("a")])
    with ThreadPoolExecutor() as pool, store.writing():  # as another process that writes
        body = {"msg_ids": [reply.id], "reward": 1, "task_id": "t"}
        waiting = [pool.submit(server.post, "/feedback", body) for _ in range(4)]
        large = {"messages": [user("a " * 40_000)], "max_tokens": 8}
        assert server.post("/v1/chat/completions", large).status_code == 400, "read beside the loop too"
        assert not any(one.done() for one in waiting)
    assert [one.result(PATIENCE).status_code for one in waiting] == [200] * 4


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/feedback", "/v1/feedback", "/commit", "/rollback"]
)
def test_a_key_is_checked_before_the_body_is_read(serve: Serve, path: str) -> None:
    server = serve(Keys([Key("rates", OTHER, ("feedback",)), Key("asks", CHAT, ("chat",))]))
    lacks = CHAT if path.endswith(("feedback", "commit")) else OTHER
    for key, statuses in (("", (401,)), ("wrong", (401,)), (lacks, (401, 403))):
        connection = HTTPConnection(httpx.URL(server.url).netloc.decode(), timeout=PATIENCE)
        connection.putrequest("POST", path)
        connection.putheader("Authorization", f"Bearer {key}")
        connection.putheader("Content-Length", "1000000")
        connection.endheaders(b"{")  # the rest never comes
        assert connection.getresponse().status in statuses
        connection.close()


def test_limits_in_the_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(json.dumps({"app": {"key": CHAT, "rate": 60, "concurrency": 4}}))
    found = Keys.read(path).find(CHAT)
    assert found and (found.key.rate, found.key.concurrency) == (60, 4)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (f"app: {{key: {CHAT}, rate: 0}}", r"app.rate: expected calls per minute"),
        (f"app: {{key: {CHAT}, rate: .inf}}", r"app.rate: expected calls per minute"),
        (f"app: {{key: {CHAT}, rate: .nan}}", r"app.rate: expected calls per minute"),
        (f"app: {{key: {CHAT}, concurrency: 1.5}}", "app.concurrency: expected a whole number"),
        (f"app: {{key: {CHAT}, role: [feedback]}}", "app.role: no such field; known: key, roles, rate"),
        (f"app: {{key: {CHAT}, roles: [[chat]]}}", r"app.roles: expected a list of some of chat, feedback"),
        (f"app: {{key: {CHAT}, roles: chat}}", r"app.roles: expected a list of some of chat, feedback"),
        (f"app: {{key: {CHAT}}}\nroot: {{key: {CHAT}}}", "app and root have the same key"),
        (f"app: {{key: {CHAT}}}\napp: {{key: {OTHER}}}", "keys.yaml:2: app stands twice in one mapping"),
    ],
)
def test_a_wrong_file_of_keys_is_refused(tmp_path: Path, written: str, problem: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(written)
    with pytest.raises(ConfigError, match=re.escape(problem)):
        Keys.read(path)


def test_a_file_of_keys_that_everybody_can_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"app: {{key: {CHAT}}}")
    path.chmod(0o640)
    Keys.read(path)
    assert not capsys.readouterr().err
    path.chmod(0o644)
    Keys.read(path)
    assert "can be read by everybody on this machine: chmod 600" in capsys.readouterr().err


def test_many_runs_do_not_fill_the_memory(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "MOST_SESSIONS", 3)
    server = serve()
    first = server.ask([user("a")], f"{CHAT}~run0")
    for number in range(1, 5):
        server.ask([user("a")], f"{CHAT}~run{number}")
    assert "ajet_online_sessions 3" in server.get("/metrics").text
    server.ask([user("a"), said(first), user("b")], f"{CHAT}~run0")
    *_, last = server.store.all()
    assert last.parent == next(server.store.all()).id, "its session was dropped, but not its conversation"


def test_a_request_to_count_tokens_is_within_the_limits_of_its_key(serve: Serve) -> None:
    server = serve(Keys([Key("app", CHAT, ("chat",), rate=1)]), limits=KeyLimits(9, lambda: 0.0))
    body = {"model": "m", "messages": [user("a")]}
    answers = [server.post("/v1/messages/count_tokens", body).status_code for _ in range(2)]
    assert answers == [200, 429]


def test_requests_without_a_reply_do_not_fill_the_memory(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet.runs.serve.MOST_CALLS", 5)
    server = serve()

    def kept() -> int:
        gc.collect()
        return sum(isinstance(one, MessageNode) for one in gc.get_objects())

    before = kept()
    for number in range(40):
        counted = {"model": "m", "messages": [user(f"question {number}")]}
        assert server.post("/v1/messages/count_tokens", counted).status_code == 200
    assert kept() - before <= 10


@pytest.mark.whole
def test_the_tokens_of_all_sessions_are_bounded_too(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "MOST_TOKENS_OF_ALL", 1)
    server = serve()
    first = server.ask([user("a")], f"{CHAT}~one")
    server.ask([user("a")], f"{CHAT}~two")
    assert "ajet_online_sessions 1" in server.get("/metrics").text
    server.ask([user("a"), said(first), user("b")], f"{CHAT}~one")
    *_, last = server.store.all()
    assert last.parent == next(server.store.all()).id


def test_a_request_that_cannot_fit_is_refused_before_its_conversation_is_looked_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        raise StoreFailed("it was asked")

    monkeypatch.setattr(TraceStore, "chain", asked)
    server = serve()
    most = max(1_024, server.engine.context_length // 4)
    for count, status in ((most - 1, 503), (most + 1, 400)):
        chat = [{"role": ("user", "assistant")[i % 2], "content": ""} for i in range(count)]
        answer = server.post("/v1/chat/completions", {"model": "m", "messages": chat})
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("sent", [{"Origin": "https://a.example"}, {"Host": "a.example"}])
def test_an_explorer_without_keys_answers_no_web_page(serve: Serve, sent: dict[str, str]) -> None:
    server = serve(Keys.unasked())
    body = json.dumps({"model": "m", "messages": [user("a")], "max_tokens": 8})
    chats = f"{server.url}/k/any/v1/chat/completions"
    assert httpx.post(chats, content=body).status_code == 200
    refused = httpx.post(chats, content=body, headers={"Content-Type": "text/plain", **sent})
    assert refused.status_code == 403 and server.store.count() == 1


def test_the_roles_of_a_key_without_roles_do_not_include_admin(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(f"app: {{key: {CHAT}}}")
    found = Keys.read(tmp_path / "keys.yaml").find(CHAT)
    assert found and tuple(found.key.roles) == ("chat", "feedback")


def test_a_reply_is_continued_by_its_id_after_a_restart(serve: Serve) -> None:
    server = serve()
    first = server.client().responses.create(
        model="m", input="one", instructions="Be brief.", max_output_tokens=8
    )
    server = serve()
    counted = server.post(
        "/v1/responses/input_tokens",
        {"model": "m", "input": "two", "instructions": "Be brief.", "previous_response_id": first.id},
    )
    second = server.client().responses.create(
        model="m", input="two", previous_response_id=first.id, instructions="Be brief.", max_output_tokens=8
    )
    third = server.client().responses.create(
        model="m", input="3", previous_response_id=second.id, instructions="Be brief.", max_output_tokens=8
    )
    one, two, three = server.store.all()
    assert (two.parent, three.parent) == (one.id, two.id) and third.id.endswith(three.id)
    whole = [*one.prompt.tolist(), *one.tokens.tolist(), *two.prompt.tolist()]
    assert server.engine.requests[0].prompt_ids.tolist() == whole
    assert counted.json()["input_tokens"] == len(whole)
    with pytest.raises(openai.BadRequestError, match="there is no earlier reply"):
        server.client().responses.create(model="m", input="x", previous_response_id="resp_none")


def test_two_replies_continue_one_by_its_id_after_a_restart(serve: Serve) -> None:
    server = serve()
    first = server.client().responses.create(model="m", input="one", max_output_tokens=8)
    server = serve()
    for text in ("left", "right"):
        server.client().responses.create(
            model="m", input=text, previous_response_id=first.id, max_output_tokens=8
        )
    one, left, right = server.store.all()
    assert left.parent == right.parent == one.id


def test_no_other_key_and_no_other_run_continues_a_reply_by_its_id(serve: Serve) -> None:
    server = serve()
    first = server.client().responses.create(model="m", input="one", max_output_tokens=8)
    for key in (OTHER, f"{CHAT}~run"):
        with pytest.raises(openai.BadRequestError, match="there is no earlier reply"):
            server.client(key).responses.create(model="m", input="x", previous_response_id=first.id)
