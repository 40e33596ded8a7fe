"""Forks: an episode that is run again gets its parent's first answers, for equal requests only, and then its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import openai
import pytest

from ajet.capture.fork_replay import ForkReplay
from ajet.learning.batch import TokenSelection
from ajet.rollout.episode import Episode, Fork, Plan
from ajet.rollout.journal import episode_from_json, episode_to_json
from ajet.rollout.summary import summarize
from ajet.testing import ScriptedEngine
from ajet.tracker.timelines import timelines
from ajet.types import Task
from tests.plugins.commands.episodes import run_command, whole
from tests.tracker.checker import RawCall, Verdict, judge_timelines

from ..plugins.programs import calling

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TURNS = 4


def says(request: Any, prompt: str) -> str:
    """An answer that tells its episode and call apart."""
    return f"{request.key[0].rpartition('/')[2]}-{request.key[1]} {'abcdefgh'[request.key[1] % 8] * 3}"


async def ask(messages: list[Any], **more: Any) -> Any:
    answer = await CLIENT.chat.completions.create(model="m", messages=messages, **more)
    return answer.choices[0].message


async def agent(task: Task) -> str:
    """Several turns in one chat."""
    chat: list[Any] = [{"role": "user", "content": task.query}]
    for turn in range(TURNS):
        said = (await ask(chat)).content
        chat += [{"role": "assistant", "content": said}, {"role": "user", "content": f"turn {turn}"}]
    return "\n".join(m["content"] for m in chat if m["role"] == "assistant")


class Forked:
    """A parent, and forks of it or of other forks."""

    def __init__(
        self, running: Any, workflow: Any, judge: Any = lambda task, output: 1.0, **settings: Any
    ) -> None:
        self.engine = running.engine
        self.rollout = running.rollout(workflow, judge, **settings)
        self.count = itertools.count()
        self.parent = self.run(None)

    def run(self, fork: Fork | None) -> Episode:
        member = next(self.count)
        plan = Plan(f"1.0/t/{member}", f"seed/{member}", Task("t", "question 0"), member, 0, fork)
        self.engine.requests.clear()
        episodes: list[Episode] = asyncio.run(self.rollout.run([plan], lambda episode: None))
        return episodes[0]

    def fork(self, calls: int, parent: Episode | None = None) -> Episode:
        parent = parent or self.parent
        return self.run(Fork(parent.id, calls, parent.record))

    @property
    def asked(self) -> int:
        """How often the last episode asked the engine."""
        return len(self.engine.requests)


@pytest.fixture
def forked(bench: Any, tokenizer: Any) -> Callable[..., Forked]:
    def make(
        workflow: Any, script: Any = says, judge: Any = lambda task, output: 1.0, **settings: Any
    ) -> Forked:
        return Forked(bench(ScriptedEngine(tokenizer, script)), workflow, judge, **settings)

    return make


def said(episode: Episode) -> list[str]:
    return [call.answer.message["content"].split()[0] for call in episode.record.calls]  # type: ignore[union-attr]


def own_tokens(episode: Episode) -> int:
    lines, dropped = TokenSelection().choose(episode)
    assert not dropped
    return sum(int(line.mask.sum()) for line in lines)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_fork_gets_its_parents_first_answers_without_the_engine_and_then_its_own(
    forked: Any, calls: int
) -> None:
    runs = forked(agent)
    fork = runs.fork(calls)
    assert fork.failure is None
    assert said(fork) == [f"{int(i >= calls)}-{i}" for i in range(TURNS)]
    assert runs.asked == TURNS - calls == len(fork.record.trained_calls)
    assert [call.replayed for call in fork.record.calls] == [i < calls for i in range(TURNS)]
    for one, other in zip(fork.record.calls[:calls], runs.parent.record.calls, strict=False):
        assert one.prompt.ids().tolist() == other.prompt.ids().tolist()
        assert one.generation is other.generation and one.answer.message == other.answer.message


def test_every_token_is_trained_once_by_the_episode_that_sampled_it(forked: Any) -> None:
    """Invariant I1 over forks of forks: those that an episode replays are its context."""
    runs = forked(agent)
    fork = runs.fork(1)
    again = runs.fork(3, fork)
    assert said(again) == ["0-0", "1-1", "1-2", "2-3"]
    for episode in (runs.parent, fork, again):
        own = [call for call in episode.record.calls if not call.replayed]
        assert (
            own_tokens(episode)
            == episode.record.sampled_tokens
            == sum(len(c.generation.token_ids) for c in own)
        )
    assert (
        len(again.record.trained_calls) == 1 and again.spent.completion_tokens == again.record.sampled_tokens
    )


class Logging(ScriptedEngine):
    """Keeps what it was given and what it answered, by episode and call."""

    log: dict[tuple[str, int], RawCall]

    async def generate(self, request: Any) -> Any:
        done = await super().generate(request)
        raw = RawCall(request.prompt_ids, done.token_ids, done.logprobs, done.weight_versions)
        self.log[request.key] = raw
        return done


async def wanders(seed: int) -> None:
    """Two conversations that are continued, repeated, asked for two answers and changed afterwards, in an order of their own."""
    rng = Random(seed)
    chats: list[list[Any]] = [[{"role": "user", "content": name}] for name in ("left", "right")]
    for step in range(rng.randint(4, 8)):
        chat, kind = rng.choice(chats), rng.choice(["ask", "ask", "two", "again", "edit"])
        if kind == "edit" and len(chat) > 2:
            chat[rng.randrange(len(chat))]["content"] += "!"
        for _ in range(2 if kind == "again" else 1):
            answer = await ask_for(chat, n=2 if kind == "two" else 1)
        told = {"role": "user", "content": f"turn {step}"}
        chat += [{"role": "assistant", "content": answer.choices[-1].message.content}, told]


@pytest.mark.parametrize("seed", range(10))
def test_whatever_an_agent_does_forks_of_forks_lose_and_double_no_token(
    bench: Any, tokenizer: Any, seed: int
) -> None:
    engine = Logging(tokenizer, lambda request, prompt: "word " * (1 + (request.sampling.seed or 0) % 3))
    engine.log = {}
    running, rng = bench(engine), Random(seed)
    records: list[Any] = []
    for number in range(4):
        replay = None
        if records:
            parent = rng.choice(records)
            replay = ForkReplay(parent, rng.randrange(1, len(parent.calls)))
        with running.session(str(number)) as session:
            session.replay = replay
            asyncio.run(wanders(seed))
        assert replay is None or replay.end() is None
        records.append(session.record)
    for number, record in enumerate(records):
        sampled = {call: raw for (episode, call), raw in engine.log.items() if episode == str(number)}
        assert sampled.keys() == {call.number for call in record.trained_calls}
        assert judge_timelines(timelines(record.trained_calls), sampled) == Verdict(0, 0, 0)


def test_a_fork_is_in_the_journal_and_can_be_forked_again_from_there(forked: Any) -> None:
    runs = forked(agent)
    fork = runs.fork(2)
    line = json.loads(json.dumps(episode_to_json(fork, phase="train", step=1)))
    assert line["fork"] == {"parent": runs.parent.id, "calls": 2}
    read = episode_from_json(line, Plan(fork.id, "", fork.plan.task, 1, 0))
    assert read.plan.fork == fork.plan.fork and fork.plan.fork.record is None
    assert [call.replayed for call in read.record.calls] == [True, True, False, False]
    assert read.record.sampled_tokens == fork.record.sampled_tokens
    assert said(runs.fork(3, read)) == ["0-0", "0-1", "1-2", "2-3"]


def test_what_is_sampled_counts_once_in_the_figures_of_a_step(forked: Any) -> None:
    runs = forked(agent)
    episodes = [runs.parent, runs.fork(3)]
    metrics = summarize(episodes, 1.0)
    assert metrics["tokens_sampled"] == sum(e.record.sampled_tokens for e in episodes)


def test_a_break_counts_where_it_was_sampled(forked: Any) -> None:
    async def edits(task: Task) -> str:
        chat: list[Any] = [{"role": "user", "content": task.query}]
        for turn in range(3):
            said = (await ask(chat)).content
            chat += [
                {"role": "assistant", "content": f"{said}!"},
                {"role": "user", "content": f"turn {turn}"},
            ]
        return "done"

    runs = forked(edits)
    assert [b.call for b in runs.parent.breaks] == [1, 2]
    assert [b.call for b in runs.fork(2).breaks] == [2]


# ---------------------------------------------------------------- what goes the way of the engine's answers


async def calls_tools(task: Task) -> str:
    """Sends the ids of tool calls back."""
    chat: list[Any] = [{"role": "user", "content": task.query}]
    for turn in range(TURNS):
        message = await ask(chat, tools=[TOOL])
        chat += [message.model_dump(exclude_none=True)]
        chat += [
            {"role": "tool", "tool_call_id": c.id, "content": f"seen {turn}"} for c in message.tool_calls
        ]
    return "done"


async def streams(task: Task) -> str:
    chat: list[Any] = [{"role": "user", "content": task.query}]
    for turn in range(TURNS):
        text = ""
        async for part in await ask_for(chat, stream=True):
            text += part.choices[0].delta.content or "" if part.choices else ""
        chat += [{"role": "assistant", "content": text}, {"role": "user", "content": f"turn {turn}"}]
    return text


def ask_for(chat: list[Any], **more: Any) -> Any:
    return CLIENT.chat.completions.create(model="m", messages=chat, **more)


async def wants_logprobs(task: Task) -> str:
    chat: list[Any] = [{"role": "user", "content": task.query}]
    for _ in range(TURNS):
        choice = (await ask_for(chat, logprobs=True)).choices[0]
        surprise = sum(t.logprob for t in choice.logprobs.content)
        chat += [
            {"role": "assistant", "content": choice.message.content},
            {"role": "user", "content": f"{surprise:.4f}"},
        ]
    return "done"


async def takes_the_best_of_two(task: Task) -> str:
    chat: list[Any] = [{"role": "user", "content": task.query}]
    for _ in range(TURNS // 2):
        best = max((c.message.content for c in (await ask_for(chat, n=2)).choices), key=len)
        chat += [{"role": "assistant", "content": best}, {"role": "user", "content": "again"}]
    return "done"


async def responses(task: Task) -> str:
    earlier = None
    for turn in range(TURNS):
        answer = await CLIENT.responses.create(
            model="m", input=f"{task.query} {turn}", previous_response_id=earlier
        )
        earlier = answer.id
    return "done"


async def completes_text(task: Task) -> str:
    text = task.query
    for _ in range(TURNS):
        text += (await CLIENT.completions.create(model="m", prompt=text, max_tokens=50)).choices[0].text
    return text


async def of_anthropic(task: Task) -> str:
    """As Claude Code asks: streamed, with tools and the whole history."""
    chat: list[Any] = [{"role": "user", "content": task.query}]
    tool = {"name": "look", "input_schema": {"type": "object"}}
    async with httpx.AsyncClient() as client:
        for turn in range(TURNS):
            body = {"model": "m", "max_tokens": 200, "messages": chat, "tools": [tool], "system": "Be brief."}
            url = "http://127.0.0.1:9/v1/messages"
            answer = (await client.post(url, json=body, headers={"x-api-key": "k"})).json()
            calls = [block for block in answer["content"] if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": c["id"], "content": f"{turn}"} for c in calls]
            chat += [
                {"role": "assistant", "content": answer["content"]},
                {"role": "user", "content": results},
            ]
    return "done"


async def of_google(task: Task) -> str:
    chat: list[Any] = [{"role": "user", "parts": [{"text": task.query}]}]
    async with httpx.AsyncClient() as client:
        for turn in range(TURNS):
            url = "http://127.0.0.1:9/v1beta/models/m:generateContent"
            answer = (await client.post(url, json={"contents": chat}, headers={"x-goog-api-key": "k"})).json()
            chat += [
                answer["candidates"][0]["content"],
                {"role": "user", "parts": [{"text": f"turn {turn}"}]},
            ]
    return "done"


def looks(request: Any, prompt: str) -> str:
    return f"{request.key[0].rpartition('/')[2]} {calling('look', at=request.key[1])}"


@pytest.mark.parametrize(
    ("workflow", "script"),
    [
        (calls_tools, looks),
        (streams, says),
        (wants_logprobs, says),
        (takes_the_best_of_two, says),
        (responses, says),
        (completes_text, says),
        (of_anthropic, looks),
        (of_google, says),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_forks_of_every_api_get_what_their_parent_got(forked: Any, workflow: Any, script: Any) -> None:
    runs = forked(workflow, script)
    assert runs.parent.failure is None, runs.parent.error
    for calls in range(1, TURNS):
        fork = runs.fork(calls)
        assert fork.failure is None, fork.error
        assert runs.asked == TURNS - calls
        assert sum(call.replayed for call in fork.record.calls) == calls


def test_a_limit_of_tokens_counts_what_is_recalled(forked: Any) -> None:
    """Otherwise a fork may do more than its parent."""

    async def limited(task: Task, tuner: Any) -> str:
        tuner.limit(tokens=12)
        chat: list[Any] = [{"role": "user", "content": task.query}]
        turns = 0
        try:
            while True:
                chat += [
                    {"role": "assistant", "content": (await ask(chat)).content},
                    {"role": "user", "content": "?"},
                ]
                turns += 1
        except openai.APIStatusError:
            return str(turns)

    runs = forked(limited)
    assert runs.fork(1).output.response == runs.parent.output.response


@pytest.mark.whole
def test_parallel_calls_are_found_by_their_requests_in_any_order(forked: Any) -> None:
    order = itertools.count()

    async def one(name: str, delay: float) -> str:
        chat: list[Any] = [{"role": "user", "content": name}]
        for turn in range(2):
            await asyncio.sleep(delay)
            said = (await ask(chat)).content
            chat += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{turn}"}]
        return said

    async def in_parallel(task: Task) -> str:
        slow = next(order) % 2  # the other conversation is first in every second episode
        return "".join(await asyncio.gather(one("left", 0.3 * slow), one("right", 0.3 * (1 - slow))))

    runs = forked(in_parallel)
    fork = runs.fork(3)
    assert fork.failure is None, fork.error
    assert sum(call.replayed for call in fork.record.calls) == 3 and runs.asked == 1
    assert own_tokens(fork) == fork.record.sampled_tokens
    line = json.loads(json.dumps(episode_to_json(fork, phase="train", step=1)))
    for record in (fork.record, episode_from_json(line, fork.plan).record):
        assert [call.number for call in record.path] == [2, 3, 0, 1], "in the order of its parent"
        assert TokenSelection().learnable(fork).calls == [2, 3, 0, 1]  # type: ignore[union-attr]


CODING_AGENT = """
import json, os, urllib.request

