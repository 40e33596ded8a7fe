"""Asks a judge for new verdicts on the recorded episodes of a run, one step after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ajet import ConfigError, GroupJudge, Judge
from ajet.capture.context import without_endpoints
from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.replies import Form, Replies
from ajet.reports.folder import Entry, RecordedRun
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.scheduler import Rollout
from ajet.rollout.settings import RolloutSettings
from ajet.rollout.watchdog import Board
from ajet.tracker.record import EpisodeRecord
from ajet.utils import asyncrun
from ajet_rejudge.recorded import JudgeVerdict, RecordedOutput, has_output


@dataclass(slots=True)
class Judged:
    """An episode with two verdicts."""

    entry: Entry
    episode: Episode
    """With the new verdict, or the failure of the new judge."""
    recorded: JudgeVerdict | None
    """None if the recorded judge gave none."""
    has_output: bool
    """Whether there was something to judge."""
    unknown: str = ""
    """Why the journal is not enough to judge it; empty if it is."""
    new: JudgeVerdict | None = None
    """None if the new judge gave none."""

    def without_record(self) -> Judged:
        """The same without messages and tokens, of which a run has too many to keep them all."""
        return replace(self, episode=replace(self.episode, record=EpisodeRecord(), judge_calls=()))

    @property
    def changed(self) -> bool:
        """Whether training would have learned something else from it."""
        if self.unknown or not self.has_output:
            return False
        if self.recorded is None or self.new is None:
            return self.recorded is not self.new
        return self.recorded.credit != self.new.credit


@dataclass(frozen=True, slots=True)
class Judging:
    """A run, and the judge that judges its episodes anew."""

    run: RecordedRun
    judge: Judge
    settings: RolloutSettings
    unjudged: bool
    """Whether the run's job names no judge: its workflow gave the rewards."""
    say: Callable[[str], None]


def judged_steps(judging: Judging, done: Callable[[Sequence[Judged]], None]) -> None:
    """Judge all episodes; ``done`` is called with those of each phase and step, in the order of the journal. No endpoint is asked:
    what a judge asks a model is answered with what the run recorded. Raises AjetError."""

    async def whole() -> None:
        async for step in _steps(judging):
            done(step)

    portal = Portal()
    try:
        with without_endpoints(), Capture(portal, strict=False):
            asyncrun.run(whole(), judging.say)
    finally:
        portal.close()


def _by_step(run: RecordedRun) -> Mapping[tuple[str, int], Sequence[Entry]]:
    """The episodes of a run by phase and step. Raises ConfigError if there are none."""
    by_step: dict[tuple[str, int], list[Entry]] = {}
    for entry in run.entries:
        by_step.setdefault((entry.phase, entry.step), []).append(entry)
    if not by_step:
        raise ConfigError(f"{run.dir}: no episode has been recorded, so there is nothing to judge.")
    return by_step


async def _steps(judging: Judging) -> AsyncIterator[Sequence[Judged]]:
    async with judging.judge.open() as judge:
        for entries in _by_step(judging.run).values():
            step = [_recorded(judging, entry) for entry in entries]
            _number_groups(step)
            await _judge(judging, judge, step)
            yield step


def _recorded(judging: Judging, entry: Entry) -> Judged:
    """An episode as it was before its judge was asked."""
    episode = judging.run.episode(entry)
    judged = Judged(entry, episode, JudgeVerdict.of(episode), has_output(episode))
    if judged.has_output:
        task = episode.plan.task
        if not (task.query or task.messages or task.metadata):
            judged.unknown = "its task is not in the journal"
        episode.output = RecordedOutput(episode, unjudged=judging.unjudged)
        episode.failed = None
    return judged


def _number_groups(step: Sequence[Judged]) -> None:
    """Number the groups of a step as the run did; in a validation, where ids have no number, by task."""
    by_task = {task: n for n, task in enumerate(dict.fromkeys(each.entry.task for each in step))}
    for each in step:
        if each.entry.group is None:
            each.episode.plan = replace(each.episode.plan, group=by_task[each.entry.task])


async def _judge(judging: Judging, judge: Judge, step: Sequence[Judged]) -> None:
    """Judge the episodes of a step, as a run does."""
    episodes = {each.entry.id: each.episode for each in step}
    replies = {
        name: Replies([("judge", Form().body(call.request), call) for call in episode.judge_calls])
        for name, episode in episodes.items()
    }
    rollout = Rollout(
        runner=_Journal(episodes),
        judge=judge,
        settings=judging.settings.model_copy(update={"retries": 0}),
        portal=None,
        batching=None,
        say=judging.say,
        board=Board(),
        judge_replies=replies,
    )
    await rollout.run([each.episode.plan for each in step], lambda episode: None)
    unknown: dict[object, str] = {}
    together = isinstance(judge, GroupJudge)
    for each in step:
        output, key = each.episode.output, each.episode.plan.group if together else each.entry.id
        if isinstance(output, RecordedOutput) and output.missed:
            unknown[key] = f"the judge reads {_named(output.missed)}, which the journal does not have"
        elif replies[each.entry.id].missing:
            unknown[key] = "the judge asks its model what it was not asked in the run"
    for each in step:
        if each.has_output:
            each.unknown = each.unknown or unknown.get(
                each.episode.plan.group if together else each.entry.id, ""
            )
            each.new = None if each.unknown else JudgeVerdict.of(each.episode)


def _named(fields: set[str]) -> str:
    return " and ".join(f"output.{name}" for name in sorted(fields))


@dataclass(frozen=True, slots=True)
class _Journal:
    """In place of what runs episodes."""

    episodes: Mapping[str, Episode]

    async def run(self, plan: Plan, attempt: int) -> Episode:
        """The recorded episode."""
        return self.episodes[plan.id]
