"""Finds the checkpoint of a run that first shows a behaviour, and the episodes that were rewarded for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ajet import AjetError, ConfigError, Job, Task
from ajet.reports.credit import run_credit
from ajet.reports.folder import RecordedRun
from ajet.rollout.checkpoints import checkpoints, step_of
from ajet.rollout.episode import Plan
from ajet.rollout.recorder import RunRecorder
from ajet.runs.run_dir import keep_tokenizer, new_run_dir
from ajet.runs.runtime import answering_engine, evaluation_policy, open_runtime
from ajet.utils import asyncrun
from ajet_rejudge.case import PASSES, said_of
from ajet_rejudge.credit import crediting
from ajet_rejudge.judging import Judged, Judging, judged_steps
from ajet_rejudge.sequential import Sprt, first_showing, most_evaluations

AT_ONCE = 8
"""Episodes that are run before the test is asked again."""

Enough = Callable[[Sequence[bool | None]], bool]
"""Gets whether the next episodes show the behaviour, None of one that failed; returns whether no more are needed."""
Ask = Callable[[int, Enough], None]
"""Runs episodes of the model after a step, 0 for the one before the training, until there are enough."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a bisection takes for rare and often, and how often it may be wrong."""

    rare: float = 0.1
    often: float = 0.5
    error: float = 0.05
    """The highest probability that any of its verdicts is wrong, if no checkpoint is between rare and often."""
    episodes: int = 64
    """The most of one checkpoint; then the likelier verdict is taken."""

    def check(self) -> None:
        """Raise ConfigError for impossible ones."""
        if not 0 < self.rare < self.often < 1:
            raise ConfigError("rare= and often=", "are shares between 0 and 1, the first one smaller.")
        if not 0 < self.error < 0.5:
            raise ConfigError("error=", "is a probability between 0 and 0.5.")
        if self.episodes < 1:
            raise ConfigError("episodes=", "must be at least 1.")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The verdict on a checkpoint."""

    step: int
    shown: int
    episodes: int
    shows: bool
    decided: bool
    """Whether the test came to an end."""


@dataclass(frozen=True, slots=True)
class Rewarding:
    """A group of the interval whose episodes were rewarded for the behaviour."""

    group: str
    shown: int
    """Episodes that show it."""
    episodes: int
    rewarded: Sequence[str]
    """The ids of those that show it and became more probable, the most rewarded first."""


@dataclass(slots=True)
class Bisection:
    """What a bisection found."""

    run: Path
    task: str
    check: str
    rates: Rates
    run_dir: Path
    """The episodes that it ran."""
    evaluated: list[Evaluated] = field(default_factory=list)
    """In the order in which they were."""
    steps: tuple[int, int] | None = None
    """The behaviour is not there after the first and is after the second, so steps between taught it; None if no step did."""
    groups: list[Rewarding] = field(default_factory=list)
    """Those of these steps, in the order of the journal."""
    sampled: int = 0
    """Episodes of these steps that could be judged."""
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **{name: str(getattr(self, name)) for name in ("run", "task", "check", "run_dir")},
            "rates": asdict(self.rates),
            "steps": self.steps,
            "evaluated": [asdict(each) for each in self.evaluated],
            "groups": [asdict(each) for each in self.groups],
            "sampled": self.sampled,
            "notes": self.notes,
        }


def search(found: Bisection, steps: Sequence[int], ask: Ask, say: Callable[[str], None]) -> None:
    """Find the interval among checkpoints of these steps."""
    rates = found.rates
    error = rates.error / most_evaluations(len(steps))

    def shows(number: int) -> bool:
        step = steps[number - 1] if number else 0
        test = _Test(step, Sprt(rates.rare, rates.often, error), rates.episodes)
        ask(step, test.enough)
        each = test.verdict()
        found.evaluated.append(each)
        say(f"{model_name(step)}: {each.shown} of {each.episodes} episodes fail the check")
        return each.shows

    first = first_showing(len(steps), shows)
    if first is None:
        found.notes.append(f"the last checkpoint, of step {steps[-1]}, does not show it")
    elif first == 0:
        found.notes.append("the model before the training shows it, too, so no step of this run taught it")
    else:
        found.steps = (steps[first - 2] if first > 1 else 0, steps[first - 1])
    if unsure := [each.step for each in found.evaluated if not each.decided]:
        found.notes.append(
            f"not certain after {rates.episodes} episodes: {', '.join(map(model_name, unsure))}"
        )


def model_name(step: int) -> str:
    """How a model is named in texts."""
    return f"step {step}" if step else "the model before"


@dataclass(slots=True)
class _Test:
    """A checkpoint's verdict in the making."""

    step: int
    sprt: Sprt
    most: int
    shown: int = 0
    counted: int = 0
    tried: int = 0
    decided: bool = False

    def enough(self, verdicts: Sequence[bool | None]) -> bool:
        """Count the next episodes; see `Enough`."""
        for verdict in verdicts:
            if self.decided or self.tried == self.most:
                break
            self.tried += 1
            if verdict is not None:
                self.shown, self.counted = self.shown + verdict, self.counted + 1
                self.decided = self.sprt.add(verdict) is not None
        return self.decided or self.tried == self.most

    def verdict(self) -> Evaluated:
        """Raises AjetError if all episodes failed."""
        if not self.counted:
            raise AjetError(
                f"{model_name(self.step)}: all {self.tried} episodes failed before they were judged; `ajet show` says why."
            )
        return Evaluated(self.step, self.shown, self.counted, self.sprt.ratio > 0, self.decided)


