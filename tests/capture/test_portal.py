"""The way to the engine's loop and back, from threads and from other loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from ajet.capture.portal import Portal
from tests.patience import PATIENCE

number: ContextVar[int] = ContextVar("number", default=0)


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


class Work:
    """What a coroutine on the loop did."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.was_cancelled = False

    async def wait(self, until: Callable[[], bool] = lambda: False) -> str:
        try:
            async with asyncio.timeout(5 * PATIENCE):
                while not until():
                    await asyncio.sleep(0.01)
            return "done"
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        finally:
            self.ended.set()

    def was_stopped(self) -> bool:
        return self.ended.wait(PATIENCE) and self.was_cancelled


async def double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


async def fail() -> None:
    raise KeyError("why")


async def ask() -> int:
    return number.get()


def test_threads_and_loops_at_once_each_get_their_own(portal: Portal) -> None:
    async def loop(n: int) -> list[int]:
        return await asyncio.gather(*(portal.run(double(n + i), PATIENCE) for i in range(20)))

    with ThreadPoolExecutor(8) as pool:
        waited = pool.map(lambda n: [portal.wait(double(n + i), PATIENCE) for i in range(20)], range(100))
        awaited = pool.map(lambda n: asyncio.run(loop(n)), range(100))
        expected = [[2 * (n + i) for i in range(20)] for n in range(100)]
        assert list(waited) == expected and list(awaited) == expected


def test_what_is_raised_there_is_raised_here(portal: Portal) -> None:
    with pytest.raises(KeyError, match="why"):
        portal.wait(fail())
    with pytest.raises(KeyError, match="why"):
        asyncio.run(portal.run(fail()))


def test_a_coroutine_runs_in_the_context_of_its_caller(portal: Portal) -> None:
    number.set(7)
    assert portal.wait(ask()) == asyncio.run(portal.run(ask())) == 7


def test_after_a_timeout_the_coroutine_is_cancelled(portal: Portal) -> None:
    one, two = Work(), Work()
    with pytest.raises(TimeoutError):
        portal.wait(one.wait(), 0.05)
    with pytest.raises(TimeoutError):
        asyncio.run(portal.run(two.wait(), 0.05))
    assert one.was_stopped() and two.was_stopped()


def test_cancellation_of_the_caller_goes_through(portal: Portal) -> None:
    work = Work()

    async def caller() -> None:
        async with asyncio.timeout(0.05):
            await portal.run(work.wait(), PATIENCE)

    with pytest.raises(TimeoutError):
        asyncio.run(caller())
    assert work.was_stopped()


def test_a_caller_that_gives_up_at_once_leaves_no_coroutine_that_never_ran(
    portal: Portal, recwarn: pytest.WarningsRecorder
) -> None:
    for _ in range(50):
        with pytest.raises(TimeoutError):
            portal.wait(Work().wait(), 0)
    portal.wait(double(1))
    gc.collect()
    assert not [w for w in recwarn if "never awaited" in str(w.message)]


def test_a_coroutine_cancelled_on_the_loop_is_an_exception_to_a_thread(portal: Portal) -> None:
    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task
        task.cancel()
        await asyncio.sleep(1)

    with pytest.raises(CancelledError) as caught:
        portal.wait(cancelled(), PATIENCE)
    assert isinstance(caught.value, Exception), "a thread has no task of its own that ended"
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(portal.run(cancelled(), PATIENCE))


def test_an_answer_for_a_loop_that_is_closed_hurts_nobody(
    portal: Portal, caplog: pytest.LogCaptureFixture
) -> None:
    own = asyncio.new_event_loop()
    work = Work()
    asking = own.create_task(portal.run(work.wait(own.is_closed)))
    own.run_until_complete(asyncio.sleep(0.01))
    own.close()
    assert work.ended.wait(PATIENCE) and portal.wait(double(2)) == 4
    assert not caplog.records and not asking.done()
    asking._log_destroy_pending = False  # type: ignore[attr-defined]
    asking.get_coro().close()  # type: ignore[union-attr]


def test_what_ends_something_goes_on_when_nobody_waits_any_longer(portal: Portal) -> None:
    work = Work()
    left = threading.Event()
    portal.leave(work.wait(left.is_set), 0.05)  # type: ignore[arg-type]
    left.set()
    assert work.ended.wait(PATIENCE) and not work.was_cancelled


def test_close_cancels_what_still_runs() -> None:
    portal, work = Portal(), Work()
    submitted = portal.submit(work.wait())
    portal.wait(double(1))
    portal.close()
    assert work.was_stopped()
    with pytest.raises(CancelledError):
        submitted.result(PATIENCE)
