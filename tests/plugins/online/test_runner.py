"""The runner: which requests get shadow runs, what becomes of their rewards, and that a user notices none of it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from ajet.types import AjetError, ConfigError
from ajet_online import (
    ExplicitMarking,
    Request,
    Runner,
    SamplingRate,
    Selection,
    ShadowRun,
    in_shadow_run,
    mark,
    marked,
)
from ajet_online.runner import forwarding
from tests.patience import PATIENCE

from .fake_explorer import KEY, PRODUCTION, FakeExplorer, Service, fake_explorer, say

ALL = SamplingRate(1.0)


@pytest.fixture
def explorer() -> Iterator[FakeExplorer]:
    with fake_explorer() as fake:
        yield fake


@pytest.fixture
def runner_of(explorer: FakeExplorer) -> Iterator[Callable[..., Service]]:
    """Make and start a runner, which stops after the test."""
    made: list[Service] = []

    def make(agent: Callable[..., Any] | None = None, **options: Any) -> Service:
        usual: dict[str, Any] = {
            "explorer": explorer.url,
            "key": KEY,
            "select": ALL,
            "reward": lambda run: 1.0,
        }
        runner = Service(agent or explorer.ask, **{**usual, **options})
        made.append(runner)
        runner.start()
        return runner

    yield make
    for runner in made:
        runner.stop(0)


class Gate:
    """An agent whose shadow runs wait until the test lets them go on."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Semaphore(0), threading.Event()
        self.left = threading.Semaphore(0)

    def __call__(self, task: Any) -> str:
        if in_shadow_run():
            self.entered.release()
            assert self.open.wait(PATIENCE)
            self.left.release()
        return "answer"

    def wait_entered(self, runs: int = 1) -> None:
        for _ in range(runs):
            assert self.entered.acquire(timeout=PATIENCE)


def rated(explorer: FakeExplorer) -> list[str]:
    """The tasks that got feedback."""
    return [body["task_id"] for body in explorer.feedback]


def silent(task: Any) -> str:
    """An agent that calls no model."""
    return "answer"


# --------------------------------------------------------------------------- the user's answer