def ask(chat):
    # As Claude Code does: streamed, with tools, and its own headers.
    body = {"model": "m", "max_tokens": 200, "stream": True, "system": [{"type": "text", "text": "You code."}],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}], "messages": chat}
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json",
               "anthropic-version": "2023-06-01", "user-agent": "claude-cli/2.0 (external, cli)"}
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(), headers)
    blocks = {}
    for line in urllib.request.urlopen(request, timeout=100):
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if event["type"] == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        if event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            key = {"text_delta": "text", "input_json_delta": "json"}[delta["type"]]
            block[key] = block.get(key, "") + delta[{"json": "partial_json"}.get(key, key)]
    for block in blocks.values():
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("json", "") or "{}")
    return list(blocks.values())

chat = [{"role": "user", "content": "fix it"}]
for turn in range(4):
    blocks = ask(chat)
    results = [{"type": "tool_result", "tool_use_id": b["id"], "content": SEES}
               for b in blocks if b["type"] == "tool_use"]
    chat += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
print("done")
"""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("sees", "sandbox", "difference"),
    [
        ("f'line {turn}'", "none", None),
        ("os.getcwd()", "bubblewrap", None),
        ("os.getcwd()", "none", r"message 4 \(tool of call 1\) is now .*/ajet-episode-"),
        ("os.urandom(4).hex()", "none", r"message 4 \(tool of call 1\) is now "),
    ],
    ids=["steady", "its folder in a sandbox", "its folder", "random"],
)
def test_a_coding_agent_is_forked_through_the_gateway(
    bench: Any, tokenizer: Any, tmp_path: Path, sees: str, sandbox: str, difference: str | None
) -> None:
    if sandbox != "none" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    program = tmp_path / "agent.py"
    program.write_text(CODING_AGENT.replace("SEES", sees))
    command = (sys.executable, str(program))
    walls = {} if sandbox == "none" else {"sandbox": sandbox, "read": (program,)}
    workflow = whole(type="command", command=command, workdir=tmp_path, **walls)
    running = bench(ScriptedEngine(tokenizer, looks))
    parent = run_command(running, workflow)
    assert parent.failure is None, parent.error
    running.engine.requests.clear()
    fork = run_command(running, workflow, fork=Fork(parent.id, 3, parent.record))
    assert len(running.engine.requests) == (0 if difference else 1)
    assert fork.failure == ("diverged" if difference else None), fork.error
    assert difference is None or re.match(f"call 1 differs from its recording: {difference}", fork.error), (
        fork.error
    )


# ---------------------------------------------------------------- divergence


def a_clock_in_the_prompt() -> Any:
    clock = itertools.count()

    async def workflow(task: Task) -> str:
        chat: list[Any] = [{"role": "system", "content": f"It is 12:0{next(clock)}."}]
        return await talk([*chat, {"role": "user", "content": task.query}], lambda turn: f"turn {turn}")

    return (
        workflow,
        r"call 0 differs from its recording: message 1 \(system\) is now .*12:01.*, and was .*12:00",
    )


def a_random_tool() -> Any:
    numbers = itertools.count()

    async def workflow(task: Task) -> str:
        return await talk([{"role": "user", "content": task.query}], lambda turn: f"drawn: {next(numbers)}")

    return (
        workflow,
        r"call 1 differs from its recording: message 3 \(user\) is now \"drawn: 4\", and was \"drawn: 0\"",
    )


def a_changed_environment() -> Any:
    """The parent's episode leaves a trace that the fork finds."""
    files: list[str] = []

    async def workflow(task: Task) -> str:
        def see(turn: int) -> str:
            listed = " ".join(files) or "nothing"
            files.append(f"file{turn}")
            return listed

        return await talk([{"role": "user", "content": task.query}], see)

    return (
        workflow,
        r"call 1 differs from its recording: message 3 \(user\) is now \"file0.*, and was \"nothing\"",
    )


