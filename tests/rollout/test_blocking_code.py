"""Code of the user that blocks: a plain judge runs in a thread, and what blocks the event loop is named."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest

import ajet
from ajet.interfaces.judge import GroupJudge, Judge
from ajet.rollout.episode import Plan
from ajet.testing import ScriptedEngine
from ajet.types import AjetError, JudgeOutput, Task
from ajet.utils import asyncrun
from tests.patience import PATIENCE

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
HERE = Path(__file__).name


async def asks(task: Any) -> str:
    answer = await CLIENT.chat.completions.create(
        model="m", messages=[{"role": "user", "content": task.query}]
    )
    return answer.choices[0].message.content or ""


@pytest.fixture
def engine(tokenizer: Any) -> ScriptedEngine:
    return ScriptedEngine(tokenizer, lambda request, prompt: "yes")


# ------------------------------------------------------------------ judges


def test_plain_judges_run_at_once_in_threads(bench, engine) -> None:
    together = threading.Barrier(8, timeout=PATIENCE)

    def judge(task: Any, output: Any) -> float:
        together.wait()  # passes when all eight judge at the same time
        return 1.0

    episodes = bench(engine).run(asks, judge, tasks=8)
    assert [e.failure for e in episodes] == [None] * 8


@pytest.mark.whole
def test_a_plain_judge_that_hangs_costs_its_own_episode_and_the_watchdog_says_so(bench, engine) -> None:
    release = threading.Event()

    def judge(task: Any, output: Any) -> float:
        if task.id == "t0":
            release.wait(60)
        return 1.0

    b = bench(engine)
    episodes = b.run(asks, judge, tasks=3, judge_timeout=1.5, stall_warning=0.3)
    release.set()
    assert [e.failure for e in episodes] == ["judge:timeout", None, None]
    assert any("1 wait for the judge" in line and "1.0/t0/0 in judge" in line for line in b.lines)


def test_a_slow_plain_judge_does_not_make_workflows_miss_their_deadline(bench, engine) -> None:
    judging, asked = threading.Event(), threading.Event()

    async def workflow(task: Any) -> str:
        if task.id == "t1":  # its one call is made while the judge of the other episode computes
            while not judging.is_set():
                await asyncio.sleep(0.01)
        answer = await asks(task)
        if task.id == "t1":
            asked.set()
        return answer

    def judge(task: Any, output: Any) -> float:
        judging.set()
        return float(asked.wait(PATIENCE / 2))  # on the event loop, this would keep the workflow from asking

    episodes = bench(engine).run(workflow, judge, tasks=2, timeout=PATIENCE / 4, judge_timeout=PATIENCE)
    assert [(e.failure, e.reward) for e in episodes] == [(None, 1.0), (None, 1.0)]


def test_a_plain_judge_sees_its_context_and_its_own_llm_calls_are_not_recorded(bench, engine) -> None:
    sync: Any = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

    def judge(task: Any, output: Any) -> float:
        try:
            sync.chat.completions.create(model="m", messages=[{"role": "user", "content": "grade"}])
        except openai.APIConnectionError:  # it went to its own endpoint, where nothing listens
            return 0.5
        return 1.0

    (episode,) = bench(engine).run(asks, judge)
    assert episode.reward == 0.5 and len(episode.record.exchanges) == 1


class PlainMethods(GroupJudge):
    """A judge of groups whose methods are not async."""

    name = "plain"

    def score_group(self, task: Task, episodes: Sequence[Any]) -> list[JudgeOutput]:  # type: ignore[override]
        assert threading.current_thread() is not threading.main_thread()
        return [JudgeOutput(float(e.member)) for e in episodes]


class PlainJudge(Judge):
    name = "plain"

    def judge(self, task: Any, output: Any, episode: Any) -> JudgeOutput:  # type: ignore[override]
        assert threading.current_thread() is not threading.main_thread()
        return JudgeOutput(0.25)


def test_judge_classes_with_plain_methods_are_called_in_threads_too(bench, engine) -> None:
    b = bench(engine)
    assert [e.reward for e in b.run(asks, PlainMethods(), group_size=3)] == [0.0, 1.0, 2.0]
    assert [e.reward for e in b.run(asks, PlainJudge(), tasks=2)] == [0.25, 0.25]


def test_parts_of_combine_with_plain_methods_are_called_in_threads_too(bench, engine) -> None:
    from ajet_judges.combine import Combine, CombinedJudge

    both = Combine(
        parts={"one": CombinedJudge(judge=PlainJudge()), "two": CombinedJudge(judge=PlainMethods())}
    )
    rewards = []

    async def main() -> None:
        async with both.open() as judge:
            rollout = bench(engine).rollout(asks, judge)
            plans = [Plan(f"1.0/t/{m}", f"{m}", Task("t", "q"), m, 0) for m in range(2)]
            rewards.extend(e.reward for e in await rollout.run(plans, lambda episode: None))

    asyncio.run(main())
    assert rewards == [0.25, 1.25]


# ------------------------------------------------------------------ a blocked event loop


def test_a_blocking_call_in_an_async_workflow_is_named_with_its_line_while_it_blocks(bench, engine) -> None:
    named = threading.Event()
    b = bench(engine)

    class Lines(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if "blocked the event loop" in line:
                named.set()

    b.lines = Lines()

    async def workflow(task: Any) -> str:
        if task.id == "t1":
            assert named.wait(PATIENCE), "said while the call blocks, not afterwards"
        return await asks(task)

    episodes = b.run(workflow, tasks=3, stall_warning=0.2)
    assert [e.failure for e in episodes] == [None] * 3, "the run goes on"
    (line,) = [line for line in b.lines if "blocked the event loop" in line][:1]
    assert "the workflow of episode 1.1/t1/0" in line and f"{HERE}:" in line and "asyncio.to_thread" in line


@pytest.mark.whole
def test_one_line_that_blocks_again_and_again_is_named_less_and_less_often(bench, engine) -> None:
    b = bench(engine)

    async def workflow(task: Any) -> str:
        for _ in range(8):
            time.sleep(0.3)
            await asyncio.sleep(0)
        return await asks(task)

    b.run(workflow, tasks=1, stall_warning=0.05)
    said = [line for line in b.lines if "blocked the event loop" in line]
    assert 2 <= len(said) <= 7, "at 0.05 s, then after 0.1, 0.2, 0.4, 0.8 and 1.6 s"


def test_a_blocking_call_in_an_async_judge_is_named(bench, engine) -> None:
    b = bench(engine)

    async def judge(task: Any, output: Any) -> float:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not any("blocked the event loop" in line for line in b.lines):
            time.sleep(0.01)
        return 1.0

    b.run(asks, judge, stall_warning=0.2)
    assert any("the judge of 1.0/t0/0 has blocked the event loop" in line for line in b.lines)


@pytest.mark.whole
def test_a_run_whose_loop_stays_blocked_ends_with_an_error_that_names_the_line(bench, engine) -> None:
    b = bench(engine)
    recorded: list[str] = []

    async def workflow(task: Any) -> str:
        answer = await asks(task)
        if task.id == "t1":
            while len(recorded) < 2:
                await asyncio.sleep(0.01)
            time.sleep(3600)
        return answer

    rollout = b.rollout(workflow, lambda task, output: 1.0, loop_timeout=1.0, timeout=7200)
    plans = [Plan(f"1.{n}/t{n}/0", f"{n}", Task(f"t{n}", "q"), 0, n) for n in range(3)]
    with pytest.raises(
        AjetError, match=rf"the workflow of episode 1\.1/t1/0 has blocked .*{HERE}:.*loop_timeout"
    ):
        asyncrun.run(rollout.run(plans, lambda e: recorded.append(e.plan.task.id)))
    assert sorted(recorded) == ["t0", "t2"], "what had ended is kept"


@pytest.mark.whole
def test_a_workflow_that_blocks_when_it_is_cancelled_is_named_and_ends_the_run_too(bench, engine) -> None:
    b = bench(engine)
    enough = asyncio.Event()

    async def workflow(task: Any) -> str:
        if task.id == "t1":
            try:
                await asyncio.sleep(3600)
            finally:
                time.sleep(3600)
        return await asks(task)

    rollout = b.rollout(workflow, lambda task, output: 1.0, loop_timeout=1.0, stall_warning=0.4, timeout=7200)
    plans = [Plan(f"1.{n}/t{n}/0", f"{n}", Task(f"t{n}", "q"), 0, n) for n in range(2)]
    with pytest.raises(AjetError, match=rf"1\.1/t1/0 has blocked .*{HERE}:.*loop_timeout"):
        asyncrun.run(rollout.run(plans, lambda e: enough.set(), enough))
    assert any("blocked the event loop" in line for line in b.lines)


@pytest.mark.whole
def test_native_code_that_holds_the_interpreters_lock_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, ctypes, os\n"
        "from ajet.rollout.watchdog import Board, watched_loop\n"
        "def judge():\n"
        "    ctypes.PyDLL(None).poll(None, 0, 3600_000)\n"
        "async def main():\n"
        "    with watched_loop(Board(), 1.0, 1.0, print):\n"
        "        await asyncio.sleep(1.0)\n"
        "        await asyncio.to_thread(judge)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, str(program)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        lines = iter(process.stderr.readline, "")
        assert any(f'{program}", line 4 in judge' in line for line in lines)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.whole
def test_a_blocking_client_that_is_answered_gets_on(bench, engine) -> None:
    sync: Any = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

    async def workflow(task: Any) -> str:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:  # longer than loop_timeout, but never without progress
            answer = sync.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
        return answer.choices[0].message.content or ""

    b = bench(engine)
    (episode,) = asyncrun.run(
        b.rollout(workflow, lambda task, output: 1.0, loop_timeout=1.0).run(
            [Plan("1.0/t/0", "s", Task("t", "q"), 0, 0)], lambda e: None
        )
    )
    assert episode.failure is None


@pytest.mark.whole
def test_a_workflow_that_swallows_its_cancellation_is_named_and_no_traceback_follows(
    bench, engine, capfd, monkeypatch
) -> None:
    monkeypatch.setattr(asyncrun, "GRACE", 0.1)
    monkeypatch.setattr(asyncrun, "_left_behind", [])

    async def stubborn(task: Any) -> None:
        with ajet.label(agent="solver"):
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)

    b = bench(engine)
    said: list[str] = []
    (episode,) = asyncrun.run(
        b.rollout(stubborn, lambda task, output: 1.0, timeout=0.2).run(
            [Plan("1.0/t/0", "s", Task("t", "q"), 0, 0)], lambda e: None
        ),
        said.append,
    )
    assert episode.failure == "timeout" and "the workflow of episode 1.0/t/0" in said[0]
    asyncrun._left_behind.clear()
    gc.collect()
    assert capfd.readouterr().err == ""