def test_the_user_gets_the_production_models_answer(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    explorer.answer = lambda messages: say(f"about {messages[-1]['content']}")
    runner = runner_of(select=SamplingRate(0.0))
    assert runner.run("cats") == "about cats"
    assert asyncio.run(runner.arun("dogs")) == "about dogs"
    assert [key for key, _ in explorer.calls] == [PRODUCTION, PRODUCTION]
    assert (runner.counts.requests, runner.counts.selected) == (2, 0)


def test_async_agents_answer_too(explorer: FakeExplorer, runner_of: Callable[..., Service]) -> None:
    runner = runner_of(partial(asyncio.to_thread, explorer.ask))
    assert runner.run("a") == asyncio.run(runner.arun("b")) == "hello"
    assert runner.wait(PATIENCE)
    assert runner.counts.feedback_sent == 2


def test_the_agents_exceptions_reach_the_user_and_select_nothing(runner_of: Callable[..., Service]) -> None:
    def failing(task: Any) -> str:
        raise LookupError(task)

    runner = runner_of(failing)
    with pytest.raises(LookupError, match="a"):
        runner.run("a")
    with pytest.raises(LookupError, match="b"):
        asyncio.run(runner.arun("b"))
    assert runner.counts.requests == runner.counts.selected == 0


def test_a_blocked_shadow_run_delays_no_answer(runner_of: Callable[..., Service]) -> None:
    gate = Gate()
    runner = runner_of(gate, pool=1, queue=3)
    assert [runner.run(n) for n in range(10)] == ["answer"] * 10  # while the first shadow run is in progress
    gate.wait_entered()
    assert asyncio.run(runner.arun("b")) == "answer"
    assert runner.counts.feedback_sent == 0
    gate.open.set()


def test_a_runner_that_is_not_started_only_answers(explorer: FakeExplorer) -> None:
    runner = Service(explorer.ask, explorer=explorer.url, key=KEY, reward=lambda run: 1.0)
    assert runner.run("a") == "hello"
    assert runner.wait(0) and runner.counts.requests == 0
    runner.stop()


# --------------------------------------------------------------------------- selection


def test_a_sampling_rate_selects_that_share_and_a_seed_the_same_requests() -> None:
    request = Request("agent", "t", 0.0, False, (), {})

    def selected(rate: float, seed: int) -> list[bool]:
        strategy = SamplingRate(rate, seed=seed)
        return [strategy.select("task", "response", request).train for _ in range(2000)]

    assert 500 < sum(selected(0.3, 1)) < 700
    assert selected(0.3, 1) == selected(0.3, 1) != selected(0.3, 2)
    assert (sum(selected(0.0, 1)), sum(selected(1.0, 1))) == (0, 2000)


def test_marked_requests_are_selected_with_their_labels(runner_of: Callable[..., Service]) -> None:
    runs: list[ShadowRun] = []

    def agent(task: str) -> str:
        if task == "hard":
            mark("long", "maths", level=1)
            mark("maths", level=2)
        return task

    runner = runner_of(agent, select=ExplicitMarking(), reward=runs.append)
    runner.run("easy")
    runner.run("hard")
    assert runner.wait(PATIENCE)
    (run,) = runs
    assert (run.task, run.labels, run.metadata) == ("hard", ("long", "maths"), {"level": 2})


def test_marks_of_concurrent_requests_do_not_mix(runner_of: Callable[..., Service]) -> None:
    runs: list[ShadowRun] = []
    meeting = threading.Barrier(8)

    def agent(task: int) -> int:
        if not in_shadow_run():
            meeting.wait(PATIENCE)
            with ThreadPoolExecutor() as threads:  # a thread with a copy of the context
                threads.submit(contextvars.copy_context().run, mark, f"thread {task}").result()
            mark(f"own {task}")
            meeting.wait(PATIENCE)
        return task

    async def in_task(task: int) -> int:
        if not in_shadow_run():
            await asyncio.gather(asyncio.to_thread(mark, f"thread {task}"), asyncio.sleep(0))
            await asyncio.create_task(mark_later(f"own {task}"))
        return task

    async def mark_later(label: str) -> None:
        await asyncio.sleep(0)
        mark(label)

    runner = runner_of(agent, select=ExplicitMarking(), reward=runs.append)
    with ThreadPoolExecutor(8) as requests:
        list(requests.map(runner.run, range(8)))
    other = runner_of(in_task, select=ExplicitMarking(), reward=runs.append)

    async def many() -> None:
        await asyncio.gather(*(other.arun(task) for task in range(8, 16)))

    asyncio.run(many())
    assert runner.wait(PATIENCE) and other.wait(PATIENCE)
    assert sorted((run.task, run.labels) for run in runs) == [
        (n, (f"thread {n}", f"own {n}")) for n in range(16)
    ]


def test_a_block_marks_the_calls_in_it(runner_of: Callable[..., Service]) -> None:
    runs: list[ShadowRun] = []

    def agent(task: str) -> str:
        with marked("inside"):
            mark(task)
        return "answer"

    async def handler() -> None:
        with marked("important", user=7), marked("long"):
            in_thread: Any = asyncio.to_thread(runner.run, "a")
            await asyncio.gather(in_thread, runner.arun("b"))
            await asyncio.create_task(runner.arun("c"))

    runner = runner_of(agent, select=ExplicitMarking(), reward=runs.append)
    asyncio.run(handler())
    assert runner.wait(PATIENCE)
    assert sorted((run.labels, dict(run.metadata)) for run in runs) == [
        (("important", "long", "inside", task), {"user": 7}) for task in "abc"
    ]


def test_a_mark_never_reaches_the_next_request_of_its_thread(
    runner_of: Callable[..., Service], caplog: pytest.LogCaptureFixture
) -> None:
    seen: dict[str, Any] = {}

    def select(task: str, response: Any, context: Request) -> Selection:
        seen[task] = dict(context.metadata)
        return Selection(False)

    runner = runner_of(silent, select=select)

    def request(user: str) -> None:
        with marked(user=user):
            runner.run(user)
            in_block = contextvars.copy_context()  # as a task has that goes on
        in_block.run(runner.run, f"after {user}")
        mark("too late", late=user)

    with ThreadPoolExecutor(1) as server:
        for task in (partial(request, "alice"), partial(mark, late="carol"), partial(runner.run, "bob")):
            server.submit(task).result()
    assert seen == {"alice": {"user": "alice"}, "after alice": {}, "bob": {}}
    assert "mark(...) is in no watched call" in caplog.text


def test_of_several_strategies_the_first_that_selects_wins(runner_of: Callable[..., Service]) -> None:
    runs: list[ShadowRun] = []

    class Long:
        def select(self, task: str, response: Any, context: Request) -> Selection:
            return Selection(len(task) > 3, "long", ["long"], {"by": "object", "size": len(task)})

    def every(task: str, response: Any, context: Request) -> Selection:
        return Selection(task != "no", "every", ["every"], {"by": "function", "answer": response})

    def agent(task: str) -> str:
        mark("said", by="agent")
        return task.upper()

    runner = runner_of(agent, select=[Long(), every], reward=runs.append)
    for task in ("long task", "abc", "no"):
        runner.run(task)
    assert runner.wait(PATIENCE)
    assert sorted((run.task, run.labels, dict(run.metadata)) for run in runs) == [
        ("abc", ("said", "every"), {"by": "function", "answer": "ABC"}),
        ("long task", ("said", "long"), {"by": "object", "size": 9}),
    ]


def test_a_strategy_that_fails_selects_nothing(
    runner_of: Callable[..., Service], caplog: pytest.LogCaptureFixture
) -> None:
    for select, problem in (
        (lambda *_: 1 / 0, "division by zero"),
        (lambda *_: True, "instead of a Selection"),
    ):
        runner = runner_of(silent, select=select)
        assert runner.run("a") == "answer"
        assert (runner.counts.failed, runner.counts.selected) == (1, 0)
        assert problem in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"select": SamplingRate}, "expected a strategy"),
        ({"select": 0.1}, "expected a strategy"),
        ({"select": "all"}, "expected a strategy"),
        ({"select": lambda task: Selection(True)}, "cannot be called with a task, a response and a Request"),
        ({"repeat": 0}, "repeat=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"repeat": 5, "queue": 4}, "the queue has room for 4"),
        ({"explorer": "127.0.0.1:8000"}, "expected a URL"),
        ({"key": ""}, "expected the explorer's API key"),
        ({"read_only": "search"}, "expected several names"),
    ],
)
def test_arguments_that_cannot_work_are_named(options: dict[str, Any], problem: str) -> None:
    usual: dict[str, Any] = {"explorer": "http://127.0.0.1:1", "key": KEY}
    with pytest.raises(ConfigError, match=problem):
        Runner(**{**usual, "reward": lambda run: 1.0, **options})
    with pytest.raises(ConfigError, match="between 0 and 1"):
        SamplingRate(10)


