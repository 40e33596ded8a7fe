"""Callbacks of other threads wake a loop once together, and none is lost, reordered or run in another's context."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from ajet.capture.portal import Mailbox, own_mailbox

who: ContextVar[str] = ContextVar("who", default="")


class Counted(asyncio.SelectorEventLoop):
    """A loop that counts how often it was woken."""

    woken = 0

    def call_soon_threadsafe(self, callback: Any, *args: Any, **options: Any) -> asyncio.Handle:
        self.woken += 1
        return super().call_soon_threadsafe(callback, *args, **options)


@pytest.fixture
def loop() -> Iterator[Counted]:
    made = Counted()
    yield made
    made.close()


def test_what_is_posted_while_the_loop_is_busy_wakes_it_once_and_stays_in_order(loop: Counted) -> None:
    mailbox, done = Mailbox(loop), []
    for n in range(100):
        mailbox.post(lambda n=n: done.append(n))
    mailbox.post(loop.stop)
    loop.run_forever()
    assert done == list(range(100))
    assert loop.woken == 1
    mailbox.post(loop.stop)
    loop.run_forever()
    assert loop.woken == 2


def test_each_callback_has_the_context_of_its_post(loop: Counted) -> None:
    mailbox, seen = Mailbox(loop), []
    for name in ("a", "b"):
        who.set(name)
        mailbox.post(lambda: seen.append(who.get()))
    who.set("")
    mailbox.post(loop.stop)
    loop.run_forever()
    assert seen == ["a", "b"]


def test_a_callback_that_raises_stops_no_other(loop: Counted) -> None:
    mailbox, raised, done = Mailbox(loop), [], []
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    mailbox.post(lambda: 1 / 0)
    mailbox.post(lambda: done.append(1))
    mailbox.post(loop.stop)
    loop.run_forever()
    assert done == [1] and isinstance(raised[0], ZeroDivisionError)


def test_none_is_lost_between_threads(loop: Counted) -> None:
    mailbox, count, done = Mailbox(loop), 20_000, []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def post(name: int) -> None:
        for n in range(count):
            mailbox.post(lambda n=n: arrived((name, n)))

    def arrived(one: tuple[int, int]) -> None:
        done.append(one)
        if len(done) == 3 * count:
            loop.stop()

    threads = [threading.Thread(target=post, args=(name,)) for name in range(3)]
    try:
        for thread in threads:
            thread.start()
        watch = loop.call_later(60, loop.stop)
        loop.run_forever()
        watch.cancel()
    finally:
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
    assert len(done) == 3 * count
    for name in range(3):
        assert [n for of, n in done if of == name] == list(range(count))


def test_a_loop_has_one_mailbox_and_a_closed_loop_says_so() -> None:
    async def both() -> tuple[Mailbox, Mailbox]:
        return own_mailbox(), own_mailbox()

    first, second = asyncio.run(both())
    assert first is second
    assert asyncio.run(both())[0] is not first
    with pytest.raises(RuntimeError, match="closed"):
        first.post(print)
