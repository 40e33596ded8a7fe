"""Episodes of one of Trinity's tasks, and what Trinity learns from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ajet import AjetError, ConfigError, Job, Task
from ajet.backbones import (
    Episode,
    Runtime,
    Selection,
    Timeline,
    given_reader,
    job_layers,
    open_runtime,
    plan_group,
    prepare,
    training_policy,
)
from ajet.interfaces.engine import Engine


class Agent:
    """The agent of a job over an engine, for as long as this process lives."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self.job = job
        self.engine = engine
        self._stack = AsyncExitStack()
        self._runtime: Runtime | None = None

    @classmethod
    def of(cls, job_file: Path, engine: Callable[[Job], Engine]) -> Agent:
        """The agent of a job file. Raises ConfigError for a job that Trinity's explorer cannot run."""
        layers = job_layers(job_file)
        layers.set("backbone.name", "debug", "Trinity's explorer", Path.cwd())  # Trinity trains
        job = prepare(layers, read_tasks=False)
        if truncating := job.config.rollout.sampling.truncating:
            raise ConfigError(
                "rollout.sampling",
                f"{truncating}: Trinity's vLLM returns logprobs of the tokens that this keeps, which its trainer does not know; remove "
                "it.",
            )
        return cls(job, engine(job))

    async def group(self, record: Mapping[str, Any], name: str, size: int, first: int) -> list[Episode]:
        """Run and judge ``size`` episodes of a task, numbered from ``first``. Raises AjetError if all of them failed."""
        if self._runtime is None:
            opened = open_runtime(
                self.job, engine=self.engine, shows_prints=True
            )  # Trinity keeps no journal of ours
            self._runtime = await self._stack.enter_async_context(opened)
        task = task_of(record)
        plans = plan_group(
            Task(name, task.query, task.messages, task.metadata), 1, first, size, self.job.config.run.seed
        )
        episodes = await self._runtime.rollout(training_policy(self.job)).run(plans, lambda episode: None)
        if all(episode.failure for episode in episodes):
            raise AjetError(f"task {name}", f"all {size} episodes failed: {episodes[0].failure}")
        return episodes

    async def close(self) -> None:
        """Close the engine and the rest. An explorer's process has its agent until it ends."""
        self._runtime = None
        await self._stack.aclose()

    def timelines(self, episode: Episode) -> Sequence[Timeline]:
        """What is trained of an episode, by the job's filters; nothing if it failed."""
        if episode.failure is not None:
            return ()
        settings = self.job.config.train
        selection = Selection(self.job.filters, settings.max_timelines, str(self.job.config.run.seed))
        return selection.choose(episode)[0]


def task_of(record: Mapping[str, Any]) -> Task:
    """A record of one of Trinity's task sets as a task; `query` may also be called `question` or `prompt`. Raises ConfigError."""
    known = dict(record)
    for other in ("question", "prompt"):
        if other in known and "query" not in known and "messages" not in known:
            known["query"] = known.pop(other)
    (task,) = given_reader([known], "Trinity's taskset").tasks()
    return task
