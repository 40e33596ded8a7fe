"""verl's agent-loop manager: passes groups to the conductor, and its results to the trainer.

verl creates it by ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``, in the process of its trainer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
from verl.utils.ray_utils import auto_await

from ajet.interfaces.backbone import Metrics
from ajet_verl.cluster import on_this_node
from ajet_verl.conductor import Conductor
from ajet_verl.recorder import from_text

CLOSING = 60.0
"""Maximum seconds for the conductor to end."""


class EpisodeManager:
    """See the module. All methods wait for the conductor's answer; `generate_sequences` only until the groups are accepted."""

    def __init__(self, conductor: Any) -> None:
        self._conductor = conductor

    @classmethod
    @auto_await
    async def create(cls, config: Any, llm_client: Any, **_: Any) -> EpisodeManager:
        """A manager with a conductor on this node and its runners started; raises the error if that fails."""
        conductor = on_this_node(Conductor, max_concurrency=100_000).remote(config, llm_client)
        await conductor.open.remote()
        return cls(conductor)

    def generate_sequences(self, batch: Any) -> None:
        """Start the groups of a batch of `TaskDataset`. Each group's rows are put into the queue when it ends."""
        pairs = zip(batch["uid"], batch["planned_group"], strict=True)
        groups = [(_plain(uid), from_text(_plain(group))) for uid, group in pairs]
        ray.get(self._conductor.take.remote(groups))

    def validate(self, step: int) -> Metrics:
        """Validate after a step; returns metrics under the local backbone's names."""
        metrics: Metrics = ray.get(self._conductor.validate.remote(step))
        return metrics

    def learned(self, uids: Sequence[str], step: int) -> Metrics:
        """Report that a step has learned from these groups; returns the metrics of their episodes."""
        metrics: Metrics = ray.get(self._conductor.learned.remote(list(uids), step))
        return metrics

    def keep(self, folder: str) -> None:
        """Write what the conductor knows of the groups in verl's queue into verl's checkpoint, which contains the queue."""
        ray.get(self._conductor.keep.remote(folder))

    def failure(self) -> str:
        """Why the last group without rows has none."""
        cause: str = ray.get(self._conductor.failure.remote())
        return cause

    def pause(self, paused: bool) -> None:
        """Begin or end a pause of the servers; deadlines of episodes do not count it."""
        ray.get(self._conductor.pause.remote(paused))

    def close(self) -> None:
        """End the conductor, its judge and its runners. Never raises, because an earlier error may have ended the run."""
        with contextlib.suppress(Exception):
            ray.get(self._conductor.close.remote(), timeout=CLOSING)
        ray.kill(self._conductor)


def _plain(value: Any) -> str:
    """The text, unwrapped if tensordict has wrapped it."""
    return str(value if isinstance(value, str) else value.data)
