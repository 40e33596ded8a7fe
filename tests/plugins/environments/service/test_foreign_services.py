"""Services that were not written with our toolkit: what they may do otherwise, and what is an error in a line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet.environments import EnvironmentFailed, environment, task_ids

STATE = {"state": [{"role": "user", "content": "Go on."}], "reward": 0, "is_terminated": False, "info": {}}
SAID = {"role": "assistant", "content": "go"}


class Foreign:
    """Answers each path with a body of its own, and keeps what it was asked; bytes are sent as they are, anything else as
    the data of a success."""

    def __init__(self, server: HTTPServer, answers: dict[str, Any]) -> None:
        defaults = {"create": STATE, "step": STATE, "evaluate": 1.0, "release": True}
        self.answers = {f"/{path}": answer for path, answer in {**defaults, **answers}.items()}
        self.asked: list[tuple[str, Any]] = []
        self.url = server.url_for("").rstrip("/")
        server.clear()
        server.expect_request(re.compile("/.*"), method="POST").respond_with_handler(self.answer)

    def answer(self, request: Request) -> Response:
        self.asked.append((request.path, request.get_json()))
        answer = self.answers[request.path]
        return Response(
            answer if isinstance(answer, bytes) else json.dumps({"success": True, "data": answer})
        )


@pytest.fixture
def foreign(httpserver: HTTPServer) -> Callable[..., Foreign]:
    """Starts a service; it replaces the one before it."""
    return lambda **answers: Foreign(httpserver, answers)


def episode(service: Foreign) -> Any:
    with environment(url=service.url, env_type="any", task_id="1") as env:
        env.step(SAID)
    return env


def test_one_message_may_stand_for_a_list_and_a_service_may_name_its_instances(
    foreign: Callable[..., Foreign],
) -> None:
    named = {**STATE, "info": {"instance_id": "theirs"}}
    service = foreign(create=named, step={**STATE, "state": STATE["state"][0]})  # type: ignore[index]
    env = episode(service)
    assert env.state.messages == tuple(STATE["state"]) and env.score == 1.0  # type: ignore[arg-type]
    assert [path for path, _ in service.asked] == ["/create", "/step", "/evaluate", "/release"]
    assert {asked["instance_id"] for _, asked in service.asked[1:]} == {"theirs"}


def test_tasks_may_be_listed_by_split(foreign: Callable[..., Foreign]) -> None:
    service = foreign(get_env_profile={"train": [1, 2], "test": []})
    assert task_ids(service.url, "any", "train") == ["1", "2"]
    with pytest.raises(EnvironmentFailed, match="any has no split 'dev'; it has 'train', 'test'"):
        task_ids(service.url, "any", "dev")
    service = foreign(get_env_profile="1, 2")
    with pytest.raises(EnvironmentFailed, match="not a list of task"):
        task_ids(service.url, "any", "train")


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ({"create": None}, "/create: not a state"),
        ({"create": {"reward": 1}}, "/create: not a state"),
        ({"create": {"state": ["Go on."]}}, r"/create: not a state \(its messages are not objects\)"),
        ({"step": {**STATE, "reward": "much"}}, "/step: not a state"),
        ({"step": {**STATE, "info": [1]}}, "/step: not a state"),
        ({"step": b"<html>"}, "/step: HTTP 200: <html>"),
        ({"step": b'{"success": false, "error": "no such move"}'}, "/step: HTTP 200: no such move"),
        ({"evaluate": "good"}, "/evaluate: not a score: good"),
        ({"evaluate": True}, "/evaluate: not a score: True"),
        ({"evaluate": None}, "/evaluate: not a score: None"),
    ],
)
def test_what_is_no_answer_is_named_with_its_place_and_the_instance_released(
    foreign: Callable[..., Foreign], answers: dict[str, Any], fault: str
) -> None:
    service = foreign(**answers)
    with pytest.raises(EnvironmentFailed, match=fault) as raised:
        episode(service)
    assert "\n" not in str(raised.value) and str(raised.value).startswith(service.url)
    assert [path for path, _ in service.asked].count("/release") == 1
