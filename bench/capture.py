"""Measures the in-process hook: CPU of a call through the openai SDK, and memory of waiting episodes.

    python bench/capture.py

The reference is the SDK over a transport that answers immediately; all other calls use an engine that answers
immediately. `hook_ratio_to_sdk` is what the hook itself adds: finding the episode, the way to the engine's loop and back,
the wire's request and reply, and the client's response, with prepared answers of the session. `waiting_ratio_to_sdk` is
the same with an engine that works in a task of its loop, as engines with a model do. `recorded_ratio_to_sdk` is what a
whole recorded call adds, including the session's work (conversation, prompt, record), but not the tokens: rendering and
parsing are prepared, and measured separately. CPU is that of all threads, in short alternating blocks; a ratio is the
median over blocks, for sync or async, whichever is higher. The waiting episodes are complete, each with a workflow, a
session and a call that waits for the engine; the bytes of their messages and tokens are subtracted. Last line: one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gateway import (
    COMPLETION,
    PROMPT,
    TEXT,
    AtOnce,
    completion,
    direct_sdk,
    prepared_chat,
    reading_cpu,
    rendering_cpu,
)

from ajet.capture.answers import Answerer
from ajet.capture.context import passthrough
from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.process.install import install
from ajet.capture.respond import Reply
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Session, current_session
from ajet.capture.targets import Target
from ajet.interfaces.wire import Answer
from ajet.interfaces.workflow import LoadedWorkflow
from ajet.plugins import load_plugins
from ajet.rollout.episode import EpisodeRunner, Plan
from ajet.rollout.watchdog import Board
from ajet.types import GenerateRequest, Generation, Task
from ajet.utils.patching import replaced

ROUNDS, BLOCKS, CALLS = 9, 8, 25
"""Calls of each kind in a block, and blocks in a round."""
EPISODES = 1_000
MESSAGES: Any = [{"role": "system", "content": "You are of use."}, {"role": "user", "content": ""}]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    ratios = ratios_to_sdk(rounds * BLOCKS)
    each = episodes_kib(EPISODES)
    print(
        f"rendering a continued conversation: {1e6 * rendering_cpu():.0f} µs, reading an answer: {1e6 * reading_cpu():.0f} µs"
    )
    print(json.dumps({**ratios, "episodes_1000_kib_each": round(each, 1)}))


# --------------------------------------------------------------------------- CPU


def ratios_to_sdk(blocks: int) -> dict[str, float]:
    """The CPU that is added to an SDK call, as shares of the SDK's own."""
    found: dict[str, list[float]] = {}
    number = 0

    def new_messages() -> Any:
        nonlocal number
        number += 1
        return [MESSAGES[0], {"role": "user", "content": f"{number} {TEXT}"}]

    with Hooked() as hooked:
        sync, asynchronous = direct_sdk()

        def measure(name: str) -> None:
            for kind, figure in (
                ("sync", cpu(lambda: sync.chat.completions.create(model="m", messages=new_messages()))),
                (
                    "async",
                    cpu_async(
                        lambda: asynchronous.chat.completions.create(model="m", messages=new_messages())
                    ),
                ),
            ):
                found.setdefault(f"{kind}, {name}", []).append(figure)

        for _ in range(blocks):
            with passthrough():
                measure("direct transport")
            with hooked.episode(), prepared_reply():
                measure("there and back")
            with hooked.episode(), prepared_session():
                measure("hook alone")
            with hooked.episode(), prepared_session(AtWork()):
                measure("hook, waiting")
            with hooked.episode(), prepared_reading(hooked.chat):
                measure("hook and session")
    for name, values in found.items():
        print(f"{name:24}{1e6 * statistics.median(values):8.0f} µs of CPU a call")

    def added(name: str, kind: str) -> float:
        pairs = zip(found[f"{kind}, {name}"], found[f"{kind}, direct transport"], strict=True)
        return statistics.median((ours - direct) / direct for ours, direct in pairs)

    names = {
        "hook_ratio_to_sdk": "hook alone",
        "waiting_ratio_to_sdk": "hook, waiting",
        "recorded_ratio_to_sdk": "hook and session",
    }
    return {key: round(max(added(name, "sync"), added(name, "async")), 3) for key, name in names.items()}


@contextmanager
def prepared_reply() -> Iterator[None]:
    """A block in which calls reach the engine's loop, but do nothing there."""
    body = json.dumps(completion()).encode()

    async def reply() -> Reply:
        return Reply(200, body)

    with replaced(Capture, begin=lambda *_: reply()):
        yield


@contextmanager
def prepared_session(work: AtWork | None = None) -> Iterator[None]:
    """A block in which sessions' answers are ready, or are ready after ``work``."""
    answers: Any = [
        Answer({"role": "assistant", "content": "word " * COMPLETION}, "stop", PROMPT, COMPLETION)
    ]

    async def choices(self: Session, *_: Any) -> Any:
        if work:
            await work.done()
        return answers

    with replaced(Session, choices=choices, take=lambda self, *_: answers):
        yield


