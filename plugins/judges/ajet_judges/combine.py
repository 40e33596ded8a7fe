"""The `combine` judge: several judges as one, by a weighted sum and gates."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic import Field, PrivateAttr, field_validator

from ajet import EpisodeView, GroupJudge, Judge, JudgeOutput, Settings, Task, WorkflowOutput
from ajet.interfaces.helpers import called
from ajet.interfaces.judge import rounded


class CombinedJudge(Settings):
    """One of the combined judges."""

    judge: Judge = Field(description="A judge, as in the job: {type: math}, or only its name.")
    weight: float = Field(1.0, allow_inf_nan=False, description="Weight of its reward in the sum.")
    gate: float | None = Field(
        None, description="Minimum reward of this part; below it, the episode's reward is `closed`."
    )


class Combine(Judge):
    """The weighted sum of several judges' rewards, with gates.

    If a part gives rewards to single agents or targets, so does the sum; a part without a reward for a name adds its
    episode reward there. Parts run in order. When a gate rejects an episode, later parts are not asked about it, so
    put expensive judges last.
    """

    name = "combine"

    parts: dict[str, CombinedJudge] = Field(
        description="The judges, under names that you choose.", min_length=1
    )
    closed: float = Field(0.0, allow_inf_nan=False, description="Reward of an episode that a gate rejects.")
    _live: Mapping[str, Judge] = PrivateAttr({})

    @field_validator("parts", mode="before")
    @classmethod
    def _named(cls, parts: Any) -> Any:
        if isinstance(parts, list | tuple):
            raise ValueError("each part needs a name of its own: {right: {judge: math, weight: 1}, …}")
        return parts

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Combine]:
        """Open all parts. If one of them judges groups, yield a judge of groups."""
        async with AsyncExitStack() as stack:
            live = {
                name: await stack.enter_async_context(part.judge.open()) for name, part in self.parts.items()
            }
            over_groups = any(isinstance(judge, GroupJudge) for judge in live.values())
            combined = (CombineOverGroups if over_groups else Combine)(parts=self.parts, closed=self.closed)
            combined._live = live
            yield combined

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        (verdict,) = await self.score(task, [replace(episode, output=output)])
        if isinstance(verdict, Exception):
            raise verdict
        assert verdict is not None
        return verdict

    async def score(
        self, task: Task, episodes: Sequence[EpisodeView]
    ) -> Sequence[JudgeOutput | Exception | None]:
        """A verdict for each episode, or what its judge raised; None for an episode that failed."""
        if not self._live:
            async with self.open() as live:
                return await live.score(task, episodes)
        sums = [_Sum(e) for e in episodes]
        for name, part in self.parts.items():
            await self._add(name, part, task, sums)
        return [s.verdict(self.closed) for s in sums]

    async def _add(self, name: str, part: CombinedJudge, task: Task, sums: Sequence[_Sum]) -> None:
        judge = self._live[name]
        if isinstance(judge, GroupJudge):
            if any(s.view.failure is None for s in sums):
                views = [s.view for s in sums]
                verdicts = await called(judge.score_group, task, views, name=f"the judge {name}")
                for s, verdict in zip(sums, verdicts, strict=True):
                    s.add(name, part, verdict)
            return
        pending = [s for s in sums if s.view.failure is None]
        verdicts = await asyncio.gather(*(_verdict(judge, task, s.view) for s in pending))
        for s, verdict in zip(pending, verdicts, strict=True):
            s.add(name, part, verdict)


class CombineOverGroups(Combine, GroupJudge):
    """`combine` while a job runs, if one of its parts judges groups."""

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        return await Combine.judge(self, task, output, episode)

    async def score_group(
        self, task: Task, episodes: Sequence[EpisodeView]
    ) -> Sequence[JudgeOutput | Exception | None]:
        return await self.score(task, episodes)


async def _verdict(judge: Judge, task: Task, view: EpisodeView) -> JudgeOutput | Exception:
    """A judge's verdict on one episode, or what it raised."""
    try:
        verdict: JudgeOutput = await called(
            judge.judge, task, view.output, view, name=f"the judge of {view.id}"
        )
        return verdict
    except Exception as error:
        return error


class _Sum:
    """The running sum of the parts' verdicts on one episode."""

    def __init__(self, view: EpisodeView) -> None:
        self.view = view
        """After a gate rejected the episode or a judge raised, it is marked as failed for later judges."""
        self._absent = view.failure is not None
        self._error: Exception | None = None
        self._reward = 0.0
        self._rewards: dict[str, float] = {}
        self._call_rewards: dict[int, float] = {}
        self._closed = False
        self._successes: list[bool] = []
        self._metrics: dict[str, float] = {}

    def add(self, name: str, part: CombinedJudge, verdict: JudgeOutput | Exception | None) -> None:
        if self.view.failure is not None:
            return
        if isinstance(verdict, JudgeOutput) and not math.isfinite(verdict.reward):
            verdict = ValueError(f"{name}: the reward is {verdict.reward}, which is not a finite number")
        if not isinstance(verdict, JudgeOutput):
            self._error = verdict or ValueError(f"{part.judge.name}: no verdict")
            self.view = replace(self.view, failure="judge")
            return
        self._rewards = {
            name: self._rewards.get(name, self._reward)
            + part.weight * verdict.rewards.get(name, verdict.reward)
            for name in {**self._rewards, **verdict.rewards}
        }
        self._reward += part.weight * verdict.reward
        given = verdict.call_rewards
        for place, reward in given.items() if isinstance(given, Mapping) else enumerate(given):
            self._call_rewards[place] = self._call_rewards.get(place, 0.0) + part.weight * reward
        self._metrics |= {f"{name}/{key}": value for key, value in verdict.metrics.items()}
        self._metrics[name] = float(verdict.reward)
        if verdict.is_success is not None:
            self._successes.append(bool(verdict.is_success))
        if part.gate is not None and verdict.reward < part.gate:
            self._closed = True
            self.view = replace(self.view, failure=f"gate:{name}")

    def verdict(self, closed: float) -> JudgeOutput | Exception | None:
        if self._absent or self._error is not None:
            return self._error
        if self._closed:
            return JudgeOutput(closed, False, self._metrics)
        success = all(self._successes) if self._successes else None
        rewards = {name: rounded(reward) for name, reward in self._rewards.items()}
        calls = {place: rounded(reward) for place, reward in self._call_rewards.items()}
        return JudgeOutput(rounded(self._reward), success, self._metrics, rewards, call_rewards=calls)
