"""Distributes attempts over the episode runners of all nodes, limits their number, and replaces runners that die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ajet.capture.sampling import SamplingPolicy
from ajet.rollout.deadline import DeadlinePassed, within
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.failures import Failure, FailureKind
from ajet.tracker.record import EpisodeRecord
from ajet.types import AjetError, WorkflowOutput
from ajet_verl.clock import Clock
from ajet_verl.runner import Runner

MAX_LOST = 2
"""After this many runners have died during an attempt, the attempt counts as the cause and fails."""
GRACE = 60.0
"""Seconds after an episode's deadline until its runner counts as lost."""
OPENING = 600.0
"""Maximum seconds for a runner to start."""


@dataclass(slots=True, eq=False)
class _RunnerHandle:
    """A runner that is starting or running."""

    node: str
    actor: Any
    ready: asyncio.Task[None]
    busy: int = 0


class Pool:
    """Runs each attempt on the least busy runner. Use it from a single event loop."""

    def __init__(
        self,
        config: Any,
        client: Any,
        *,
        concurrency: int,
        timeout: float,
        each: int,
        say: Callable[[str], None],
    ) -> None:
        self.lost = 0
        """How many runners have died since the conductor last reset it."""
        self.clock = Clock()
        self._config, self._client = config, client
        self._limit = asyncio.Semaphore(concurrency)
        self._deadline = timeout + GRACE
        self._say = say
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        self._handles = [self._start(node) for node in nodes for _ in range(each)]

    async def open(self) -> None:
        """Wait until all runners have started. Raises the error of one that cannot start."""
        await asyncio.gather(*(handle.ready for handle in self._handles))

    async def run(self, plan: Plan, attempt: int, policy: SamplingPolicy) -> Episode:
        """Run one attempt. If its runner dies, another one repeats the attempt."""
        async with self._limit:
            for _ in range(MAX_LOST):
                handle = await self._least_busy()
                handle.busy += 1
                try:
                    answer = handle.actor.run.remote(plan, attempt, policy)
                    message = await within(self._deadline, _awaited(answer), self.clock.stopped)
                    episode: Episode = message.episode(plan)
                    return episode
                except RayActorError as error:
                    self._replace(handle, _last_line(error))
                except DeadlinePassed:
                    self._replace(handle, f"no answer about {plan.id} within {self._deadline:g} s")
                finally:
                    handle.busy -= 1
        lost = Failure(FailureKind.RUNNER_DIED, text=f"{MAX_LOST} runners died while running it")
        return Episode(plan, attempt, WorkflowOutput(), EpisodeRecord(), failed=lost)

    async def pause(self, paused: bool) -> None:
        """Begin or end a pause of the servers; deadlines do not count it."""
        self.clock.pause(paused)
        asked = [handle.actor.pause.remote(paused) for handle in self._handles]
        await asyncio.gather(*map(_awaited, asked), return_exceptions=True)

    async def close(self) -> None:
        """Close and end the runners."""
        asked = [handle.actor.close.remote() for handle in self._handles]
        await asyncio.wait([asyncio.ensure_future(_awaited(one)) for one in asked], timeout=20.0)
        for handle in self._handles:
            handle.ready.cancel()
            ray.kill(handle.actor)

    async def _least_busy(self) -> _RunnerHandle:
        """The least busy runner that has started. Raises AjetError if there are no runners left."""
        while True:
            started = [h for h in self._handles if h.ready.done()]
            for handle in [h for h in started if h.ready.exception()]:
                self._say(f"an episode runner did not start: {_last_line(handle.ready.exception())}")
                self._handles.remove(handle)
            started = [h for h in started if h in self._handles]
            if started:
                return min(started, key=lambda handle: handle.busy)
            if not self._handles:
                raise AjetError(
                    "no episode runner is left: all have died, and none could be restarted. See the messages above."
                )
            await asyncio.wait([h.ready for h in self._handles], return_when=asyncio.FIRST_COMPLETED)

    def _replace(self, handle: _RunnerHandle, why: str) -> None:
        """Replace a lost runner. Does nothing if it is already replaced, because all of its episodes call this."""
        if handle not in self._handles:
            return
        self.lost += 1
        self._say(f"an episode runner was lost; its episodes run again on another one: {why}")
        ray.kill(handle.actor)
        self._handles[self._handles.index(handle)] = self._start(handle.node)

    def _start(self, node: str) -> _RunnerHandle:
        where = NodeAffinitySchedulingStrategy(node, soft=True)
        actor = (
            ray.remote(Runner)
            .options(num_cpus=0, max_concurrency=100_000, scheduling_strategy=where)
            .remote(self._config, self._client)
        )
        return _RunnerHandle(node, actor, asyncio.create_task(within(OPENING, _awaited(actor.open.remote()))))


@dataclass(frozen=True, slots=True)
class PoolRunner:
    """The runner of a `Rollout`: runs attempts in the pool with one sampling policy."""

    pool: Pool
    policy: SamplingPolicy

    async def run(self, plan: Plan, attempt: int) -> Episode:
        """See `ajet.rollout.scheduler.Runner`."""
        return await self.pool.run(plan, attempt, self.policy)


async def _awaited(reference: Any) -> Any:
    return await reference


def _last_line(error: BaseException | None) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
