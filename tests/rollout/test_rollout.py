"""Episodes at once: failures by cause, retries, deadlines, judging, and who waits for whom."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import openai
import pytest

from ajet.interfaces.judge import FunctionJudge, GroupJudge, Judge
from ajet.rollout.episode import Plan
from ajet.rollout.summary import failures, summarize
from ajet.testing import ScriptedEngine
from ajet.types import ContractBroken, JudgeOutput, Task
from tests.engines import Meeting, Waiting

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)


async def ask(text: str = "hi") -> str:
    answer = await CLIENT.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content or ""


async def asks_once(task: Any) -> str:
    return await ask(task.query)


def echo(request: Any, prompt: str) -> str:
    return prompt.split("question ")[-1].split("<")[0]


def test_episodes_run_at_once_each_with_its_own_calls(bench, tokenizer) -> None:
    episodes = bench(Meeting(tokenizer, echo, parties=20)).run(asks_once, tasks=20)
    assert [e.output.response for e in episodes] == [str(i) for i in range(20)]
    assert all(len(e.record.calls) == 1 for e in episodes)


def test_sync_workflows_run_in_threads_at_once(bench, tokenizer) -> None:
    sync = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

    def agent(task: Any) -> str:
        answer = sync.chat.completions.create(model="m", messages=[{"role": "user", "content": task.query}])
        return answer.choices[0].message.content or ""

    episodes = bench(Meeting(tokenizer, echo, parties=20)).run(agent, tasks=20)
    assert [e.output.response for e in episodes] == [str(i) for i in range(20)]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("is_async", [True, False])
def test_a_workflow_that_returns_a_coroutine_is_told_to_await_it(bench, tokenizer, is_async: bool) -> None:
    async def forgets(task: Any) -> Any:
        return ask(task.query)

    agent = forgets if is_async else lambda task: forgets(task)
    (episode,) = bench(ScriptedEngine(tokenizer, echo)).run(agent, tasks=1)
    assert episode.failure == "workflow:returned_coroutine"
    assert "returned the coroutine ask, which never ran: write `return await ask(…)`" in episode.error


def test_failures_are_counted_by_cause_and_end_nothing(bench, tokenizer) -> None:
    async def flaky(task: Any) -> Any:
        if task.id == "t1":
            raise KeyError("lost")
        if task.id == "t2":
            await asyncio.sleep(60)
        if task.id == "t3":
            return "no call at all"
        return await ask(task.query)

    def judge(task: Any, output: Any) -> float:
        return 1 / 0 if task.id == "t4" else float("nan") if task.id == "t5" else 1.0

    episodes = bench(ScriptedEngine(tokenizer, echo)).run(flaky, judge, tasks=7, deadlines={"t2": 0.5})
    assert failures(episodes) == {
        "workflow:KeyError": 1,
        "timeout": 1,
        "nothing_captured": 1,
        "judge:ZeroDivisionError": 1,
        "judge:ValueError": 1,
    }
    by_task = {e.plan.task.id: e for e in episodes}
    assert "test_rollout.py:" in by_task["t1"].error, "the line of the user's own code"
    assert "with a client of OpenAI's, Anthropic's or Google's API on httpx" in by_task["t3"].error, (
        "says what to do about it"
    )
    metrics = summarize(episodes, 1.0)
    assert metrics["episodes_failed"] == 5 and metrics["reward"] == 1.0
    trained = sum(e.record.sampled_tokens for e in episodes if e.failure is None)
    assert metrics["tokens_failed"] == metrics["tokens_sampled"] - trained > 0


@pytest.mark.parametrize("whose", ["workflow", "judge"])
def test_a_cancelled_sub_task_and_an_exit_fail_their_episodes_only(bench, tokenizer, whose: str) -> None:
    async def ends_in_another_way(task: Any) -> None:
        if task.id == "t1":  # the loser of a race is cancelled, and awaited
            loser = asyncio.create_task(asyncio.sleep(60))
            loser.cancel()
            await loser
        if task.id == "t2":
            asyncio.current_task().cancel()
            await asyncio.sleep(60)
        if task.id == "t3":
            sys.exit(3)

    async def agent(task: Any) -> str:
        said = await ask(task.query)
        if whose == "workflow":
            await ends_in_another_way(task)
        return said

    async def judge(task: Any, output: Any) -> float:
        if whose == "judge":
            await ends_in_another_way(task)
        return 1.0

    episodes = bench(ScriptedEngine(tokenizer, echo)).run(agent, judge, tasks=5)
    assert failures(episodes) == {f"{whose}:Cancelled": 2, f"{whose}:RuntimeError": 1}
    said = {e.plan.task.id: e.error for e in episodes if e.failure}
    assert "awaited a task that was cancelled" in said["t1"] and "SystemExit: 3" in said["t3"]


class Panic(BaseException):
    """As pyo3_runtime.PanicException, pytest.fail and trio.Cancelled: no Exception."""


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("error", [Panic, GeneratorExit])
@pytest.mark.parametrize("whose", ["workflow", "judge", "group_judge", "judge_check"])
def test_what_is_no_exception_fails_its_episode_only(
    bench, tokenizer, whose: str, error: type[BaseException], is_async: bool
) -> None:
    def raising(part: str, result: Any) -> Any:
        """A function that returns the result, or raises for the second task if its turn has come."""

        def sync(task: Any, output: Any = None) -> Any:
            if part == whose and task.id == "t1":
                raise error("index out of bounds")
            return result

        async def also_async(task: Any, output: Any = None) -> Any:
            return sync(task)

        return also_async if is_async else sync

    class Together(GroupJudge):
        name = "together"
        score_group = staticmethod(raising("group_judge", [JudgeOutput(1.0)]))

    async def agent(task: Any) -> str:
        said = await ask(task.query)
        done = raising("workflow", said)(task)
        return await done if is_async else done

    judge = Together() if whose == "group_judge" else FunctionJudge(function=lambda task, output: 1.0)
    if whose == "judge":
        judge = FunctionJudge(function=raising("judge", 1.0))
    rollout = bench(ScriptedEngine(tokenizer, echo)).rollout(agent, judge, judge_check_share=1.0)
    rollout = replace(rollout, judge_check=FunctionJudge(function=raising("judge_check", 1.0)))
    plans = [Plan(f"1.{g}/t{g}/0", f"{g}", Task(f"t{g}", f"question {g}"), 0, g) for g in range(3)]
    episodes = asyncio.run(rollout.run(plans, lambda episode: None))
    if whose == "judge_check":
        assert [e.counters["judge_check_failed"] for e in episodes] == [0, 1, 0] and not failures(episodes)
    else:
        assert failures(episodes) == {f"{'judge' if 'judge' in whose else whose}:RuntimeError": 1}
        assert f"{error.__name__}: index out of bounds" in episodes[1].error


def test_a_retry_gets_a_fresh_instance_and_a_fresh_record(bench, tokenizer) -> None:
    made = []

    class Flow:
        def __init__(self) -> None:
            made.append(self)
            self.asked = 0

        async def execute(self, task: Any, tuner: Any) -> str:
            self.asked += 1
            answer = await ask(task.query)
            if len(made) == 1:
                raise RuntimeError("first attempt")
            return f"{answer}{self.asked}"

    (episode,) = bench(ScriptedEngine(tokenizer, echo)).run(Flow, retries=2)
    assert (episode.attempt, episode.output.response, len(episode.record.calls)) == (1, "01", 1)


def test_a_blocking_workflow_is_left_behind_at_its_deadline(bench, tokenizer) -> None:
    release = threading.Event()

    def hangs(task: Any) -> None:
        release.wait(60)

    started = time.monotonic()
    (episode,) = bench(ScriptedEngine(tokenizer, echo)).run(hangs, timeout=0.3)
    release.set()
    assert episode.failure == "timeout" and time.monotonic() - started < 30


def test_an_agent_that_asks_forever_is_told_by_its_calls(bench, tokenizer) -> None:
    async def circles(task: Any) -> None:
        while True:
            await ask(task.query)

    (episode,) = bench(ScriptedEngine(tokenizer, echo)).run(circles, timeout=0.4, retries=0)
    assert re.match(r"no result within 0\.4 s and \d+ calls; ", episode.error)


@pytest.mark.whole
def test_code_that_swallows_its_cancellation_is_left_behind(bench, tokenizer) -> None:
    async def stubborn(task: Any) -> None:
        with suppress(asyncio.CancelledError):  # by the deadline; then by the loop's end
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    (episode,) = bench(ScriptedEngine(tokenizer, echo)).run(stubborn, timeout=0.3)
    assert episode.failure == "timeout" and episode.seconds < 30


def test_a_judge_that_hangs_fails_its_episode_only(bench, tokenizer) -> None:
    class Slow(Judge):
        name = "slow"

        async def judge(self, task: Any, output: Any, episode: Any) -> JudgeOutput:
            if task.id == "t0":
                await asyncio.sleep(60)
            return JudgeOutput(1.0, True, {"calls": len(episode.messages)})

    episodes = bench(ScriptedEngine(tokenizer, echo)).run(asks_once, Slow(), tasks=3, judge_timeout=0.3)
    assert [e.failure for e in episodes] == ["judge:timeout", None, None]
    assert episodes[1].metrics == {"calls": 1}


@pytest.mark.parametrize("who", ["workflow", "judge"])
def test_a_broken_contract_ends_the_run_while_other_episodes_still_wait(bench, tokenizer, who: str) -> None:
    async def agent(task: Any) -> str:
        if task.id == "t0" and who == "workflow":
            raise ContractBroken("the workflow is wrong in every episode")
        answer = await ask(task.query)
        if task.id != "t0":
            await asyncio.sleep(60)
        return answer

    def judge(task: Any, output: Any) -> float:
        raise ContractBroken("the judge is wrong in every episode")

    with pytest.raises(ContractBroken, match=f"the {who} is wrong"):
        bench(ScriptedEngine(tokenizer, echo)).run(agent, judge, tasks=3, retries=3)


def test_a_judges_own_llm_calls_are_not_recorded(bench, tokenizer) -> None:
    async def judge(task: Any, output: Any) -> float:
        try:
            await ask("grade this")
        except openai.APIConnectionError:  # it went to its own endpoint, where nobody listens
            return 0.5
        return 1.0

    (episode,) = bench(ScriptedEngine(tokenizer, echo)).run(asks_once, judge)
    assert episode.reward == 0.5 and len(episode.record.exchanges) == 1


def test_an_engine_failure_is_named_as_such(bench, tokenizer) -> None:
    def broken(request: Any, prompt: str) -> str:
        raise RuntimeError("device lost")

    (episode,) = bench(ScriptedEngine(tokenizer, broken)).run(asks_once)
    assert episode.failure == "engine" and "device lost" in episode.error


def test_overflow_is_counted_and_not_retried(bench, tokenizer) -> None:
    made = []

    async def long(task: Any) -> str:
        made.append(1)
        return await ask("word " * 200)

    (episode,) = bench(ScriptedEngine(tokenizer, echo, context_length=32)).run(long, retries=3)
    assert episode.failure == "context_overflow" and len(made) == 1


@pytest.mark.whole
def test_the_watchdog_names_who_waits_for_whom(bench, tokenizer) -> None:
    b = bench(Waiting(tokenizer, echo, until=lambda: any("in engine" in line for line in b.lines)))
    b.run(asks_once, stall_warning=0.3)
    assert any("1 wait for the engine" in line and "1.0/t0/0 in engine" in line for line in b.lines)


def test_a_sync_client_in_an_async_workflow_is_answered_all_the_same(bench, tokenizer) -> None:
    sync = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

    async def agent(task: Any) -> str:
        answer = sync.chat.completions.create(model="m", messages=[{"role": "user", "content": task.query}])
        return answer.choices[0].message.content or ""

    b = bench(ScriptedEngine(tokenizer, echo))
    for deterministic in (False, True):
        episodes = b.run(agent, tasks=3, deterministic=deterministic)
        assert [e.output.response for e in episodes] == ["0", "1", "2"]


def test_deterministic_batches_do_not_depend_on_how_fast_agents_are(bench, tokenizer) -> None:
    def rounds(delays: list[float]) -> list[tuple[str, int]]:
        order = iter(delays)

        async def agent(task: Any) -> str:
            text = ""
            for _ in range(1 + int(task.id[1:]) % 3):
                await asyncio.sleep(next(order))
                text = await ask(task.query)
            return text

        engine.requests.clear()
        b.run(agent, tasks=9, deterministic=True, concurrency=4)
        return [r.key for r in engine.requests]

    engine = ScriptedEngine(tokenizer, echo)
    b = bench(engine)
    assert rounds([0.0] * 18) == rounds([0.01 * (7 * i % 5) for i in range(18)])


@pytest.mark.whole
def test_deterministic_batching_does_not_wait_for_failed_episodes(bench, tokenizer) -> None:
    async def flaky(task: Any) -> str:
        if task.id in ("t1", "t3"):
            raise ValueError("no")
        if task.id == "t2":
            await asyncio.sleep(30)
        return await ask(task.query)

    episodes = bench(ScriptedEngine(tokenizer, echo)).run(
        flaky, tasks=6, deterministic=True, deadlines={"t2": 0.5}, retries=1
    )
    assert [e.failure is None for e in episodes] == [True, False, False, False, True, True]