def bisected(job: Job, run: RecordedRun, task: Task, rates: Rates, *, unjudged: bool) -> Bisection:
    """Bisect a run; the job has the judge of the case. Raises AjetError."""
    kept = {step_of(path): path for path in checkpoints(run.dir)}
    if not kept:
        raise ConfigError(
            f"{run.dir}",
            "has no checkpoint. Set train.save_every, and train.keep_last to as many as you need.",
        )
    found = Bisection(run.dir, task.id, said_of(job.judge), rates, new_run_dir(job, "bisect"))
    with closing(RunRecorder(found.run_dir)) as recorder:

        def ask(step: int, enough: Enough) -> None:
            model = job.with_model(str(kept[step])) if step in kept else job
            asyncrun.run(_episodes(model, task, step, recorder, enough), job.progress.say)

        search(found, list(kept), ask, job.progress.say)
    if found.steps:
        _name_groups(found, job, run, unjudged)
    return found


async def _episodes(job: Job, task: Task, step: int, recorder: RunRecorder, enough: Enough) -> None:
    """Run episodes of a model until there are enough. The seeds of all models are the same."""
    engine = answering_engine(job)
    keep_tokenizer(recorder.dir, engine.tokenizer, job.progress)
    async with open_runtime(job, engine=engine) as runtime:
        rollout = runtime.rollout(evaluation_policy(job, job.config.eval.sampling.temperature))
        for first in itertools.count(0, AT_ONCE):
            ended = await rollout.run(
                [_plan(job, task, step, number) for number in range(first, first + AT_ONCE)],
                lambda episode: recorder.episode(episode, phase="validation", step=step),
            )
            if enough([None if episode.failure else episode.reward < PASSES for episode in ended]):
                return


def _plan(job: Job, task: Task, step: int, number: int) -> Plan:
    seed = f"{job.config.run.seed}/bisect/{task.id}/{number}"
    return Plan(f"bisect@{step}/{task.id}/{number}", seed, task, number, 0)


def _name_groups(found: Bisection, job: Job, run: RecordedRun, unjudged: bool) -> None:
    """The groups of the interval whose episodes rewarded the behaviour."""
    assert found.steps
    clean, shown = found.steps
    entries = [each for each in run.entries if each.phase == "train" and clean < each.step <= shown]
    if not entries:
        found.notes.append("no episode of these steps is in the journal")
        return
    adapters = [name for name, target in job.config.targets.items() if target.lora]
    recorded_credit = run_credit(run)
    known = crediting(run, recorded_credit, job.config.train, job.config.run.seed, adapters)
    if isinstance(known, str):
        found.notes.append(f"which episodes were rewarded is not known: {known}")
        return
    found.notes += recorded_credit.notes

    def ended(step: Sequence[Judged]) -> None:
        credit = known.of(step)
        push = {name: recorded for name, (recorded, _) in credit.push.items()} if credit else {}
        groups: dict[object, list[Judged]] = {}
        for each in step:
            if each.new is not None:
                groups.setdefault(each.entry.group, []).append(each)
        for members in groups.values():
            found.sampled += len(members)
            showing = [each for each in members if each.new and each.new.reward < PASSES]
            rewarded = [each.entry.id for each in showing if push.get(each.entry.id, 0.0) > 0]
            if rewarded:
                rewarded.sort(key=lambda name: -push[name])
                name = rewarded[0].rpartition("/")[0]
                found.groups.append(Rewarding(name, len(showing), len(members), rewarded))

    interval = replace(run, entries=entries)
    judged_steps(Judging(interval, job.judge, job.config.rollout, unjudged, job.progress.say), ended)
    if not found.sampled:
        found.notes.append("no episode of these steps could be judged again")
