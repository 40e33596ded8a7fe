"""Limits of keys, and of sessions in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from ajet.types import ConfigError
from ajet_online import explorer
from ajet_online.keys import Key, Keys, Limits
from tests.plugins.online.serving import CHAT, Server, said, user

Serve = Callable[..., Server]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """SQLite is enough here."""
    return f"sqlite:///{tmp_path / 'traces.db'}"


def test_the_rate_is_a_bucket_that_fills_up() -> None:
    now = [0.0]
    limits, key = Limits(lambda: now[0]), Key("app", CHAT, ("chat",), rate=2)
    assert [limits.refusal(key, 0) is None for _ in range(3)] == [True, True, False]
    assert limits.refusal(key, 0) == "the key 'app' may make 2 calls a minute; try again in 30 s"
    now[0] = 30.0
    assert [limits.refusal(key, 0) is None for _ in range(2)] == [True, False]
    now[0] = 1000.0
    assert [limits.refusal(key, 0) is None for _ in range(3)] == [True, True, False]
    assert limits.refusal(Key("other", "x", ()), 100) is None


def test_concurrency() -> None:
    key = Key("app", CHAT, ("chat",), concurrency=2)
    assert Limits().refusal(key, 1) is None
    assert Limits().refusal(key, 2) == "the key 'app' may make 2 calls at once; try again later"


def test_a_call_above_the_rate_gets_429(serve: Serve) -> None:
    server = serve(Keys([Key("app", CHAT, ("chat",), rate=1)]))
    server.ask([user("a")])
    with pytest.raises(openai.RateLimitError, match="may make 1 calls a minute"):
        server.ask([user("a")])


def test_limits_in_the_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(json.dumps({"app": {"key": CHAT, "rate": 60, "concurrency": 4}}))
    found = Keys.read(path).find(CHAT)
    assert found and (found.key.rate, found.key.concurrency) == (60, 4)
    for wrong, problem in (
        ({"rate": 0}, "rate: expected calls per minute"),
        ({"concurrency": 1.5}, "a whole number"),
    ):
        path.write_text(json.dumps({"app": {"key": CHAT, **wrong}}))
        with pytest.raises(ConfigError, match=problem):
            Keys.read(path)


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


def test_a_reply_is_continued_by_its_id_after_a_restart(serve: Serve) -> None:
    server = serve()
    first = server.client().responses.create(
        model="m", input="one", instructions="Be brief.", max_output_tokens=8
    )
    server = serve()
    second = server.client().responses.create(
        model="m", input="two", previous_response_id=first.id, instructions="Be brief.", max_output_tokens=8
    )
    third = server.client().responses.create(
        model="m", input="3", previous_response_id=second.id, max_output_tokens=8
    )
    one, two, three = server.store.all()
    assert (two.parent, three.parent) == (one.id, two.id) and third.id.endswith(three.id)
    whole = [*one.prompt.tolist(), *one.tokens.tolist(), *two.prompt.tolist()]
    assert server.engine.requests[0].prompt_ids.tolist() == whole
    with pytest.raises(openai.BadRequestError, match="there is no earlier reply"):
        server.client().responses.create(model="m", input="x", previous_response_id="resp_none")
