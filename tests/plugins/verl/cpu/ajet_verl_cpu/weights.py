"""Weights from the trainer to vLLM engines of other ranks, through a file in shared memory: for verl's separate_async,
whose own ways are NCCL and RDMA. One machine only."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import torch
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("cpu_file")
class FileCheckpointEngine(CheckpointEngine):
    """The first rank of the trainer writes, every rollout rank reads, the writer removes."""

    def __init__(self, bucket_size: int, is_master: bool = False, **_: Any) -> None:
        self._writes = is_master
        self._path = Path()

    def prepare(self) -> str | None:
        return f"/dev/shm/ajet_weights_{uuid.uuid4().hex}" if self._writes else None

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        return {"path": metadata[:1] * actor_wg_world_size}, {"path": metadata[:1] * rollout_world_size}

    def init_process_group(self, path: str) -> None:
        self._path = Path(path)

    def finalize(self) -> None:
        if self._writes:
            self._path.unlink(missing_ok=True)

    @torch.no_grad()
    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, Any]:
        state = {}
        for name, tensor in weights:  # every rank goes through them, as gathering them is collective
            if self._writes:
                state[name] = tensor.detach().cpu().clone()
        if self._writes:
            torch.save(state, f"{self._path}.part")
            os.replace(f"{self._path}.part", self._path)
        return {}

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        while not self._path.exists():
            await asyncio.sleep(0.02)
        for name, tensor in torch.load(self._path).items():
            yield name, tensor
