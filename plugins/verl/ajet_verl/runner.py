"""A process on one node that runs attempts at episodes with the core's runtime and verl's servers."""

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
from ajet.job.job import Job
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.journal import episode_from_json, episode_to_json
from ajet.rollout.watchdog import Board, watch, watched_loop
from ajet.runs.runtime import Runtime, open_runtime
from ajet.types import AjetError, WorkflowOutput
from ajet_verl.clock import Clock
from ajet_verl.engine import VerlEngine
from ajet_verl.pulse import SECONDS, Pulse
from ajet_verl.servers import Servers
from ajet_verl.spec import read_spec, recorder_of


class RemoteProgress(Silent):
    """Progress that the recorder forwards to the user."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def say(self, text: str) -> None:
        """See `ajet.interfaces.progress.Progress.say`."""
        self._recorder.say.remote(text)

    def episodes(self, phase: str, done: int, total: int) -> None:
        """See `ajet.interfaces.progress.Progress.episodes`."""
        self._recorder.progress.remote(phase, done, total)


@dataclass(frozen=True, slots=True)
class EpisodeMessage:
    """An episode sent between processes: its line of the journal, because the record's tries are too deep for pickle, and
    what the journal does not contain."""

    line: dict[str, Any]
    output: WorkflowOutput
    missed: tuple[Missed, ...]

    @classmethod
    def of(cls, episode: Episode) -> EpisodeMessage:
        """The message of a finished episode."""
        line = episode_to_json(episode, phase="", step=0)
        output = episode.output
        try:
            pickle.dumps(output)
        except Exception:  # the user's objects may raise anything; the judge then gets the journal's response
            output = replace(output, response=line["response"], metadata={})
        return cls(line, output, episode.missed)

    def episode(self, plan: Plan) -> Episode:
        """The episode, with its token trees rebuilt."""
        episode = episode_from_json(self.line, plan)
        episode.output, episode.missed = self.output, self.missed
        return episode


def _end_process(recorder: Any, error: AjetError) -> NoReturn:
    """Report the error and end this process: there is no other way to free its blocked event loop, which runs in a thread
    of Ray. The pool starts another runner."""
    with contextlib.suppress(Exception):
        ray.get(recorder.say.remote(f"an episode runner: {error}"), timeout=10.0)
    os._exit(1)


async def _report(board: Board, pulse: Pulse) -> None:
    """Until cancelled, report progress while episodes go from one state to the next."""
    while True:
        seen = board.last_change
        await asyncio.sleep(SECONDS)
        if board.last_change != seen:
            pulse.beat()


class Runner:
    """A Ray actor, created by `ajet_verl.pool`. Runs many attempts at once. Call `open` first."""

    def __init__(self, config: Any, client: Any) -> None:
        self._config = config
        self._client = client
        self._clock = Clock()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._runtime: asyncio.Future[Runtime] | None = None

    async def open(self) -> None:
        """Prepare the job again and start capture. Raises AjetError if that fails."""
        self._runtime = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        either: list[asyncio.Future[Any]] = [self._task, self._runtime]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _run(self) -> None:
        """Open the runtime, wait until `close` is called, and close it, all in one task."""
        assert self._runtime
        job: Job = await asyncio.to_thread(lambda: read_spec(self._config).open())
        # The conductor judges, because it has whole groups.
        recorder = recorder_of(self._config)
        job = replace(job, judge=RewardFromWorkflow(), progress=RemoteProgress(recorder))
        servers = Servers(self._client, job.progress.say, recorder.fail.remote)
        engine = await asyncio.to_thread(VerlEngine.of, self._config, servers)
        async with open_runtime(job, engine=engine) as runtime:
            watcher = asyncio.create_task(
                watch(runtime.board, job.config.rollout.stall_warning, job.progress.say)
            )
            reporter = asyncio.create_task(_report(runtime.board, Pulse(self._config.ajet.recorder)))
            self._runtime.set_result(runtime)
            rollout = job.config.rollout
            end_process = partial(_end_process, recorder)
            with watched_loop(
                runtime.board, rollout.stall_warning, rollout.loop_timeout, job.progress.say, end_process
            ):
                await self._closing.wait()
            watcher.cancel()
            reporter.cancel()

    async def run(self, plan: Plan, attempt: int, policy: SamplingPolicy) -> EpisodeMessage:
        """Run one attempt at an episode."""
        assert self._runtime
        runtime = await self._runtime
        runner = runtime.runner(policy, excused=lambda _: self._clock.stopped())
        return EpisodeMessage.of(await runner.run(plan, attempt))

    async def pause(self, paused: bool) -> None:
        """Begin or end a pause of the servers; deadlines do not count it."""
        self._clock.pause(paused)

    async def close(self) -> None:
        """Stop capture and close the runtime."""
        self._closing.set()
        if self._task:
            await asyncio.gather(self._task, return_exceptions=True)
