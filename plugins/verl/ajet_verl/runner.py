"""A process on one node that runs attempts at episodes: the core's own runtime, over verl's servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import ray

from ajet.capture.process.uncaptured import Missed
from ajet.capture.sampling import SamplingPolicy
from ajet.interfaces.judge import RewardFromWorkflow
from ajet.interfaces.progress import Silent
from ajet.job.prepare import Job
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.journal import episode_from_json, episode_to_json
from ajet.rollout.watchdog import watch, watched_loop
from ajet.runs.runtime import Runtime, open_runtime
from ajet.types import AjetError, WorkflowOutput
from ajet_verl.clock import Clock
from ajet_verl.engine import VerlEngine
from ajet_verl.spec import read_spec, recorder_of


class Told(Silent):
    """Progress that the recorder passes on to the user."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def say(self, text: str) -> None:
        """See `ajet.interfaces.progress.Progress.say`."""
        self._recorder.say.remote(text)

    def episodes(self, phase: str, done: int, total: int) -> None:
        """See `ajet.interfaces.progress.Progress.episodes`."""
        self._recorder.progress.remote(phase, done, total)


@dataclass(frozen=True, slots=True)
class Sent:
    """An episode between processes: its journal line, as its record's tries are deeper than pickle goes, and what the
    journal does not keep."""

    line: dict[str, Any]
    output: WorkflowOutput
    missed: tuple[Missed, ...]

    @classmethod
    def of(cls, episode: Episode) -> Sent:
        line = episode_to_json(episode, phase="", step=0)
        output = episode.output
        try:
            pickle.dumps(output)
        except Exception:  # whatever the user's objects raise: then the judge sees what the journal does
            output = replace(output, response=line["response"], metadata={})
        return cls(line, output, episode.missed)

    def episode(self, plan: Plan) -> Episode:
        """The episode, its token trees rebuilt."""
        found = episode_from_json(self.line, plan)
        found.output, found.missed = self.output, self.missed
        return found


def _end_process(recorder: Any, error: AjetError) -> NoReturn:
    """Say the error and end this process: nothing else frees its event loop, which runs in a thread of Ray's. The pool
    starts another runner."""
    with contextlib.suppress(Exception):
        ray.get(recorder.say.remote(f"an episode runner: {error}"), timeout=10.0)
    os._exit(1)


class Runner:
    """Made a Ray actor by `ajet_verl.pool`. Runs many attempts at once; `open` comes first."""

    def __init__(self, config: Any, client: Any) -> None:
        self._config = config
        self._client = client
        self._clock = Clock()
        self._closing = asyncio.Event()
        self._live: asyncio.Task[None] | None = None
        self._runtime: asyncio.Future[Runtime] | None = None

    async def open(self) -> None:
        """Rebuild the job and start capture. Raises AjetError where that fails."""
        self._runtime = asyncio.get_running_loop().create_future()
        self._live = asyncio.create_task(self._run())
        either: list[asyncio.Future[Any]] = [self._live, self._runtime]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._live.done():
            self._live.result()

    async def _run(self) -> None:
        """The runtime's life, in one task from beginning to end."""
        assert self._runtime
        job: Job = await asyncio.to_thread(lambda: read_spec(self._config).open())
        # Judging is done where groups meet.
        job = replace(job, judge=RewardFromWorkflow(), progress=Told(recorder_of(self._config)))
        engine = await asyncio.to_thread(VerlEngine.of, self._config, self._client)
        async with open_runtime(job, engine=engine) as runtime:
            watcher = asyncio.create_task(
                watch(runtime.board, job.config.rollout.stall_warning, job.progress.say)
            )
            self._runtime.set_result(runtime)
            rollout = job.config.rollout
            end = partial(_end_process, recorder_of(self._config))
            with watched_loop(
                runtime.board, rollout.stall_warning, rollout.loop_timeout, job.progress.say, end
            ):
                await self._closing.wait()
            watcher.cancel()

    async def run(self, plan: Plan, attempt: int, policy: SamplingPolicy) -> Sent:
        """One attempt at an episode."""
        assert self._runtime
        runtime = await self._runtime
        runner = runtime.runner(policy, excused=lambda _: self._clock.stopped())
        return Sent.of(await runner.run(plan, attempt))

    async def pause(self, paused: bool) -> None:
        """While the servers are paused, deadlines do not run."""
        self._clock.pause(paused)

    async def close(self) -> None:
        """End capture and what it holds."""
        self._closing.set()
        if self._live:
            await asyncio.gather(self._live, return_exceptions=True)
