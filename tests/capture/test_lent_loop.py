"""An idle engine's loop is lent to callers: in their thread, but in all else as on the loop, and never two at once."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from ajet.capture.missed import Listener
from ajet.capture.portal import Portal
from ajet.capture.reach import reach
from ajet.testing import ScriptedEngine
from ajet.types import GenerateRequest, Generation
from tests.engines import SECONDS

Call = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    until_idle(portal)
    yield portal
    portal.close()


@pytest.fixture(params=["thread", "loop"])
def call(request: pytest.FixtureRequest, portal: Portal) -> Call:
    """A call from a thread without a loop, and from one with a loop of its own."""
    if request.param == "thread":
        return lambda coroutine: portal.wait(coroutine, SECONDS)
    return lambda coroutine: asyncio.run(portal.run(coroutine, SECONDS, here=True))


def until_idle(portal: Portal) -> None:
    """Wait until the loop's thread waits for events, and no wake-up is on its way to it."""
    deadline, idle = time.monotonic() + SECONDS, 0
    while idle < 10:
        assert time.monotonic() < deadline, "the loop never waits"
        time.sleep(0.001)
        idle = idle + 1 if portal.loop.borrow(lambda: True) else 0


def test_what_a_thread_has_put_on_the_loop_goes_before_what_it_borrows_for(portal: Portal) -> None:
    """Lockstep is told in this way which episodes run before one of them asks."""
    for _ in range(300):
        seen: list[int] = []

        async def second(seen: list[int] = seen) -> None:
            seen.append(2)

        portal.loop.call_soon_threadsafe(seen.append, 1)
        portal.wait(second(), SECONDS)
        assert seen == [1, 2]


async def thread() -> int:
    return threading.get_ident()


async def thread_after_a_wait() -> int:
    await asyncio.sleep(0.01)
    return threading.get_ident()


def engine_thread(portal: Portal) -> int:
    return portal.submit(thread()).result(SECONDS)


def test_what_waits_for_nothing_is_done_in_the_callers_thread(portal: Portal, call: Call) -> None:
    assert call(thread()) == threading.get_ident()


def test_after_its_first_wait_a_call_goes_on_in_the_loops_thread(portal: Portal, call: Call) -> None:
    assert call(thread_after_a_wait()) == engine_thread(portal) != threading.get_ident()


def test_a_busy_loop_is_not_lent(portal: Portal, call: Call) -> None:
    expected = engine_thread(portal)
    is_busy, deadline = threading.Event(), time.monotonic() + SECONDS

    def work() -> None:
        """Until the call has come to the loop."""
        ready = portal.loop._ready  # type: ignore[attr-defined]
        others = len(ready)
        is_busy.set()
        while len(ready) == others and time.monotonic() < deadline:
            time.sleep(0.001)

    portal.loop.call_soon_threadsafe(work)
    assert is_busy.wait(SECONDS)
    assert call(thread()) == expected


def test_only_callers_who_allow_it_run_anything_in_their_thread(portal: Portal) -> None:
    assert asyncio.run(portal.run(thread(), SECONDS)) == engine_thread(portal) != threading.get_ident()


def test_in_debug_mode_everything_runs_in_the_loops_thread(portal: Portal, call: Call) -> None:
    expected = engine_thread(portal)
    portal.loop.set_debug(True)
    assert call(thread()) == expected


def test_a_borrower_is_in_a_task_of_the_loop_and_returns_to_its_own(portal: Portal) -> None:
    async def inside() -> tuple[Any, Any]:
        task = asyncio.current_task()
        return asyncio.get_running_loop(), task and task.get_loop()

    async def caller() -> None:
        own, task = asyncio.get_running_loop(), asyncio.current_task()
        assert await portal.run(inside(), SECONDS, here=True) == (portal.loop, portal.loop)
        assert (asyncio.get_running_loop(), asyncio.current_task()) == (own, task)
        with pytest.raises(KeyError):
            await portal.run(fails(), here=True)
        assert (asyncio.get_running_loop(), asyncio.current_task()) == (own, task)
        async with asyncio.timeout(SECONDS):
            await asyncio.sleep(0)

    assert portal.wait(inside(), SECONDS) == (portal.loop, portal.loop)
    assert asyncio._get_running_loop() is None
    asyncio.run(caller())


async def fails() -> None:
    raise KeyError("why")


