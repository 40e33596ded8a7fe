"""The environment-service protocol: both sides of it over real HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx2
import pytest

from ajet import Task
from ajet.environments import EnvironmentFailed, environment, serving, task_ids

from .conftest import IDLE_SECONDS, Counting, health, settled

SAID = {"role": "assistant", "content": "go"}


def opened(url: str, task_id: str = "2", env_type: str = "counting", **params: Any) -> Any:
    return environment(url=url, env_type=env_type, task_id=task_id, params=params)


@pytest.mark.parametrize("env_type", ["counting", "async_counting"])
def test_an_episode_from_a_synchronous_workflow(url: str, env_type: str) -> None:
    with opened(url, env_type=env_type) as env:
        assert env.state.messages == ({"role": "user", "content": "Count to 2."},)
        first = env.step(SAID)
        assert (first.reward, first.is_terminated, first.info["count"]) == (1.0, False, 1)
        assert env.info(more=1) == {"count": 1, "more": 1}
        assert env.step(SAID).is_terminated and env.state.messages[0]["content"] == "go: 2"
        assert env.score is None
    assert env.score == 1.0
    found = health(url)
    assert (found["created"], found["released"], found["open"], found["expired"]) == (1, 1, 0, 0)


async def episode(url: str, env_type: str) -> Any:
    async with opened(url, env_type=env_type) as env:
        await env.step(SAID)
        assert (await env.info())["count"] == 1
        assert await env.evaluate() == 0.5
    return env.score


@pytest.mark.parametrize("env_type", ["counting", "async_counting"])
def test_an_episode_from_an_asynchronous_workflow(url: str, env_type: str) -> None:
    assert asyncio.run(episode(url, env_type)) == 0.5
    assert health(url)["released"] == 1


@pytest.mark.whole
def test_many_episodes_at_once_do_not_wait_for_each_other(url: str) -> None:
    Counting.meeting = threading.Barrier(30)

    async def meets() -> None:
        async with opened(url, does={"step": "meet"}) as env:
            await env.step(SAID)

    async def all_of_them() -> None:
        await asyncio.gather(*(meets() for _ in range(30)))

    asyncio.run(all_of_them())
    assert settled(url, 30)["released"] == 30


def test_a_task_of_the_reader_says_what_to_open(url: str) -> None:
    about = {"url": url, "env_type": "counting", "task_id": "3", "params": {}}
    with environment(Task("t", metadata={"environment": about})) as env:
        assert env.state.messages[0]["content"] == "Count to 3."
    with environment(Task("t", metadata={"environment": about}), task_id="4") as env:
        assert env.state.messages[0]["content"] == "Count to 4."
    with pytest.raises(ValueError, match="env_type, task_id is missing"):
        environment(Task("t"), url=url)


def test_the_tasks_of_a_split(url: str) -> None:
    assert task_ids(url, "counting", "train") == ["1", "2", "3"]
    with pytest.raises(EnvironmentFailed, match="HTTP 404: test"):
        task_ids(url, "counting", "test")
    with pytest.raises(EnvironmentFailed, match=r"HTTP 404: no env_type 'other'; there are counting"):
        task_ids(url, "other", "train")


@pytest.mark.parametrize("method", ["init", "start", "step", "evaluate"])
def test_an_environment_that_breaks_is_released_and_says_why(url: str, method: str) -> None:
    def workflow() -> None:
        with opened(url, does={method: "raise"}) as env:
            env.step(SAID)

    with pytest.raises(EnvironmentFailed, match=f"HTTP 500: ValueError: {method} broke"):
        workflow()
    found = settled(url, 1)
    assert (found["created"], found["released"]) == (1, 1)


def test_an_environment_that_breaks_while_it_closes_is_released(url: str) -> None:
    with opened(url, does={"close": "raise"}):
        pass
    assert health(url)["released"] == 1


def test_a_workflow_that_breaks_gets_no_score_and_releases(url: str) -> None:
    with pytest.raises(KeyError), opened(url) as env:
        raise KeyError
    assert env.score is None and health(url)["released"] == 1


def test_after_the_release_nothing_can_be_asked(url: str) -> None:
    with opened(url) as env:
        pass
    with pytest.raises(EnvironmentFailed, match="released because its block has ended"):
        env.step(SAID)


def post(url: str, path: str, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{url}{path}", json=body)


def test_the_protocol_as_it_stands_on_the_wire(url: str) -> None:
    about = {"env_type": "counting", "task_id": "2", "instance_id": "mine"}
    assert post(url, "/get_env_profile", env_type="counting", params={"split": "train"}).json() == {
        "success": True,
        "data": [1, 2, 3],
    }
    made = post(url, "/create", **about).json()["data"]
    assert made == {
        "state": [{"role": "user", "content": "Count to 2."}],
        "reward": 0.0,
        "is_terminated": False,
        "info": {"instance_id": "mine", "task_id": "2"},
    }
    assert post(url, "/step", **about, messages=[SAID]).json()["data"]["info"] == {"count": 1}
    assert post(url, "/evaluate", **about).json() == {"success": True, "data": 0.5}
    assert post(url, "/release", **about).json() == {"success": True, "data": True}
    assert post(url, "/release", **about).json() == {"success": True, "data": False}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/create", {"env_type": "counting"}, 400, "`task_id` is missing"),
        ("/create", {"env_type": "counting", "task_id": 1, "params": [1]}, 400, "`params` must be an object"),
        ("/step", {"instance_id": "none"}, 404, "no instance 'none'"),
        ("/elsewhere", {}, 404, "no such path"),
    ],
)
def test_wrong_requests_are_refused_with_the_reason(
    url: str, path: str, body: Any, status: int, message: str
) -> None:
    response = post(url, path, **body)
    assert response.status_code == status and message in response.json()["error"]
    headers = {"content-type": "application/json"}
    assert httpx2.post(f"{url}/step", content=b"{no json", headers=headers).status_code == 400


def test_a_release_that_overtakes_its_creation_wins(url: str) -> None:
    post(url, "/release", env_type="counting", instance_id="x")
    late = post(url, "/create", env_type="counting", task_id="1", instance_id="x")
    assert late.status_code == 409 and health(url)["created"] == 0


@pytest.mark.whole
def test_a_release_during_the_creation_waits_for_it(url: str) -> None:
    body = {"env_type": "counting", "task_id": "1", "instance_id": "x", "params": {"does": {"start": 0.5}}}
    creating = threading.Thread(target=lambda: post(url, "/create", **body))
    creating.start()
    while not health(url)["open"]:
        time.sleep(0.01)
    assert post(url, "/release", **body).json()["data"] is True
    creating.join()
    found = health(url)
    assert (found["created"], found["released"], found["open"]) == (1, 1, 0)


@pytest.mark.whole
def test_an_instance_that_nobody_asks_for_expires(impatient: str) -> None:
    post(impatient, "/create", env_type="counting", task_id="1", instance_id="forgotten")
    found = settled(impatient, 1)
    assert (found["created"], found["released"], found["expired"]) == (1, 1, 1)


@pytest.mark.whole
def test_a_step_that_is_longer_than_the_idle_time_does_not_expire(impatient: str) -> None:
    with opened(impatient, does={"step": IDLE_SECONDS + 1.0}) as env:
        env.step(SAID)
    assert health(impatient)["expired"] == 0 and env.score == 0.5


@pytest.mark.whole
def test_a_service_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Counting) as url:
        pass
    with (
        pytest.raises(EnvironmentFailed, match=r"/create: ConnectError: .* Is the service running\?"),
        opened(url),
    ):
        pass
    assert "was not released" in caplog.text


def test_the_end_of_a_service_releases_what_is_open() -> None:
    closed = []

    class Closing(Counting):
        env_type = "closing"

        def close(self) -> None:
            closed.append(self.task_id)

    with serving(Closing) as url:
        post(url, "/create", env_type="closing", task_id="7")
    assert closed == ["7"]
