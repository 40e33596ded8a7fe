"""What AgentScope's Java client sends, request by request, and what it can read.

Its chats have ``Authorization: Bearer dummy``, or the ``trinityApiKey`` of its configuration; its feedback and commits have no header
for a key at all, so the key is in the path of its endpoint. It writes fields without a value as null. Its
JSON reader refuses answers with fields other than ``status`` and ``message``.

Its own `TrinityClient`, compiled with JDK 17 and okhttp 4.12, gave feedback and committed to an explorer, by hand, in November 2026.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet_online.schema import TraceState
from tests.plugins.online.serving import CHAT, Server, user

NULLS = {"task_id": None, "run_id": None, "time_threshold": None}


class Java:
    """The client with an endpoint."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def chat(self, text: str, key: str = "dummy") -> str:
        """The id of a reply."""
        body = {"model": "m", "messages": [user(text)], "stream": False}
        headers = {"Authorization": f"Bearer {key}"}
        reply = httpx.post(f"{self._endpoint}/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    def post(self, path: str, body: Any) -> httpx.Response:
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        return httpx.post(self._endpoint + path, **content)


@pytest.fixture
def url(file: Path) -> str:
    """SQLite is enough here."""
    return f"sqlite:///{file}"


@pytest.fixture
def java(serve: Callable[[], Server]) -> Java:
    return Java(f"{serve().url}/k/{CHAT}")


def readable(answer: httpx.Response) -> bool:
    """Whether the client takes an answer for a success."""
    return (
        answer.status_code == 200
        and answer.json()["status"] == "success"
        and set(answer.json()) <= {"status", "message"}
    )


def test_it_chats_gives_feedback_and_commits(java: Java, store: Any) -> None:
    names = [java.chat("one"), java.chat("two")]
    feedback = {"msg_ids": names, "reward": 0.5, "task_id": "task-1", "run_id": "0"}
    assert readable(java.post("/feedback", feedback))
    assert readable(java.post("/feedback", {**feedback, "reward": 1.0})), "which changes nothing"
    assert readable(java.post("/commit", NULLS))
    found = list(store.all())
    assert {(t.state, t.reward, t.task_id, t.run_id) for t in found} == {
        (TraceState.READY, 0.5, "task-1", "0")
    }
    assert [name.removeprefix("chatcmpl-") for name in names] == [t.id for t in found]


@pytest.mark.parametrize("body", [b"", {}, NULLS], ids=["empty", "{}", "nulls"])
def test_every_empty_commit_commits_everything(java: Java, store: Any, body: Any) -> None:
    name = java.chat("one")
    java.post("/feedback", {"msg_ids": [name], "reward": 1.0, "task_id": "t", "run_id": None})
    assert readable(java.post("/commit", body))
    assert [(t.state, t.run_id) for t in store.all()] == [(TraceState.READY, "0")]


def test_feedback_on_unknown_replies_names_them(java: Java) -> None:
    answer = java.post("/feedback", {"msg_ids": ["nobody"], "reward": 1.0, "task_id": "t", "run_id": "0"})
    assert readable(answer) and answer.json()["message"] == "0 rated, 0 unchanged, 1 unknown: nobody"


WRONG: list[dict[str, Any]] = [
    {"msg_ids": None},
    {"msg_ids": "a"},
    {"msg_ids": [1]},
    {"reward": None},
    {"reward": "1.0"},
    {"reward": True},
    {"task_id": None},
    {"task_id": []},
    {"run_id": {}},
]


def test_missing_and_mistyped_fields_get_400(java: Java) -> None:
    right = {"msg_ids": ["a"], "reward": 1.0, "task_id": "t", "run_id": "0"}
    for wrong in WRONG:
        answer = java.post("/feedback", {**right, **wrong})
        (name,) = wrong
        assert answer.status_code == 400 and name in answer.json()["error"]["message"], wrong


def test_the_key_may_be_its_bearer_but_feedback_needs_it_in_the_path(serve: Callable[[], Server]) -> None:
    java = Java(serve().url)
    name = java.chat("one", key=CHAT)
    feedback = {"msg_ids": [name], "reward": 1.0, "task_id": "t", "run_id": "0"}
    assert java.post("/feedback", feedback).status_code == 401
    assert java.post("/commit", NULLS).status_code == 401


def test_numbers_as_ids_and_paths_with_v1_are_taken_too(serve: Callable[[], Server]) -> None:
    server = serve()
    name = server.post("/v1/chat/completions", {"model": "m", "messages": [user("hi")]}).json()["id"]
    feedback = {"msg_ids": [name], "reward": 0, "task_id": 7, "run_id": 0}
    for path in ("/feedback", "/v1/feedback"):
        assert readable(server.post(path, feedback))
    for path in ("/commit", "/v1/commit"):
        assert readable(server.post(path, {"task_id": "7", "run_id": 0}))
    (found,) = server.store.all()
    assert (found.state, found.reward, found.task_id, found.run_id) == (TraceState.READY, 0.0, "7", "0")
    assert server.get("/v1/models").json()["data"][0]["id"] == "m"
    assert httpx.get(f"{server.url}/health").status_code == 200
