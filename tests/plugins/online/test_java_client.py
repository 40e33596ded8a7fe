"""The requests of AgentScope's Java training extension, on both databases: chat without streaming, a Bearer key, no further headers,
`run_id` as a string, an empty commit."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from ajet_online.schema import State
from tests.plugins.online.serving import Server, user


def test_the_java_client_is_answered_as_it_expects(serve: Callable[[], Server]) -> None:
    """It sends no X headers, a string run id, and an empty commit."""
    server = serve()
    body = {"model": "m", "messages": [user("hi")], "stream": False}
    reply = server.post("/v1/chat/completions", body)
    assert reply.status_code == 200
    name = reply.json()["id"]
    task = {"msg_ids": [name], "reward": 1.0, "task_id": "task-1", "run_id": "0"}
    for path in ("/feedback", "/v1/feedback"):
        answered = server.post(path, task)
        assert (answered.status_code, answered.json()["status"]) == (200, "success")
    for path in ("/commit", "/v1/commit"):
        answered = server.post(path, b"")
        assert (answered.status_code, answered.json()["status"]) == (200, "success")
    (trace,) = server.store.all()
    assert (trace.state, trace.reward, trace.task_id, trace.run_id) == (State.READY, 1.0, "task-1", "0")
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_what_it_may_send_besides(serve: Callable[..., Server]) -> None:
    server = serve()
    name = server.post("/v1/chat/completions", {"model": "m", "messages": [user("hi")]}).json()["id"]
    task = {"msg_ids": [name], "reward": 0, "task_id": 7, "run_id": 0}
    assert server.post("/feedback", task).json()["rated"] == [name]
    for body in (
        {},
        {"task_id": None, "run_id": None, "time_threshold": None},
        {"task_id": "7", "run_id": 0},
    ):
        assert server.post("/commit", body).json()["status"] == "success"
    (trace,) = server.store.all()
    assert (trace.state, trace.task_id, trace.run_id) == (State.READY, "7", "0")
    for missing in ("msg_ids", "reward", "task_id"):
        assert server.post("/feedback", {**task, missing: None}).status_code == 400
    assert server.post("/feedback", {**task, "reward": "high"}).status_code == 400
    assert server.get("/v1/models").json()["data"][0]["id"] == "m"
