"""verl's agent-loop manager: hands groups to the conductor and asks it for what the trainer wants to know.

verl makes one by ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``, in the process that drives the job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.utils.ray_utils import auto_await

from ajet.types import Metrics
from ajet_verl.conductor import Conductor
from ajet_verl.spec import from_text

CLOSING = 60.0
"""Seconds in which the conductor must have ended."""


class EpisodeManager:
    """See the module. Every call but `generate_sequences` waits for its result."""

    def __init__(self, conductor: Any) -> None:
        self._conductor = conductor

    @classmethod
    @auto_await
    async def create(cls, config: Any, llm_client: Any, **_: Any) -> EpisodeManager:
        """A manager with a conductor on this node, whose runners are up; raises what keeps them from it."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        conductor = (
            ray.remote(Conductor)
            .options(num_cpus=0, max_concurrency=100_000, scheduling_strategy=here)
            .remote(config, llm_client)
        )
        await conductor.open.remote()
        return cls(conductor)

    def generate_sequences(self, batch: Any) -> None:
        """Begin the groups of a batch of `TaskDataset`; their rows come into the queue as they end."""
        pairs = zip(batch["uid"], batch["place"], strict=True)
        groups = [(_plain(uid), from_text(_plain(place))) for uid, place in pairs]
        ray.get(self._conductor.take.remote(groups))

    def validate(self, step: int) -> Metrics:
        """Validation after a step: metrics under the local backbone's names."""
        found: Metrics = ray.get(self._conductor.validate.remote(step))
        return found

    def learned(self, uids: Sequence[str], step: int) -> Metrics:
        """A step has learned from these groups; metrics of their episodes."""
        found: Metrics = ray.get(self._conductor.learned.remote(list(uids), step))
        return found

    def keep(self, folder: str) -> None:
        """Write what is known of the groups in verl's queue into its checkpoint, to which the queue belongs."""
        ray.get(self._conductor.keep.remote(folder))

    def failure(self) -> str:
        """Why the last group without rows has none."""
        found: str = ray.get(self._conductor.failure.remote())
        return found

    def pause(self, paused: bool) -> None:
        """While the servers are paused, no episode's deadline runs."""
        ray.get(self._conductor.pause.remote(paused))

    def close(self) -> None:
        """End the conductor, its judge and its runners; never raises, as something else may have ended the run."""
        with contextlib.suppress(Exception):
            ray.get(self._conductor.close.remote(), timeout=CLOSING)
        ray.kill(self._conductor)


def _plain(value: Any) -> str:
    """The text itself, also where tensordict has wrapped it."""
    return str(value if isinstance(value, str) else value.data)
