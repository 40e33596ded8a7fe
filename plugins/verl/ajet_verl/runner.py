"""A process on one node that runs and judges groups with the core's runtime and verl's servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import ray
import transfer_queue as tq

from ajet.interfaces.progress import Silent
from ajet.job.job import Job
from ajet.rollout.watchdog import Board, watching
from ajet.runs.runtime import open_runtime
from ajet.types import AjetError
from ajet_verl.clock import Clock
from ajet_verl.engine import VerlEngine
from ajet_verl.lengths import row_limit
from ajet_verl.pulse import SECONDS, Pulse
from ajet_verl.queue import put
from ajet_verl.servers import Servers
from ajet_verl.spec import read_spec, recorder_of
from ajet_verl.units import Unit, UnitEnded, Units


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
    """A Ray actor, created by `ajet_verl.pool`. Runs many units at once. Call `open` first."""

    def __init__(self, config: Any, client: Any) -> None:
        self._config = config
        self._client = client
        self._clock = Clock()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._units: asyncio.Future[Units] | None = None

    async def open(self) -> None:
        """Prepare the job again, open its judge and start capture. Raises AjetError if that fails."""
        self._units = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        either: list[asyncio.Future[Any]] = [self._task, self._units]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _run(self) -> None:
        """Open the runtime, wait until `close` is called, and close it, all in one task."""
        assert self._units
        job: Job = await asyncio.to_thread(lambda: read_spec(self._config).open())
        await asyncio.to_thread(tq.init)
        recorder = recorder_of(self._config)
        job = replace(job, progress=RemoteProgress(recorder))
        servers = Servers(self._client, job.progress.say, recorder.fail.remote)
        engine = await asyncio.to_thread(VerlEngine.of, self._config, servers)
        async with open_runtime(job, engine=engine) as runtime:
            reporter = asyncio.create_task(_report(runtime.board, Pulse(self._config.ajet.recorder)))
            units = Units(
                runtime,
                row_limit=row_limit(self._config),
                excused=self._clock.stopped,
                hold=recorder.hold.remote,
                put=put,
            )
            self._units.set_result(units)
            rollout = job.config.rollout
            end_process = partial(_end_process, recorder)
            async with watching(
                runtime.board, rollout.stall_warning, rollout.loop_timeout, job.progress.say, end_process
            ):
                await self._closing.wait()
            reporter.cancel()

    async def run(self, unit: Unit, slots: int) -> UnitEnded | None:
        """See `Units.run`."""
        return await (await self._opened()).run(unit, slots)

    async def cancel(self, name: str) -> None:
        """See `Units.cancel`."""
        await (await self._opened()).cancel(name)

    async def news(self, seconds: float) -> dict[str, int]:
        """See `Units.news`."""
        return await (await self._opened()).news(seconds)

    async def pause(self, paused: bool) -> None:
        """Begin or end a pause of the servers; deadlines do not count it."""
        self._clock.pause(paused)

    async def _opened(self) -> Units:
        assert self._units
        return await self._units

    async def close(self) -> None:
        """Stop capture and close the runtime and the judge."""
        self._closing.set()
        if self._task:
            await asyncio.gather(self._task, return_exceptions=True)