class AtWork:
    """A task that calls wait for, like an engine's."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def done(self) -> None:
        """Wait until the task has done its pending work."""
        if self._task is None:
            self._asked = asyncio.Event()
            self._waiting: list[asyncio.Future[None]] = []
            self._task = asyncio.create_task(self._work())
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._asked.set()
        await future

    async def _work(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            await asyncio.sleep(0)
            for future in self._waiting:
                future.set_result(None)
            self._waiting.clear()


@contextmanager
def prepared_reading(chat: Any) -> Iterator[None]:
    """A block in which answers are not parsed: all have the same prepared content."""
    ready = chat.parse(AtOnce(chat.tokenizer).ids.tolist(), [])
    with replaced(type(chat), parse=lambda *_: ready):
        yield


def cpu(call: Callable[[], Any]) -> float:
    """CPU seconds per call, of all threads."""
    call()
    start = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - start) / CALLS


def cpu_async(call: Callable[[], Any]) -> float:
    async def calls() -> float:
        await call()
        start = time.process_time()
        for _ in range(CALLS):
            await call()
        return (time.process_time() - start) / CALLS

    return asyncio.run(calls())


class Hooked:
    """Capture with an engine that answers immediately, unless another is given."""

    def __init__(self, engine: Any = None, chat: Any = None) -> None:
        self.portal = Portal()
        self.capture = Capture(self.portal)
        self.chat = chat or prepared_chat()
        self.answerer = Answerer(
            engine or AtOnce(self.chat.tokenizer),
            self.chat,
            (Target("policy"),),
            SamplingPolicy(training=True),
        )

    def __enter__(self) -> Hooked:
        self.capture.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.capture.__exit__(*exc)
        self.portal.close()

    @contextmanager
    def episode(self) -> Iterator[None]:
        """A block whose calls belong to one episode."""
        session = Session("e", "e", self.answerer)
        self.capture.open(session)
        token = current_session.set(session)
        try:
            yield
        finally:
            current_session.reset(token)
            asyncio.run(self.capture.end(session))


@contextmanager
def running(hooked: Hooked, agent: Any) -> Iterator[EpisodeRunner]:
    """What runs an agent's episodes."""
    with install(hooked.capture) as around:
        plugins = load_plugins()
        yield EpisodeRunner(
            workflow=LoadedWorkflow("bench", agent, True, 2),
            answerer=hooked.answerer,
            capture=hooked.capture,
            handles=plugins.handles,
            timeout=600.0,
            board=Board(),
            hook=plugins.manager.hook,
            missed=around.missed,
        )


# --------------------------------------------------------------------------- waiting episodes


class Waits:
    """An engine whose callers wait until `answers` is set."""

    context_length = 1 << 20
    model_type = "qwen3"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.waiting = 0
        self.answers = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `ajet.Engine.generate`."""
        self.waiting += 1
        await self.answers.wait()
        ids = np.array([self.tokenizer.eos_token_id], np.int32)
        return Generation(ids, np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")


def episodes_kib(count: int) -> float:
    """KiB per waiting episode, without its messages and tokens."""
    import httpx2
    import openai

    chat = prepared_chat()
    engine = Waits(chat.tokenizer)
    client = openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:9/v1", max_retries=0, timeout=600)
    assert httpx2

    async def agent(task: Task, tuner: Any) -> str:
        messages: Any = [MESSAGES[0], {"role": "user", "content": f"{task.id} {TEXT}"}]
        answer = await client.chat.completions.create(model="m", messages=messages)
        return answer.choices[0].message.content or ""

    async def run(hooked: Hooked, count: int) -> float:
        engine.waiting = 0
        engine.answers.clear()
        with running(hooked, agent) as runner:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            tasks = [
                asyncio.ensure_future(runner.run(Plan(f"e{n}", str(n), Task(f"t{n}"), 0, 0), 0))
                for n in range(count)
            ]
            while engine.waiting < count:
                await asyncio.sleep(0.05)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0] - before
            hooked.portal.loop.call_soon_threadsafe(engine.answers.set)
            episodes = await asyncio.gather(*tasks)
        data = [_data_bytes(e) for e in episodes]
        assert all(e.failure is None for e in episodes), episodes[0].error
        return (held - sum(data)) / count / 1024

    with Hooked(engine) as hooked:
        asyncio.run(run(hooked, 20))  # creates what exists only once
        tracemalloc.start()
        each = asyncio.run(run(hooked, count))
        tracemalloc.stop()
    print(f"{count:,} waiting episodes: {each:.1f} KiB each without their messages and tokens")
    return each


def _data_bytes(episode: Any) -> int:
    """Bytes of an episode's prompts and messages; each message counts twice, as the agent's and the request's."""
    text = sum(len(m["content"]) for e in episode.record.exchanges for m in e.chat()[:-1])
    tokens = sum(c.prompt.length for c in episode.record.calls)
    return 2 * text + 4 * tokens


if __name__ == "__main__":
    main()