def another_limit() -> Any:
    episodes = itertools.count()

    async def workflow(task: Task) -> str:
        limit = 100 + next(episodes)
        return await talk([{"role": "user", "content": task.query}], lambda turn: "go on", max_tokens=limit)

    return workflow, r"call 0 differs from its recording: sampling \(101, \(\)\), recorded \(100, \(\)\)"


async def talk(chat: list[Any], told: Callable[[int], str], **more: Any) -> str:
    for turn in range(TURNS):
        said = (await ask(chat, **more)).content
        chat += [{"role": "assistant", "content": said}, {"role": "user", "content": told(turn)}]
    return "done"


@pytest.mark.parametrize("case", [a_clock_in_the_prompt, a_random_tool, a_changed_environment, another_limit])
def test_a_fork_that_diverges_ends_at_once_and_nothing_of_it_is_trained(forked: Any, case: Any) -> None:
    workflow, difference = case()
    runs = forked(workflow, retries=3)
    fork = runs.fork(3)
    assert fork.failure == "diverged" and fork.attempt == 0, "another attempt would diverge again"
    assert runs.asked == 0
    assert TokenSelection().learnable(fork) is None and fork.record.sampled_tokens == 0
    with pytest.raises(AssertionError, match=difference):
        raise AssertionError(fork.error)


