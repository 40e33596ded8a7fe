"""Runs a plan of episodes: with limited concurrency, retries after failures, and judging as a separate stage."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ajet.capture.context import passthrough
from ajet.capture.judge_calls import JudgeCall, JudgeCalls, keeping
from ajet.capture.process.printed import printed_by_episode
from ajet.capture.replies import Replies
from ajet.interfaces.judge import GroupJudge, Judge, RewardFromWorkflow, rounded
from ajet.rollout.deadline import DeadlinePassed, within
from ajet.rollout.episode import Episode, Plan, RecordedTask
from ajet.rollout.failures import Failure, FailureKind, judge_failure
from ajet.rollout.groups import Groups, score, verdict_of
from ajet.rollout.settings import RolloutSettings
from ajet.rollout.watchdog import Board, watching
from ajet.types import ContractBroken, JudgeOutput, Spent
from ajet.utils.breakpoints import under_debugger
from ajet.utils.threads import called

if TYPE_CHECKING:
    from ajet.capture.portal import Portal
    from ajet.rollout.deterministic_batching import DeterministicBatching


_RECORDED = RewardFromWorkflow()
"""The judge of episodes that took place before."""


class AttemptRunner(Protocol):
    """What runs attempts: `EpisodeRunner` in this process, or something that forwards them."""

    async def run(self, plan: Plan, attempt: int) -> Episode:
        """Run one attempt. The result names the cause of a failure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Everything that running episodes needs. ``batching``, and the portal to it, are set in deterministic
    runs."""

    runner: AttemptRunner
    judge: Judge
    settings: RolloutSettings
    portal: Portal | None
    batching: DeterministicBatching | None
    say: Callable[[str], None]
    board: Board
    judge_check: Judge | None = None
    """A second judge, which judges `RolloutSettings.judge_check_share` of the episodes after the first."""
    is_watched: bool = False
    """Whether the caller watches the board, once for all that it runs; otherwise each `run` does."""
    judge_replies: Mapping[str, Replies[JudgeCall]] = field(default_factory=dict)
    """Recorded replies to the judge's LLM calls, by episode id."""
    attempted: Callable[[Plan], None] = lambda plan: None
    """Called when an episode's attempts are over, before it is judged."""

    async def run(
        self, plans: Sequence[Plan], done: Callable[[Episode], None], enough: asyncio.Event | None = None
    ) -> list[Episode]:
        """Run and judge all; ``done`` is called as each ends. Results are in the order of ``plans``.

        Once ``enough`` is set, all running episodes are cancelled and only those that have ended are returned. Raises
        ContractBroken, at once.
        """
        queue = deque(plans)
        judging = _JudgeTasks(asyncio.get_running_loop().create_future())
        groups = Groups(plans) if isinstance(self.judge, GroupJudge) else None
        first = [queue.popleft() for _ in range(min(self.settings.concurrency, len(queue)))]
        if self.batching:
            self._swap(set(), {p.id for p in first})
        limit = asyncio.Semaphore(self.settings.concurrency)
        workers = [asyncio.ensure_future(self._work(p, queue, judging, groups, limit, done)) for p in first]

        async def finish() -> None:
            await asyncio.gather(*workers)
            await asyncio.gather(*judging.tasks.values())

        whole = asyncio.ensure_future(finish())
        stopped = asyncio.ensure_future(enough.wait()) if enough else None
        settings = self.settings
        # Cancelling also runs workflow code, which may block.
        async with (
            nullcontext()
            if self.is_watched
            else watching(self.board, settings.stall_warning, settings.loop_timeout, self.say)
        ):
            try:
                ends: list[asyncio.Future[Any]] = [whole, judging.broken, *([stopped] if stopped else [])]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in (judging.broken, whole):
                    if end.done():
                        end.result()
                ended = [t for p in plans if (t := judging.tasks.get(p.id)) and t.done()]
            finally:
                pending = [*ends, *workers, *judging.tasks.values()]
                for task in pending:
                    task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)
        return [task.result() for task in ended]

    async def _work(
        self,
        plan: Plan,
        queue: deque[Plan],
        judging: _JudgeTasks,
        groups: Groups | None,
        limit: asyncio.Semaphore,
        done: Callable[[Episode], None],
    ) -> None:
        while True:
            episode = await self._attempts(plan)
            self.attempted(plan)
            judging.start(plan.id, self._judge(episode, groups, limit, done))
            following = queue.popleft() if queue else None
            if self.batching:
                self._swap({plan.id}, {following.id} if following else set())
            if following is None:
                return
            plan = following

    async def _attempts(self, plan: Plan) -> Episode:
        spent = Spent()
        for attempt in range(self.settings.retries + 1):
            episode = await self.runner.run(plan, attempt)
            spent += episode.spent
            # Failures that would repeat are not retried.
            if episode.failed is None or episode.failed.repeats:
                break
        episode.spent = spent
        return episode

    async def _judge(
        self,
        episode: Episode,
        groups: Groups | None,
        limit: asyncio.Semaphore,
        done: Callable[[Episode], None],
    ) -> Episode:
        recorded = isinstance(episode.plan.task, RecordedTask)
        printed_by_episode.set(episode.printed)
        if groups is not None and not recorded:
            await groups.judged(episode, lambda members: self._ask_group_judge(members, limit))
        elif episode.failure is None:
            async with limit:
                judge = (_RECORDED if recorded else self.judge).judge
                plan, name = episode.plan, _judging(episode.plan.id)
                view, calls = episode.view(), self._judge_calls(episode)
                with keeping(calls):
                    await self._ask_judge(
                        episode, lambda: called(judge, plan.task, view.output, view, name=name)
                    )
                episode.judge_calls = calls.made
        if self.judge_check and episode.failure is None and not recorded:
            async with limit:
                await self._check(episode, self.judge_check)
        printed_by_episode.set(None)  # what listeners print is theirs
        if episode.output.files:  # which are there for its judge
            episode.output = replace(episode.output, files={})
        done(episode)
        return episode

    async def _ask_group_judge(self, members: Sequence[Episode], limit: asyncio.Semaphore) -> None:
        """Judge a complete group: the group's verdicts under one deadline, then each member's own."""
        assert isinstance(self.judge, GroupJudge)
        live = [e for e in members if e.failure is None]
        if not live:
            return
        async with limit:
            for episode in live:
                self.board.set(episode.plan.id, "judge")
            calls = self._judge_calls(members[0])
            with passthrough(), keeping(calls):
                asked = score(self.judge, members)
                name = _judging(f"group {members[0].plan.group}")
                scored = asyncio.ensure_future(within(self._judge_deadline(), asked, name=name))
            try:
                await asyncio.wait({scored})
            finally:
                scored.cancel()
            for episode in live:
                episode.judge_calls = calls.made
            for index, episode in enumerate(members):
                if episode.failure is None:
                    await self._ask_judge(episode, verdict_of(scored, index))

    async def _ask_judge(
        self, episode: Episode, asked: Callable[[], Coroutine[Any, Any, JudgeOutput]]
    ) -> None:
        plan = episode.plan
        self.board.set(plan.id, "judge")
        try:
            with passthrough():
                verdict = await within(self._judge_deadline(), asked(), name=_judging(plan.id))
            # Plain numbers, whatever types the judge uses: they go into the journal.
            reward = _reward("the reward", verdict.reward)
            rewards = {str(name): _reward(f"the reward of {name}", r) for name, r in verdict.rewards.items()}
            call_rewards = _call_rewards(verdict.call_rewards, episode)
            is_success = _truth(verdict.is_success)
            given = {**episode.output.metrics, **verdict.metrics}
            metrics = {name: _finite(f"the metric {name}", value) for name, value in given.items()}
        except DeadlinePassed:
            text = f"no verdict within {self.settings.judge_timeout:g} s"
            episode.failed = Failure(FailureKind.JUDGE, "timeout", text)
        except ContractBroken:
            raise
        except Exception as error:
            episode.failed = judge_failure(self.judge, episode.output, error)
        else:
            episode.reward, episode.rewards, episode.call_rewards = reward, rewards, call_rewards
            episode.is_success, episode.metrics = is_success, metrics
            episode.feedback = str(verdict.feedback)
        finally:
            self.board.set(plan.id, None)

    async def _check(self, episode: Episode, judge: Judge) -> None:
        """Let the second judge judge an episode, if its turn has come, and put what it says into the metrics."""
        chosen = zlib.crc32(episode.id.encode()) < self.settings.judge_check_share * 2**32
        figures = {"checked": float(chosen)}
        if chosen:
            view, name = episode.view(), f"judge_check of {episode.id}"
            asked = called(judge.judge, episode.plan.task, view.output, view, name=name)
            try:
                with passthrough():
                    verdict = await within(self._judge_deadline(), asked, name=name)
                reward = _reward("the reward of judge_check", verdict.reward)
                figures |= {"check_reward": reward, "check_gap": episode.reward - reward}
            except ContractBroken:
                raise
            except Exception:  # the episode is judged nevertheless
                episode.counters["judge_check_failed"] += 1
        episode.metrics = {**episode.metrics, **figures}

    def _judge_calls(self, episode: Episode) -> JudgeCalls:
        return JudgeCalls(self.judge_replies.get(episode.id))

    def _judge_deadline(self) -> float | None:
        return None if under_debugger() else self.settings.judge_timeout

    def _swap(self, leave: set[str], enter: set[str]) -> None:
        assert self.batching and self.portal
        self.portal.loop.call_soon_threadsafe(self.batching.swap, leave, enter)


