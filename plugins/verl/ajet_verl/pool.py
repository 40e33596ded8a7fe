"""The episode runners of all nodes as one: so many episodes at once, and another runner when one dies."""

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
from ajet.tracker.record import EpisodeRecord
from ajet.types import AjetError, WorkflowOutput
from ajet_verl.clock import Clock
from ajet_verl.runner import Runner

LOSSES = 2
"""Runners that an attempt may lose before it is taken for their murderer."""
GRACE = 60.0
"""Seconds after an episode's own deadline in which its runner must have answered."""
OPENING = 600.0
"""Seconds in which a runner must have come up."""


@dataclass(slots=True, eq=False)
class _Place:
    """Where one runner is, or is coming up."""

    node: str
    actor: Any
    ready: asyncio.Task[None]
    busy: int = 0


class Pool:
    """Runs attempts on the least busy runner. Live in one event loop."""

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
        """Runners that died so far."""
        self.clock = Clock()
        self._config, self._client = config, client
        self._limit = asyncio.Semaphore(concurrency)
        self._deadline = timeout + GRACE
        self._say = say
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        self._places = [self._place(node) for node in nodes for _ in range(each)]

    async def open(self) -> None:
        """Return when all runners are up. Raises what keeps one from it."""
        await asyncio.gather(*(place.ready for place in self._places))

    async def run(self, plan: Plan, attempt: int, policy: SamplingPolicy) -> Episode:
        """One attempt. If its runner dies, another one makes it again, under the same seeds."""
        async with self._limit:
            for _ in range(LOSSES):
                place = await self._least_busy()
                place.busy += 1
                try:
                    answer = place.actor.run.remote(plan, attempt, policy)
                    sent = await within(self._deadline, _awaited(answer), self.clock.stopped)
                    episode: Episode = sent.episode(plan)
                    return episode
                except RayActorError as error:
                    self._replace(place, _first_line(error))
                except DeadlinePassed:
                    self._replace(place, f"no answer about {plan.id} within {self._deadline:g} s")
                finally:
                    place.busy -= 1
        lost = f"{LOSSES} runners died while they ran it"
        return Episode(plan, attempt, WorkflowOutput(), EpisodeRecord(), failure="runner_died", error=lost)

    async def pause(self, paused: bool) -> None:
        """While the servers are paused, no deadline runs."""
        self.clock.pause(paused)
        asked = [place.actor.pause.remote(paused) for place in self._places]
        await asyncio.gather(*map(_awaited, asked), return_exceptions=True)

    async def close(self) -> None:
        """End the runners, and what they hold."""
        asked = [place.actor.close.remote() for place in self._places]
        await asyncio.wait([asyncio.ensure_future(_awaited(one)) for one in asked], timeout=20.0)
        for place in self._places:
            place.ready.cancel()
            ray.kill(place.actor)

    async def _least_busy(self) -> _Place:
        """A runner that is up. Raises AjetError when none is left."""
        while True:
            up = [p for p in self._places if p.ready.done()]
            for place in [p for p in up if p.ready.exception()]:
                self._say(f"an episode runner did not come up: {_first_line(place.ready.exception())}")
                self._places.remove(place)
            up = [p for p in up if p in self._places]
            if up:
                return min(up, key=lambda place: place.busy)
            if not self._places:
                raise AjetError(
                    "no episode runner is left: all died, and none came up again. See the lines above."
                )
            await asyncio.wait([p.ready for p in self._places], return_when=asyncio.FIRST_COMPLETED)

    def _replace(self, place: _Place, why: str) -> None:
        """Start another runner for one that is lost, once for all of its episodes."""
        if place not in self._places:
            return
        self.lost += 1
        self._say(f"an episode runner is lost, and its episodes run elsewhere: {why}")
        ray.kill(place.actor)
        self._places[self._places.index(place)] = self._place(place.node)

    def _place(self, node: str) -> _Place:
        where = NodeAffinitySchedulingStrategy(node, soft=True)
        actor = (
            ray.remote(Runner)
            .options(num_cpus=0, max_concurrency=100_000, scheduling_strategy=where)
            .remote(self._config, self._client)
        )
        return _Place(node, actor, asyncio.create_task(within(OPENING, _awaited(actor.open.remote()))))


@dataclass(frozen=True, slots=True)
class OfPool:
    """The pool as what `Rollout` has episodes run by, under one sampling policy."""

    pool: Pool
    policy: SamplingPolicy

    async def run(self, plan: Plan, attempt: int) -> Episode:
        """See `ajet.rollout.scheduler.Runner`."""
        return await self.pool.run(plan, attempt, self.policy)


async def _awaited(reference: Any) -> Any:
    return await reference


def _first_line(error: BaseException | None) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
