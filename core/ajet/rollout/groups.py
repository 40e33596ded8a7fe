"""Collects groups for a judge that scores all members together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from ajet.interfaces.judge import GroupJudge, given
from ajet.rollout.episode import Episode, Plan
from ajet.types import JudgeOutput
from ajet.utils.threads import called


class Groups:
    """Collects episodes until their planned groups are complete: every member has ended, successfully or not."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._missing = Counter(plan.group for plan in plans)
        self._members: dict[int, list[Episode]] = {}
        self._judged: dict[int, asyncio.Event] = {}

    async def judged(self, episode: Episode, judge: Callable[[Sequence[Episode]], Awaitable[None]]) -> None:
        """Return when the episode's group has been judged; the last member to end judges all of them."""
        number = episode.plan.group
        self._missing[number] -= 1
        members = self._members.setdefault(number, [])
        members.append(episode)
        event = self._judged.setdefault(number, asyncio.Event())
        if self._missing[number]:
            await event.wait()
            return
        try:
            await judge(sorted(members, key=lambda e: e.plan.member))
        finally:
            event.set()


def judged_groups(episodes: Sequence[Episode]) -> dict[int, list[Episode]]:
    """The episodes that have not failed, by the number of their group."""
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        if episode.failure is None:
            groups.setdefault(episode.plan.group, []).append(episode)
    return dict(sorted(groups.items()))


async def score(judge: GroupJudge, members: Sequence[Episode]) -> list[JudgeOutput | Exception | None]:
    """The verdicts on a complete group, one per member. Raises ValueError if the judge returned another number."""
    plan, views = members[0].plan, [e.view() for e in members]
    verdicts = list(
        await called(judge.score_group, plan.task, views, name=f"the judge of group {plan.group}")
    )
    if len(verdicts) != len(members):
        raise ValueError(f"returned {len(verdicts)} verdicts for a group of {len(members)}")
    return verdicts


def verdict_of(
    scored: asyncio.Future[list[JudgeOutput | Exception | None]], index: int
) -> Callable[[], Coroutine[Any, Any, JudgeOutput]]:
    """A coroutine that picks one member's verdict from its group's, or raises what the judge raised for either."""

    async def verdict() -> JudgeOutput:
        return given(scored.result()[index])

    return verdict
