"""`open`: the parts of a training step, for a training loop of the user's own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ajet.api.calling import awaitable
from ajet.api.jobs import AnyJudge, AnyPath, prepared
from ajet.api.results import Timeline, all_timelines
from ajet.capture.session import Session, current_session
from ajet.interfaces.backbone import RunResult, Trainer
from ajet.job.arguments import ARGUMENTS
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.models import check_model
from ajet.job.objects import OBJECT, OWN_LOOP, GivenTasks, lay_object
from ajet.job.parts import build_judge, build_workflow
from ajet.learning.loop import training_step
from ajet.learning.rollouts import plan_group, step_batch
from ajet.reports.token_text import TokenText
from ajet.rollout.checkpoints import CHECKPOINTS, complete
from ajet.rollout.episode import Episode as Ran
from ajet.rollout.episode import Plan
from ajet.rollout.failures import Failure, FailureKind
from ajet.rollout.recorder import RunRecorder
from ajet.rollout.summary import summarize
from ajet.runs.alarms import alarms_of
from ajet.runs.callbacks import Listeners
from ajet.runs.jobs import job_of
from ajet.runs.run_dir import held, keep_job, keep_tokenizer, new_run_dir
from ajet.runs.runtime import Runtime, open_runtime, trainer_of, training_policy
from ajet.tracker.breaks import find_breaks
from ajet.types import ConfigError, Metrics, Task, WorkflowOutput


async def _by_the_caller(task: Task) -> None:
    """Takes the place of the agent in the job: each rollout is given its own."""


class OwnEpisode:
    """An episode in this process: its ``reward`` may be set until it is trained."""

    def __init__(self, ran: Ran, text_of: TokenText) -> None:
        self._ran, self._text_of = ran, text_of

    @property
    def id(self) -> str:
        return self._ran.plan.id

    @property
    def task(self) -> Task:
        return self._ran.plan.task

    @property
    def reward(self) -> float:
        """What it is trained by."""
        return self._ran.reward

    @reward.setter
    def reward(self, value: float) -> None:
        self._ran.reward = float(value)

    @property
    def is_success(self) -> bool | None:
        return self._ran.is_success

    @property
    def failure(self) -> str | None:
        """Why it is not trained: a cause such as "timeout", or None."""
        return self._ran.failure

    @property
    def error(self) -> str:
        return self._ran.error

    @property
    def response(self) -> Any:
        """What the workflow returned."""
        return self._ran.output.response

    @property
    def messages(self) -> list[list[Mapping[str, Any]]]:
        """The chat of each recorded call, its answer last."""
        return [list(chat) for chat in self._ran.view().messages]

    @property
    def timelines(self) -> list[Timeline]:
        """The token sequences that its calls merge into."""
        return all_timelines(self._ran.record, self._text_of)

    def __repr__(self) -> str:
        how = f"failed: {self.failure}" if self.failure else f"reward {self.reward:g}"
        return f"<OwnEpisode {self.id}, {how}>"


@dataclass(slots=True)
class Group:
    """Episodes of one task, which are compared with each other."""

    task: Task
    episodes: list[OwnEpisode]


class Learner:
    """A model that samples and learns. ``dir`` is its run folder, ``step`` the number of training steps so far."""

    def __init__(
        self, job: Job, trainer: Trainer, runtime: Runtime, recorder: RunRecorder, listeners: Listeners
    ) -> None:
        self.dir = recorder.dir
        self.step = 0
        self.saved: Path | None = None
        """The folder that `save` wrote last."""
        self._job, self._trainer, self._runtime = job, trainer, runtime
        self._recorder, self._listeners = recorder, listeners
        self._alarms = alarms_of(job, self.dir)
        self._place = 0
        """Groups that were begun since the last step."""
        self._text_of = TokenText(self.dir)
        self._seconds = 0.0
        """Of rollouts since the last step."""
        self._rate = 0.0
        """The highest learning rate that `train` was given."""
        self._noted = job
        """The job as the run folder has it."""

    async def rollout(
        self,
        workflow: object,
        tasks: Iterable[Task | Mapping[str, Any]],
        *,
        group_size: int | None = None,
        judge: AnyJudge | None = None,
    ) -> list[Group]:
        """A group of episodes for each task; ``group_size`` defaults to the job's. Episodes that fail are in their groups,
        with a ``failure``. Raises AjetError."""
        started = time.monotonic()
        size = group_size or self._job.config.rollout.group_size
        listed = GivenTasks(items=tuple(tasks), source="tasks=").tasks()
        given = Layers()
        for key, value in {"workflow": workflow, "judge": judge}.items():
            lay_object(given, key, value, ARGUMENTS[key].source)
        with given.located():
            judging = build_judge(given)
            assert self._job.config.task
            flow = build_workflow(given, self._job.config.task, judge is not None)
        self._note(**given.values)
        plans = [plan for task in listed for plan in self._group(task, size)]
        async with judging.open() as live, flow.open() as opened:
            rollout = replace(self._runtime, workflow=opened, judge=live).rollout(training_policy(self._job))
            done = await rollout.run(plans, lambda episode: None)
        self._seconds += time.monotonic() - started
        runs = [OwnEpisode(episode, self._text_of) for episode in done]
        return [Group(task, runs[i * size : (i + 1) * size]) for i, task in enumerate(listed)]

    @asynccontextmanager
    async def episode(self, task: Task | Mapping[str, Any]) -> AsyncIterator[OwnEpisode]:
        """A block whose LLM calls are one episode, with the reward that the block sets. An exception in the block is
        raised, and the episode is not trained."""
        started = time.monotonic()
        (given,) = GivenTasks(items=(task,), source="task=").tasks()
        (plan,) = self._group(given, 1)
        answerer = self._runtime.runner(training_policy(self._job)).answerer
        session = Session(plan.id, f"{plan.seed_key}#0", answerer)
        ran = Ran(plan, 0, WorkflowOutput(), session.record)
        self._runtime.capture.open(session)
        self._swap(set(), {plan.id})
        token = current_session.set(session)
        try:
            yield OwnEpisode(ran, self._text_of)
        except BaseException as error:
            ran.failed = Failure(FailureKind.WORKFLOW, type(error).__name__, str(error))
            raise
        finally:
            current_session.reset(token)
            self._swap({plan.id}, set())
            await self._runtime.capture.end(session)
            ran.counters, ran.breaks = session.counters, tuple(find_breaks(session.record))
            ran.seconds = time.monotonic() - started
            self._seconds += ran.seconds

    async def train(
        self, groups: Sequence[Group | OwnEpisode], *, learning_rate: float | None = None
    ) -> Metrics:
        """A training step on groups; an episode alone is a group of one. ``learning_rate`` defaults to the job's. The
        metrics are those of `ajet.run`. Raises AjetError if nothing can be trained."""
        job, trainer, step = self._job, self._trainer, self.step + 1
        episodes = list(_numbered(groups))
        batch, _ = step_batch(
            episodes,
            step,
            trainer.version,
            algorithm=job.algorithm,
            settings=job.config.train,
            seed=job.config.run.seed,
            filters=job.filters,
            adapters=job.adapters,
            teacher=self._runtime.teacher(),
            learning_rate=learning_rate,
        )
        batch.metrics.update(summarize(episodes, self._seconds))
        metrics = await training_step(
            trainer,
            lambda: self._runtime.portal.run(trainer.publish()),
            batch,
            step,
            seconds_rollout=self._seconds,
            saved=lambda: self.saved,
            record=self._recorder.batch,
        )
        for episode in episodes:
            self._recorder.episode(episode, phase="train", step=step)
        raised = self._alarms.step(step, metrics)
        self._recorder.metrics("train", step, metrics)
        self._listeners.step_end(step, metrics)
        for alarm in raised:
            job.progress.say(f"warning: {alarm.line}")
        if learning_rate is not None and learning_rate > self._rate:  # schedules lower it
            self._rate = learning_rate
            self._note_training(learning_rate=learning_rate)
        self.step, self._place, self._seconds = step, 0, 0.0
        self._alarms.stop(raised)
        return metrics

    def save(self, path: AnyPath) -> Path:
        """Write the model, its tokenizer and the optimizer's state into a new folder. Raises ConfigError if it exists, and
        then writes them into the run folder instead, so that the training is not lost."""
        folder = Path(path).expanduser().resolve()
        if folder.exists():
            own = self.dir / CHECKPOINTS / f"step_{self.step:06d}"
            saved = own if own.exists() or own == folder else self.save(own)
            raise ConfigError(
                f"path= {folder}", f"exists already; name a new folder. The model is in {saved}."
            )
        folder.mkdir(parents=True)
        self._trainer.save(folder)
        complete(folder, self.step, {"version": self._trainer.version})
        link = self.dir / CHECKPOINTS / f"step_{self.step:06d}"
        if link.is_symlink():  # of an earlier call
            link.unlink()
        if not link.exists():
            link.symlink_to(folder)
        self.saved = folder
        self._listeners.checkpoint_saved(self.step, folder)
        return folder

    def _note_training(self, **settings: Any) -> None:
        self._note(train=self._noted.config.train.model_copy(update=settings))

    def _note(self, **sections: Any) -> None:
        """Bring parts of the job in the run folder up to date, so that runs of such loops can be compared."""
        config = self._noted.config.model_copy(update=sections)
        if config != self._noted.config:
            self._noted = replace(self._noted, config=config)
            keep_job(self.dir, self._noted)

    def _group(self, task: Task, size: int) -> list[Plan]:
        plans = plan_group(task, self.step + 1, self._place, size, self._job.config.run.seed)
        self._place += 1
        return plans

    def _swap(self, leave: set[str], enter: set[str]) -> None:
        """Let a deterministic run's batches wait for the episodes that run."""
        if self._runtime.batching:
            self._runtime.portal.loop.call_soon_threadsafe(self._runtime.batching.swap, leave, enter)