def test_a_timeout_that_a_borrower_sets_ends_its_wait(portal: Portal, call: Call) -> None:
    async def limited() -> None:
        async with asyncio.timeout(0.05):
            await asyncio.sleep(10 * SECONDS)

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        call(limited())
    assert time.monotonic() - started < SECONDS / 2


def test_what_an_ended_call_leaves_on_the_loop_is_done(portal: Portal, call: Call) -> None:
    done: dict[str, threading.Event] = {
        name: threading.Event() for name in ("callback", "timer", "task", "stopped waiting")
    }

    async def waits() -> None:
        try:
            await asyncio.sleep(10 * SECONDS)
        finally:
            done["stopped waiting"].set()

    async def set_later() -> None:
        done["task"].set()

    waiting = portal.submit(waits())
    until_idle(portal)

    def leave(name: str) -> Coroutine[Any, Any, int]:
        async def leaving() -> int:
            loop = asyncio.get_running_loop()
            if name == "callback":
                loop.call_soon(done[name].set)
            elif name == "timer":
                loop.call_later(0.01, done[name].set)
            elif name == "task":
                leaving.task = loop.create_task(set_later())  # type: ignore[attr-defined]
            else:
                waiting.task.cancel()
            return threading.get_ident()

        return leaving()

    for name, event in done.items():
        until_idle(portal)
        assert call(leave(name)) == threading.get_ident()
        assert event.wait(SECONDS), name


def test_a_forgotten_generator_is_closed_on_the_loop_where_it_began(portal: Portal, call: Call) -> None:
    closed_on: list[Any] = []
    closed = threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closed_on.append(asyncio.get_running_loop())
            closed.set()

    async def first() -> int:
        return await anext(aiter(numbers()))

    assert call(first()) == 1
    gc.collect()
    assert closed.wait(SECONDS) and closed_on == [portal.loop]


def test_what_a_borrower_raises_gives_the_loop_back(portal: Portal) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        portal.wait(interrupted(), SECONDS)
    assert portal.wait(thread_after_a_wait(), SECONDS) == engine_thread(portal)
    until_idle(portal)
    assert portal.wait(thread(), SECONDS) == threading.get_ident()


def test_the_time_in_the_callers_thread_counts_towards_its_timeout(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + ahead[0])

    async def works_and_waits() -> None:
        ahead[0] += 2 * SECONDS
        await asyncio.sleep(100 * SECONDS)

    started = clock()
    with pytest.raises(TimeoutError):
        portal.wait(works_and_waits(), SECONDS)
    until_idle(portal)
    with pytest.raises(TimeoutError):
        asyncio.run(portal.run(works_and_waits(), SECONDS, here=True))
    assert clock() - started < SECONDS / 2, "all of their time had passed"


def test_never_two_threads_are_on_the_loop(portal: Portal) -> None:
    inside, both, threads = [0], [0], set()

    def work() -> None:
        inside[0] += 1
        both[0] += inside[0] > 1
        for _ in range(200):
            pass
        inside[0] -= 1
        threads.add(threading.get_ident())

    async def call(waits: bool) -> None:
        work()
        if waits:
            await asyncio.sleep(0)
            work()
            asyncio.get_running_loop().call_soon(work)

    def from_thread(n: int) -> None:
        for i in range(100):
            portal.wait(call((n + i) % 3 == 0), SECONDS)

    async def from_loop(n: int) -> None:
        for i in range(20):
            await asyncio.gather(
                *(portal.run(call((n + i + j) % 3 == 0), SECONDS, here=True) for j in range(5))
            )

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(from_thread, n) for n in range(8)]
        calls += [pool.submit(lambda n=n: asyncio.run(from_loop(n))) for n in range(8)]
        for one in calls:
            one.result(3 * SECONDS)
    assert both == [0]
    assert len(threads) > 2, "both the loop's thread and callers worked"


async def began(missed: Listener, key: str) -> None:
    missed.begin(key)


def test_connections_of_an_engine_are_its_own_in_any_thread(bench: Any, tokenizer: Any) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    connected_in = []

    class Remote(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            socket.create_connection(listening.getsockname()).close()
            connected_in.append(threading.get_ident())
            return self._sample(request)

    b = bench(Remote(tokenizer, lambda r, p: "ok"))
    with reach(b.capture, refuse_missed=True) as around, b.session() as session:
        asyncio.run(began(around.missed, session.key))
        client = openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1", max_retries=0)
        until_idle(b.portal)
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        missed = around.missed.end(session.key)
    listening.close()
    assert answer.choices[0].message.content == "ok"
    assert connected_in == [threading.get_ident()] and not missed