# --------------------------------------------------------------------------- shadow runs


def test_a_shadow_run_calls_the_explorer_with_a_key_that_names_the_run(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    runner = runner_of(repeat=3)
    runner.run("cats")
    assert runner.wait(PATIENCE)
    task = explorer.feedback[0]["task_id"]
    assert sorted(name for name, _ in explorer.shadow_calls()) == [f"{task}.{n}" for n in range(3)]
    assert sorted(sorted(body.items()) for body in explorer.feedback) == [
        [("reward", 1.0), ("run", f"{task}.{n}"), ("run_id", n), ("task_id", task)] for n in range(3)
    ]
    assert (runner.counts.selected, runner.counts.shadow_runs, runner.counts.feedback_sent) == (1, 3, 3)


def test_task_ids_are_unique(explorer: FakeExplorer, runner_of: Callable[..., Service]) -> None:
    runner = runner_of()
    for _ in range(5):
        runner.run("same")
    assert runner.wait(PATIENCE)
    assert len({body["task_id"] for body in explorer.feedback}) == 5


def test_each_shadow_run_gets_the_task_as_it_was(runner_of: Callable[..., Service]) -> None:
    seen: list[list[str]] = []

    def agent(task: list[str]) -> str:
        if in_shadow_run():
            seen.append([*task])
        task.append("changed")
        return "answer"

    runner = runner_of(agent, repeat=2, reward=lambda run: seen.append(run.task))
    runner.run(["question"])
    assert runner.wait(PATIENCE)
    assert seen == [["question"]] * 4


def test_a_task_that_cannot_be_copied_is_answered_and_counted(
    runner_of: Callable[..., Service], caplog: pytest.LogCaptureFixture
) -> None:
    runner = runner_of(silent)
    assert runner.run({"lock": threading.Lock()}) == "answer"
    assert (runner.counts.failed, runner.counts.shadow_runs) == (1, 0)
    assert "cannot be copied" in caplog.text


def test_a_shadow_run_has_a_context_of_its_own(runner_of: Callable[..., Service]) -> None:
    """What the request's context holds, such as a database session or a stream to the user, is not the shadow run's."""
    session: ContextVar[str] = ContextVar("session", default="none")
    seen: list[tuple[bool, str]] = []

    def agent(task: Any) -> str:
        seen.append((in_shadow_run(), session.get()))
        session.set("left behind")
        mark("ignored in shadow runs")
        return "answer"

    runner = runner_of(agent, pool=1, reward=lambda run: seen.append((in_shadow_run(), session.get())))
    session.set("of the request")
    runner.run("a")
    assert runner.wait(PATIENCE)
    assert seen == [(False, "of the request"), (True, "none"), (False, "none")]


def test_a_watched_call_inside_another_one_is_a_part_of_it(runner_of: Callable[..., Service]) -> None:
    inner = runner_of(silent)

    def agent(task: Any) -> str:
        return str(inner.run(task))

    outer = runner_of(agent)
    outer.run("a")
    assert outer.wait(PATIENCE) and inner.wait(PATIENCE)
    assert (outer.counts.shadow_runs, inner.counts.requests) == (1, 0)


def test_threads_of_a_shadow_run_belong_to_it(runner_of: Callable[..., Service]) -> None:
    seen: list[bool] = []
    pool = ThreadPoolExecutor(1)  # shared with other requests

    def look() -> None:
        seen.append(in_shadow_run())

    def agent(task: Any) -> str:
        pool.submit(look).result()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        asyncio.run(in_executor())
        return "answer"

    async def in_executor() -> None:
        await asyncio.get_running_loop().run_in_executor(None, look)

    runner = runner_of(agent)
    runner.run("a")
    assert runner.wait(PATIENCE)
    pool.submit(look).result()
    pool.shutdown()
    assert seen == [False] * 3 + [True] * 3 + [False]


def test_calls_of_shadow_runs_that_start_together_share_one_thread(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    forwarding._forget()  # as if none had made a call before
    meeting, before = threading.Barrier(8), set(threading.enumerate())

    def agent(task: Any) -> str:
        if in_shadow_run():
            meeting.wait(PATIENCE)
        return explorer.ask(task)

    runner = runner_of(agent, repeat=8, pool=8)
    runner.run("a")
    assert runner.wait(PATIENCE)
    assert (runner.counts.failed, runner.counts.feedback_sent) == (0, 8)
    made = [thread.name for thread in set(threading.enumerate()) - before]
    assert made.count("ajet-engine") == 1


# --------------------------------------------------------------------------- the pool


def test_what_the_queue_has_no_room_for_is_dropped_as_a_group(runner_of: Callable[..., Service]) -> None:
    gate = Gate()
    runner = runner_of(gate, pool=2, queue=3, repeat=2)
    runner.run("runs")
    gate.wait_entered(2)
    runner.run("waits")
    runner.run("dropped, as only one place is left")
    assert (runner.counts.selected, runner.counts.shadow_runs, runner.counts.dropped) == (3, 2, 2)
    gate.open.set()
    assert runner.wait(PATIENCE)
    assert runner.counts.shadow_runs == 4


def test_at_most_pool_shadow_runs_run_at_once(runner_of: Callable[..., Service]) -> None:
    lock, running, most = threading.Lock(), 0, 0
    full = threading.Barrier(3)

    def agent(task: Any) -> str:
        nonlocal running, most
        if in_shadow_run():
            with lock:
                running += 1
                most = max(most, running)
            full.wait(PATIENCE)  # until three run
            with lock:
                running -= 1
            full.wait(PATIENCE)
        return "answer"

    runner = runner_of(agent, pool=3)
    for task in range(12):
        runner.run(task)
    assert runner.wait(PATIENCE)
    assert (most, runner.counts.shadow_runs, runner.counts.failed) == (3, 12, 0)


def test_a_shadow_run_that_takes_too_long_is_abandoned_and_another_thread_goes_on(
    runner_of: Callable[..., Service],
) -> None:
    gate, rewarded = Gate(), list[str]()

    def agent(task: str) -> str:
        return gate(task) if task == "blocks" else "answer"

    runner = runner_of(agent, pool=1, timeout=0.3, reward=lambda run: rewarded.append(run.task))
    runner.run("blocks")
    gate.wait_entered()
    assert runner.wait(PATIENCE)
    assert (runner.counts.timed_out, runner.counts.failed) == (1, 0)
    runner.run("next")
    assert runner.wait(PATIENCE)
    gate.open.set()
    assert gate.left.acquire(timeout=PATIENCE)
    runner.stop()
    assert runner.counts.timed_out == 1 and rewarded == ["next"]


def test_threads_that_hang_are_at_most_twice_the_pool(runner_of: Callable[..., Service]) -> None:
    gate = Gate()
    runner = runner_of(gate, pool=2, queue=4, timeout=0.05)
    for task in range(4):
        runner.run(task)
    gate.wait_entered(4)  # two were abandoned
    assert not gate.entered.acquire(blocking=False)
    for task in range(5):
        runner.run(task)
    assert runner.counts.shadow_runs == 4 and runner.counts.dropped == 1
    gate.open.set()
    assert runner.wait(PATIENCE)
    assert runner.counts.shadow_runs == 8


def test_an_async_agent_that_takes_too_long_is_cancelled(runner_of: Callable[..., Service]) -> None:
    cancelled = threading.Event()

    async def agent(task: Any) -> str:
        if in_shadow_run():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
        return "answer"

    runner = runner_of(agent, timeout=0.05)
    runner.run("a")
    assert cancelled.wait(PATIENCE) and runner.wait(PATIENCE)
    assert (runner.counts.timed_out, runner.counts.failed) == (1, 0)


def test_async_shadow_runs_share_a_loop_until_one_blocks_it(runner_of: Callable[..., Service]) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    entered, unblock = threading.Event(), threading.Event()

    async def agent(task: str) -> str:
        if in_shadow_run():
            loops.append(asyncio.get_running_loop())
            if task == "blocks":
                entered.set()
                unblock.wait(PATIENCE)
        return "answer"

    runner = runner_of(agent, timeout=0.3, reward=lambda run: None)
    for task in ("a", "b", "blocks"):
        runner.run(task)
        assert runner.wait(PATIENCE)
    assert entered.is_set() and runner.counts.timed_out == 1
    runner.run("c")
    assert runner.wait(PATIENCE)
    unblock.set()
    assert loops[0] is loops[1] is loops[2] is not loops[3]
    assert (runner.counts.timed_out, runner.counts.failed) == (1, 0)


# --------------------------------------------------------------------------- rewards


def test_the_reward_calculator_sees_the_run(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    explorer.answer = lambda messages: say("shadow" if len(explorer.calls) > 1 else "production")
    runs: list[ShadowRun] = []

    async def reward(run: ShadowRun) -> float:
        runs.append(run)
        return 0.25

    runner = runner_of(reward=reward)
    assert runner.run("cats") == "production"
    assert runner.wait(PATIENCE)
    (run,) = runs
    assert (run.task, run.response, run.error, run.refused_tools) == ("cats", "shadow", None, ())
    assert (run.task_id, run.run_id) == (explorer.feedback[0]["task_id"], 0) and run.seconds > 0
    assert explorer.feedback[0]["reward"] == 0.25


def test_no_reward_is_no_feedback(explorer: FakeExplorer, runner_of: Callable[..., Service]) -> None:
    runner = runner_of(reward=lambda run: None)
    runner.run("a")
    runner.stop()
    assert explorer.feedback == explorer.commits == []
    assert runner.counts.shadow_runs == 1 and runner.counts.failed == 0


@pytest.mark.parametrize("reward", [lambda run: 1 / 0, lambda run: float("nan"), lambda run: "good"])
def test_a_reward_that_fails_is_counted(
    reward: Callable[[ShadowRun], Any], explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    runner = runner_of(reward=reward)
    assert runner.run("a") == "hello"
    assert runner.wait(PATIENCE)
    assert runner.counts.failed == 1 and explorer.feedback == []


def test_a_shadow_run_that_raises_is_counted_and_may_be_rewarded(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    def agent(task: Any) -> str:
        answer = explorer.ask(task)
        if in_shadow_run():
            raise SystemExit("of the shadow run")
        return answer

    runner = runner_of(agent, reward=lambda run: -1.0 if isinstance(run.error, SystemExit) else 1.0)
    assert runner.run("a") == "hello"
    assert runner.wait(PATIENCE)
    assert (runner.counts.failed, runner.counts.feedback_sent) == (1, 1)
    assert explorer.feedback[0]["reward"] == -1.0


@pytest.mark.whole
def test_an_explorer_that_is_not_there_or_fails_is_counted(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    explorer.status["/feedback"] = 503
    runner = runner_of()
    assert runner.run("a") == "hello"
    assert runner.wait(PATIENCE)
    assert (runner.counts.feedback_failed, runner.counts.failed) == (1, 0)

    gone = runner_of(explorer="http://127.0.0.1:1")
    assert gone.run("a") == "hello"
    gone.stop(PATIENCE)
    assert (gone.counts.failed, gone.counts.feedback_failed, gone.counts.commits) == (1, 1, 0)

    both = runner_of(explorer="http://127.0.0.1:1", reward=lambda run: float(len(run.response)))
    both.run("a")
    assert both.wait(PATIENCE)
    assert both.counts.failed == 1  # a run counts once


def test_feedback_on_a_run_without_replies_is_a_failure(
    runner_of: Callable[..., Service], caplog: pytest.LogCaptureFixture
) -> None:
    runner = runner_of(silent)
    runner.run("a")
    assert runner.wait(PATIENCE)
    assert (runner.counts.feedback_sent, runner.counts.feedback_failed) == (0, 1)
    assert "has made no LLM call over HTTP" in caplog.text


# --------------------------------------------------------------------------- commits


def test_rated_tasks_are_committed_regularly(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    runner = runner_of(commit_interval=0.01)
    for number in (1, 2):
        runner.run("a")
        explorer.wait_for(lambda: len(explorer.commits) == number)  # noqa: B023 - called at once
    assert [body["task_id"] for body in explorer.commits] == rated(explorer)


@pytest.mark.whole
def test_stop_waits_for_shadow_runs_and_commits(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    runner = runner_of(repeat=4, pool=2)
    for _ in range(5):
        runner.run("a")
    runner.stop()
    assert sorted(body["task_id"] for body in explorer.commits) == sorted(set(rated(explorer)))
    assert (runner.counts.feedback_sent, runner.counts.commits) == (20, 5)
    runner.run("not selected any more")
    assert runner.counts.requests == 5


def test_a_task_is_committed_when_all_of_its_runs_have_ended(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    """Otherwise trainers would see a part of its group."""
    second = threading.Event()

    def reward(run: ShadowRun) -> float:
        assert run.run_id == 0 or second.wait(PATIENCE)
        return 1.0

    runner = runner_of(repeat=2, reward=reward, commit_interval=0.01)
    runner.run("a")
    explorer.wait_for(lambda: explorer.feedback)
    (group,) = rated(explorer)
    runner.run("b")
    second.set()
    explorer.wait_for(lambda: {"task_id": group} in explorer.commits)
    assert [name for name in explorer.order if name.startswith(group)] == [f"{group}.0", f"{group}.1", group]


def test_a_task_is_committed_also_if_some_of_its_runs_have_failed(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    runner = runner_of(repeat=3, reward=lambda run: 1 / run.run_id)
    runner.run("a")
    runner.stop()
    assert (runner.counts.failed, runner.counts.feedback_sent) == (1, 2)
    assert explorer.commits == [{"task_id": rated(explorer)[0]}]


def test_a_commit_that_fails_is_tried_again(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    explorer.status["/commit"] = 503
    runner = runner_of(commit_interval=0.01)
    runner.run("a")
    explorer.wait_for(lambda: runner.counts.commits_failed)
    explorer.status.clear()
    explorer.wait_for(lambda: explorer.commits)
    assert explorer.commits == [{"task_id": rated(explorer)[0]}]


def test_stop_is_bounded_and_abandons_what_hangs(
    explorer: FakeExplorer, runner_of: Callable[..., Service]
) -> None:
    gate = Gate()
    runner = runner_of(gate, pool=1)
    for task in ("runs", "waits"):
        runner.run(task)
    gate.wait_entered()
    runner.stop(0)
    assert (runner.counts.timed_out, runner.counts.dropped) == (1, 1)
    gate.open.set()


def test_a_runner_can_be_started_again(explorer: FakeExplorer, runner_of: Callable[..., Service]) -> None:
    runner = runner_of()
    with pytest.raises(AjetError, match="started already"):
        runner.start()
    runner.run("a")
    runner.stop()
    with runner:
        runner.run("b")
    assert runner.counts.feedback_sent == 2


@pytest.mark.whole
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_answers_and_starts_its_own(explorer: FakeExplorer) -> None:
    """As servers with several processes do; in a process of its own, as threads of this one may hold locks."""
    program = f"""
import os
from ajet_online import Runner, SamplingRate

runner = Runner(explorer="http://127.0.0.1:1", key="k", select=SamplingRate(1.0), reward=lambda run: None)
run = runner.watch(lambda task: "answer")
runner.start()
run("a")
runner.wait({PATIENCE})
if not os.fork():
    assert run("b") == "answer" and runner.counts.requests == 1
    with runner:
        run("c")
    assert runner.counts.shadow_runs == 1, runner.counts
    os._exit(0)
status = os.wait()[1]
runner.stop()
print(status, runner.counts.shadow_runs)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "0 1\n", done.stderr


@pytest.mark.whole
def test_importing_the_package_imports_no_client() -> None:
    heavy = ["httpx", "openai", "torch", "sqlalchemy", "langchain_core", "agentscope", "agents"]
    program = f"import sys, ajet_online; print([name for name in {heavy} if name in sys.modules])"
    check = partial(subprocess.run, capture_output=True, text=True, timeout=PATIENCE)
    assert check([sys.executable, "-c", program]).stdout == "[]\n"
    program = f"import sys; from ajet_online import Runner; print([name for name in {heavy[1:]} if name in sys.modules])"
    assert check([sys.executable, "-c", program]).stdout == "[]\n"