@asynccontextmanager
async def open(
    job: AnyPath | None = None,
    *,
    model: AnyPath | None = None,
    backbone: str | None = None,
    seed: int | None = None,
    deterministic: bool | None = None,
    memory_limit: str | None = None,
    run_dir: AnyPath | None = None,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    services: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> AsyncIterator[Learner]:
    """A model to train by a loop of your own, on a backbone whose trainer the core can drive, such as local.

    ``set`` says how: ``{"train.algorithm": "gspo"}``. The run folder holds what was trained, as that of `run` does.
    Raises AjetError.
    """
    given = locals()
    layers = job_of(given)
    layers.objects["workflow"] = _by_the_caller
    for key, value in {
        "workflow": f"{OBJECT}a training loop of its own",
        "task.reader.type": OWN_LOOP,
    }.items():
        layers.set(key, value, "ajet.open", Path.cwd())
    with prepared(layers, given, read_tasks=False) as (ready, lines):
        check_model(ready.model)
        for name in ("fork", "steer"):
            if getattr(ready.config.rollout, name):
                raise ConfigError(
                    f"rollout.{name}", "a loop of your own runs the episodes of its groups; remove the key."
                )
        trainer = await awaitable(trainer_of)(ready)
        folder = new_run_dir(ready)
        with held(folder, lines.say):
            keep_tokenizer(folder, trainer.engine.tokenizer, lines)
            listeners = Listeners(ready, folder)
            recorder = RunRecorder(folder, listeners.episode_end, batches=ready.config.run.record_batches)
            with listeners.run(), closing(recorder):
                async with open_runtime(ready, engine=trainer.engine) as runtime:
                    learner = Learner(ready, trainer, runtime, recorder, listeners)
                    yield learner
                    # A number that the job names stays: its schedule needs it.
                    if ready.layers.source_of("train.steps") == "default":
                        learner._note_training(steps=learner.step)
                listeners.result = RunResult(run_dir=folder, steps=learner.step, checkpoint=learner.saved)


def _numbered(groups: Sequence[Group | OwnEpisode]) -> Iterator[Ran]:
    """The episodes of groups; those of one group get its number."""
    for number, group in enumerate(groups):
        for episode in group.episodes if isinstance(group, Group) else [group]:
            ran = episode._ran
            ran.plan = replace(ran.plan, group=number)
            yield ran