@dataclass(frozen=True, slots=True)
class _JudgeTasks:
    """The episodes that are being judged, by id."""

    broken: asyncio.Future[None]
    """Raises what a judge raised that fails more than its own episode."""
    tasks: dict[str, asyncio.Task[Episode]] = field(default_factory=dict)

    def start(self, episode: str, judge: Coroutine[Any, Any, Episode]) -> None:
        """Judge an episode beside the others."""
        task = self.tasks[episode] = asyncio.ensure_future(judge)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Episode]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self.broken.done():
            self.broken.set_exception(error)


def _judging(what: str) -> str:
    return f"the judge of {what}"


def _call_rewards(given: Sequence[float] | Mapping[int, float], episode: Episode) -> dict[int, float]:
    """The rewards of calls by number. Raises ValueError if they are not those of the episode's calls."""
    calls = episode.record.exchanges
    if given and not isinstance(given, Mapping) and len(given) != len(calls):
        raise ValueError(
            f"call_rewards has {len(given)} rewards, but the episode has {len(calls)} calls (episode.messages); give one for each, or "
            "some of them as {place: reward}"
        )
    by_place = given if isinstance(given, Mapping) else dict(enumerate(given))
    for place in by_place:
        if not isinstance(place, int) or not 0 <= place < len(calls):
            raise ValueError(
                f"call_rewards has a reward of the call {place!r}, but the calls of the episode (episode.messages) are 0 to "
                f"{len(calls) - 1}"
            )
    return {calls[place].number: _reward(f"the reward of call {place}", r) for place, r in by_place.items()}


def _finite(what: str, value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}, which is not a finite number")
    return number


def _reward(what: str, value: Any) -> float:
    return rounded(_finite(what, value))


def _truth(value: Any) -> bool | None:
    """What a judge says of success; also 0 and 1, and numbers of numpy and torch."""
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is not None and value not in (True, False):
        raise ValueError(f"is_success is {value!r}; expected True, False or None")
    return None if value is None else bool(value)
