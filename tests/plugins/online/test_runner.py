"""The runner library: which requests are run again, that users never notice, and what the explorer is told."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet_online import ExplicitMarking, Model, Runner, SamplingRate, Selection, ShadowRun, mark
from ajet_online.runner.selection import Context

KEY = "runner-key-0123456789"


class Explorer:
    """A server that answers as an explorer, and keeps what it is sent."""

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("")
        self.calls: list[str] = []
        self.feedback: list[dict[str, Any]] = []
        self.commits = 0
        self.broken = False
        for path, handler in (
            ("/v1/chat/completions", self._chat),
            ("/feedback", self._feedback),
            ("/commit", self._commit),
        ):
            server.expect_request(path, method="POST").respond_with_handler(handler)

    def _chat(self, request: Request) -> Response:
        self.calls.append(request.headers["authorization"].removeprefix("Bearer "))
        return Response(json.dumps({"choices": [{"message": {"role": "assistant", "content": "shadow"}}]}))

    def _feedback(self, request: Request) -> Response:
        if self.broken:
            return Response("", 503)
        assert request.headers["authorization"] == f"Bearer {KEY}"
        self.feedback.append(json.loads(request.data))
        return Response("{}")

    def _commit(self, request: Request) -> Response:
        self.commits += 1
        return Response("{}")


def agent(task: str, model: Model) -> str:
    """The user's agent. Its own model needs no server here."""
    if model.name == "own":
        return f"own {task}"
    headers = {"Authorization": f"Bearer {model.api_key}"}
    reply = httpx2.post(f"{model.base_url}/chat/completions", json={"model": model.name}, headers=headers)
    return str(reply.json()["choices"][0]["message"]["content"])


Make = Callable[..., Runner]


@pytest.fixture
def explorer(httpserver: HTTPServer) -> Explorer:
    return Explorer(httpserver)


@pytest.fixture
def make(explorer: Explorer) -> Iterator[Make]:
    made: list[Runner] = []

    def new(**options: Any) -> Runner:
        usual: dict[str, Any] = {"select": SamplingRate(1.0), "reward": lambda run: 1.0}
        runner = Runner(
            options.pop("agent", agent),
            explorer=explorer.url,
            key=KEY,
            model=Model("http://unused", "unused", "own"),
            **{**usual, **options},
        )
        made.append(runner)
        return runner

    yield new
    for runner in made:
        runner.stop(5)


def test_a_selected_request_is_run_again_and_its_run_is_rated(make: Make, explorer: Explorer) -> None:
    seen: list[ShadowRun] = []

    def reward(run: ShadowRun) -> float:
        seen.append(run)
        return 0.5

    with make(reward=reward) as runner:
        assert runner.run("a task", task_id="task 1") == "own a task"
    assert explorer.calls == [f"{KEY}~task_1.0"]
    assert explorer.feedback == [{"run": "task_1.0", "reward": 0.5, "task_id": "task_1", "run_id": 0}]
    assert explorer.commits == 1
    (run,) = seen
    assert (run.task, run.response, run.original) == ("a task", "shadow", "own a task")
    counts = runner.counts
    assert {n for n, value in counts.items() if value} == {
        "selected",
        "shadow_runs",
        "feedback_sent",
        "commits",
    }


def test_coroutines_too(make: Make, explorer: Explorer) -> None:
    async def asynchronous(task: str, model: Model) -> str:
        return await asyncio.to_thread(agent, task, model)

    async def reward(run: ShadowRun) -> float:
        return 1.0

    with make(agent=asynchronous, reward=reward) as runner:
        assert asyncio.run(runner.arun("x")) == "own x"
    assert len(explorer.calls) == len(explorer.feedback) == 1


def test_runs_of_one_request_form_a_group(make: Make, explorer: Explorer) -> None:
    with make(repeat=4) as runner:
        runner.run("x")
    (task,) = {given["task_id"] for given in explorer.feedback}
    assert sorted(given["run_id"] for given in explorer.feedback) == [0, 1, 2, 3]
    assert sorted(explorer.calls) == [f"{KEY}~{task}.{n}" for n in range(4)]


def test_the_sampling_rate() -> None:
    strategy, context = SamplingRate(0.1, seed=0), Context()
    chosen = sum(strategy.select("t", "r", context).train for _ in range(2000))
    assert 150 < chosen < 250
    with pytest.raises(ValueError, match="from 0 to 1"):
        SamplingRate(1.1)


