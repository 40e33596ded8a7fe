"""What episodes print is kept with them, and a run's own lines stay readable."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

import openai
import pytest

from ajet.capture.process.printed import MOST, prints_kept
from ajet.rollout.episode import Plan
from ajet.rollout.journal import episode_from_json, episode_to_json
from ajet.testing import ScriptedEngine
from ajet.types import Task

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)


async def asks(task: Any) -> str:
    print("before", task.id)
    await CLIENT.chat.completions.create(model="m", messages=[{"role": "user", "content": task.query}])
    await asyncio.to_thread(print, "in a thread", task.id)
    sys.stderr.write(f"to stderr {task.id}\n")
    return "done"


@pytest.fixture
def engine(tokenizer: Any) -> ScriptedEngine:
    return ScriptedEngine(tokenizer, lambda request, prompt: "hello")


def test_each_episode_keeps_what_it_has_printed(bench: Any, engine: Any, capsys: Any) -> None:
    def judge(task: Any, output: Any) -> float:
        print("judged", task.id)
        return 1.0

    with prints_kept():
        episodes = bench(engine).run(asks, judge, tasks=3)
        print("the run's own line")
    printed = [e.printed.text for e in episodes]
    assert printed == [f"before t{i}\nin a thread t{i}\nto stderr t{i}\njudged t{i}\n" for i in range(3)]
    said = capsys.readouterr()
    assert (said.out, said.err) == ("the run's own line\n", "")


def test_without_it_prints_go_to_the_terminal(bench: Any, engine: Any, capsys: Any) -> None:
    (episode,) = bench(engine).run(asks, tasks=1)
    assert episode.printed.text == "" and capsys.readouterr().out == "before t0\nin a thread t0\n"


def test_the_end_of_a_long_output_is_kept_and_what_is_missing_is_counted(bench: Any, engine: Any) -> None:
    async def chatty(task: Any) -> str:
        for number in range(10_000):
            print(number)
        return await asks(task)

    with prints_kept():
        (episode,) = bench(engine).run(chatty, tasks=1)
    whole = "".join(f"{number}\n" for number in range(10_000)) + "before t0\nin a thread t0\nto stderr t0\n"
    assert episode.printed.text == f"[{len(whole) - MOST} characters dropped]\n{whole[-MOST:]}"


def test_a_forked_child_and_a_debugger_have_the_terminal(bench: Any, engine: Any, capfd: Any) -> None:
    async def forks(task: Any) -> str:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            print("from the child", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        before = sys.gettrace()
        sys.settrace(lambda *_: None)
        print("to the debugger")
        sys.settrace(before)
        return await asks(task)

    with prints_kept():
        (episode,) = bench(engine).run(forks, tasks=1)
    assert episode.printed.text == "before t0\nin a thread t0\nto stderr t0\n"
    assert capfd.readouterr().out == "from the child\nto the debugger\n"


@pytest.mark.parametrize("times", [1, MOST])
def test_the_journal_has_it(bench: Any, engine: Any, times: int) -> None:
    async def chatty(task: Any) -> str:
        print("word " * times)
        return await asks(task)

    with prints_kept():
        (episode,) = bench(engine).run(chatty, tasks=1)
    line = episode_to_json(episode, phase="train", step=1)
    assert episode_from_json(line, episode.plan).printed.text == episode.printed.text != ""


def test_warnings_of_ajet_and_what_listeners_print_stay_on_the_terminal(
    bench: Any, engine: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own

    async def warned(task: Any) -> str:
        logging.getLogger("ajet").warning("a client blocks the loop")
        return await asks(task)

    plans = [Plan("1.0/t0/0", "0/0", Task("t0", "hi"), 0, 0)]
    with prints_kept():
        rollout = bench(engine).rollout(warned)
        (episode,) = asyncio.run(rollout.run(plans, lambda one: print("listened to", one.id)))
    said = capsys.readouterr()
    assert "a client blocks the loop" in said.err and "listened to" in said.out
    assert "listened" not in episode.printed.text and "blocks" not in episode.printed.text


def test_the_user_is_told_where_the_lines_are(bench: Any, engine: Any) -> None:
    with prints_kept() as kept:
        assert kept.lines() == []
        bench(engine).run(asks, tasks=2)
    assert kept.lines() == ["episodes printed 6 lines, which are kept with them: ajet show RUN EPISODE"]
