"""All runners together run `rollout.concurrency` episodes, and a slot is never left free while a group waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import numpy as np
import pytest

from ajet.types import AjetError
from ajet_verl import pool
from ajet_verl.pool import Slots, Tally
from tests.patience import PATIENCE


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine: the environment of these tests has no plugin for them."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def opened(limit: int, places: int) -> Slots:
    slots = Slots(limit, places)
    for place in range(places):
        slots.open(place)
    return slots


@pytest.mark.parametrize(("limit", "places"), [(64, 2), (7, 3), (2, 4), (1, 1)])
@in_loop
async def test_shares_add_up_to_the_limit_and_differ_by_at_most_one(limit: int, places: int) -> None:
    slots = Slots(limit, places)
    shares = [slots.share(place) for place in range(places)]
    assert sum(shares) == limit and max(shares) - min(shares) <= 1


@in_loop
async def test_a_unit_goes_to_the_place_with_the_most_free_slots() -> None:
    slots = opened(8, 2)
    assert [await slots.take(3), await slots.take(1)] == [0, 1]
    assert await slots.take(1) == 1, "3 are free there, and 1 at place 0"


@in_loop
async def test_a_unit_larger_than_a_share_starts_with_one_free_slot_and_the_next_one_waits() -> None:
    slots = opened(2, 1)
    await slots.take(2)
    waiting = asyncio.ensure_future(slots.take(8))
    await settled()
    assert not waiting.done()
    slots.free(0, 1)
    assert await waiting == 0
    following = asyncio.ensure_future(slots.take(1))
    for _ in range(7):
        slots.free(0, 1)
        await settled()
        assert not following.done(), "8 episodes are there for 2 slots"
    slots.free(0, 1)
    assert await following == 0


@in_loop
async def test_units_are_served_in_order_and_a_cancelled_one_takes_no_slot() -> None:
    slots = opened(1, 1)
    await slots.take(1)
    one, two, three = (asyncio.ensure_future(slots.take(1)) for _ in range(3))
    await settled()
    two.cancel()
    slots.free(0, 1)
    await settled()
    assert one.done() and not three.done()
    one_more = asyncio.ensure_future(slots.take(1))
    slots.free(0, 1)
    one_more.cancel()
    await settled()
    assert three.done()
    slots.free(0, 1)
    assert await slots.take(1) == 0


@in_loop
async def test_a_grant_that_is_cancelled_before_it_arrives_is_given_back() -> None:
    slots = opened(1, 1)
    await slots.take(1)
    taking = asyncio.ensure_future(slots.take(1))
    await settled()
    slots.free(0, 1)
    taking.cancel()  # it is granted, and its coroutine has not run since
    await settled()
    assert taking.cancelled()
    assert await asyncio.wait_for(slots.take(1), 1) == 0


@in_loop
async def test_a_closed_place_gets_nothing_and_a_removed_one_leaves_its_share() -> None:
    slots = opened(4, 2)
    slots.close(0)
    assert [await slots.take(1), await slots.take(1)] == [1, 1]
    waiting = asyncio.ensure_future(slots.take(1))
    await settled()
    assert not waiting.done()
    slots.remove(0)
    assert await waiting == 1 and slots.share(1) == 4


@in_loop
async def test_without_any_place_the_waiting_units_fail() -> None:
    slots = opened(1, 1)
    await slots.take(1)
    waiting = asyncio.ensure_future(slots.take(1))
    await settled()
    slots.remove(0)
    for one in (waiting, slots.take(1)):
        with pytest.raises(AjetError, match="no episode runner is left"):
            await one


@in_loop
async def test_4000_episodes_of_groups_never_exceed_the_limit_by_running_ones() -> None:
    slots, draw = opened(64, 5), np.random.default_rng(0)
    running, most = [0] * 5, 0

    async def unit(size: int) -> None:
        nonlocal most
        place = await slots.take(size)
        for _ in range(size):  # as in a runner, which holds back those above its share
            while running[place] >= slots.share(place):
                await asyncio.sleep(0)
            running[place] += 1
            most = max(most, sum(running))
            for _ in range(int(draw.integers(1, 6))):
                await asyncio.sleep(0)
            running[place] -= 1
            slots.free(place, 1)

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(unit(8) for _ in range(500)))
    assert most <= 64 and not any(running)


@in_loop
async def test_progress_counts_episodes_once_also_if_a_unit_runs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "REPORT_SECONDS", 0.0)
    told: list[Any] = []
    progress = Tally("train", lambda *report: told.append(report))
    for name in ("a", "b"):
        progress.start(name, 4)
    progress.ended("a", 3)
    await asyncio.sleep(0.01)
    progress.again("a")
    progress.ended("b", 1)
    await asyncio.sleep(0.01)
    progress.end("a")
    progress.ended("a", 1)  # a report that arrives late
    await asyncio.sleep(0.01)
    progress.drop(["a"])
    progress.end("b")
    await asyncio.sleep(0.01)
    assert told == [("train", 3, 8), ("train", 1, 8), ("train", 5, 8), ("train", 4, 4)]