def test_marked_requests_are_selected_with_their_labels(make: Make, explorer: Explorer) -> None:
    seen: list[ShadowRun] = []

    def marking(task: str, model: Model) -> str:
        if task == "hard":
            mark("hard", "slow", topic="law")
        return agent(task, model)

    with make(agent=marking, select=ExplicitMarking(), reward=seen.append) as runner:
        runner.run("easy")
        runner.run("hard")
        mark("outside of a request")
    (run,) = seen
    assert (run.task, tuple(run.labels), dict(run.metadata)) == ("hard", ("hard", "slow"), {"topic": "law"})
    assert explorer.feedback == [], "no reward, no feedback"


def test_marks_of_concurrent_requests_do_not_mix(make: Make) -> None:
    both = threading.Barrier(2)
    seen: list[ShadowRun] = []

    def marking(task: str, model: Model) -> str:
        if model.name == "own":
            both.wait(10)
            mark(task)
            both.wait(10)
        return task

    with make(agent=marking, select=ExplicitMarking(), reward=seen.append) as runner:
        threads = [threading.Thread(target=runner.run, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted((run.task, tuple(run.labels)) for run in seen) == [("a", ("a",)), ("b", ("b",))]


def test_custom_strategies_and_the_first_that_selects(make: Make) -> None:
    class Long:
        def select(self, task: Any, response: Any, context: Context) -> Selection:
            return Selection(len(task) > 3, "long", ["long"])

    seen: list[ShadowRun] = []
    with make(select=[Long(), ExplicitMarking()], reward=seen.append) as runner:
        for task in ("abc", "abcd"):
            runner.run(task)
    assert [(run.task, run.labels) for run in seen] == [("abcd", ["long"])]


def test_a_blocked_shadow_run_delays_no_request_and_a_full_queue_drops(make: Make) -> None:
    may_go, begun = threading.Event(), threading.Event()

    def blocking(task: str, model: Model) -> str:
        if model.name != "own":
            begun.set()
            may_go.wait(30)
        return task

    runner = make(agent=blocking, pool=1, queue_size=2, reward=lambda run: None)
    runner.start()
    runner.run("0")
    assert begun.wait(10)
    for number in range(1, 6):
        assert runner.run(str(number)) == str(number)
    assert runner.counts["dropped"] == 3
    may_go.set()
    runner.stop()
    assert runner.counts["shadow_runs"] == 3


def test_a_shadow_run_that_takes_too_long_is_given_up(make: Make, explorer: Explorer) -> None:
    async def endless(task: str, model: Model) -> str:
        if model.name != "own":
            await asyncio.Event().wait()
        return task

    with make(agent=endless, timeout=0.05) as runner:
        asyncio.run(runner.arun("x"))
    assert runner.counts["timed_out"] == 1 and explorer.feedback == []


def test_nothing_that_fails_reaches_the_user(
    make: Make, explorer: Explorer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    class Broken:
        def select(self, task: Any, response: Any, context: Context) -> Selection:
            raise KeyError("strategy")

    def fails(task: str, model: Model) -> str:
        if model.name != "own":
            raise RuntimeError("shadow")
        return task

    def no_reward(run: ShadowRun) -> float:
        raise ZeroDivisionError

    for options in ({"select": Broken()}, {"agent": fails}, {"reward": no_reward}):
        with make(**options) as runner:
            assert runner.run("x")
        assert runner.counts["failed"] == 1
    explorer.broken = True
    with make() as runner:
        runner.run("x")
    assert (runner.counts["feedback_failed"], runner.counts["commits"]) == (1, 0)


def test_an_error_of_the_agent_is_the_users_own(make: Make) -> None:
    def fails(task: str, model: Model) -> str:
        raise RuntimeError("the agent's own")

    with make(agent=fails) as runner, pytest.raises(RuntimeError, match="the agent's own"):
        runner.run("x")
    assert runner.counts["selected"] == 0


def test_feedback_is_committed_regularly(make: Make, explorer: Explorer) -> None:
    rated = threading.Event()

    def reward(run: ShadowRun) -> float:
        rated.set()
        return 1.0

    runner = make(reward=reward, commit_interval=0.01)
    with runner:
        runner.run("x")
        assert rated.wait(10)
        while not explorer.commits:
            pass
    assert runner.counts["commits"] == explorer.commits == 1, "nothing new, nothing to commit"