def test_a_whole_episode_is_recalled_without_the_engine_and_asks_nothing_more(forked: Any) -> None:
    runs_of = itertools.count()

    async def talks_more_each_time(task: Task) -> str:
        text = await agent(task)
        for number in range(next(runs_of) // 2):
            await ask([{"role": "user", "content": f"more {number}"}])
        return text

    runs = forked(talks_more_each_time)
    same = runs.fork(TURNS)
    assert same.failure is None and runs.asked == 0
    more = runs.fork(TURNS)
    assert more.error == "call 4 is not recorded: it comes after the last call" and runs.asked == 0


def test_an_agent_that_catches_the_error_is_ended_all_the_same(forked: Any) -> None:
    clock = itertools.count()
    ended = threading.Event()

    async def stubborn(task: Task) -> str:
        now = next(clock)
        try:
            while True:
                try:
                    await ask([{"role": "user", "content": f"It is {now}"}])
                    return "done"
                except openai.APIStatusError:
                    await asyncio.sleep(0.01)
        finally:
            ended.set()

    runs = forked(stubborn)
    assert runs.fork(1).failure == "diverged" and ended.is_set()


def test_a_fork_that_leaves_out_a_call_has_diverged(forked: Any) -> None:
    runs_of = itertools.count()

    async def lazy(task: Task) -> str:
        first = next(runs_of) == 0
        for name in ("left", "right") if first else ("left",):
            await ask([{"role": "user", "content": name}])
        return "done"

    fork = forked(lazy).fork(2)
    assert fork.failure == "diverged" and fork.error == "it ended without call 1 of its recording"


def test_a_fork_that_fails_otherwise_is_tried_again_like_any_episode(forked: Any) -> None:
    tries = itertools.count()

    async def flaky(task: Task) -> str:
        text = await agent(task)
        if next(tries) == 1:
            raise ValueError("the first attempt of the fork")
        return text

    runs = forked(flaky, retries=1)
    fork = runs.fork(2)
    assert fork.failure is None and fork.attempt == 1
    assert said(fork) == ["0-0", "0-1", "1-2", "1-3"]
