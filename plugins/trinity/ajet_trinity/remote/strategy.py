"""Trinity's sample strategy: the rows of the next step, from the files of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
from trinity.common.experience import EID, CustomField, Experience

from ajet_trinity.batches import Row, read_rows
from ajet_trinity.spool import Spool, write

POLL_SECONDS = 0.02
FIELDS = [
    CustomField("weights", "ajet_weights", torch.float32),
    CustomField("calls", "ajet_calls", torch.int64),
    CustomField("rate", "ajet_rate", torch.float64),
    CustomField("first", "ajet_first", torch.bool),
]
"""What rows have besides the fields that Trinity knows."""


class Files(SampleStrategy):
    """Waits for the file of each step. While it waits, the trainer is idle, so it lets it write the checkpoints that the run
    asks for."""

    def __init__(self, buffer_config: Any, *, folder: str, **_: Any) -> None:
        super().__init__(buffer_config)
        self.spool = Spool(Path(folder))

    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[Any]]:
        """The rows of a step. Raises ValueError if they are not those that the run has counted."""
        self.spool.ready.touch()
        path = self.spool.update(step)
        while not path.exists():
            await self._save(step - 1)
            await asyncio.sleep(POLL_SECONDS)
        rows = read_rows(path)
        width = max(len(row.mask) for row in rows)
        return [_experience(row, step, i, width) for i, row in enumerate(rows)], {}, []

    async def _save(self, step: int) -> None:
        """Write a checkpoint of the weights after a step, if the run asks for one."""
        if not self.spool.save_request(step).exists():
            return
        self.spool.save_request(step).unlink()
        trainer = ray.get_runtime_context().current_actor
        await trainer.save_checkpoint.remote(block_until_saved=True)
        write(self.spool.saved(step), b"")

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The run knows where it is."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """There is nothing to restore."""


def _experience(row: Row, step: int, number: int, width: int) -> Experience:
    advantages = torch.from_numpy(row.advantages.copy())
    return Experience(
        eid=EID(batch=step, task=number, run=0, step=0),
        tokens=torch.from_numpy(row.token_ids.copy()),
        prompt_length=row.prompt,
        logprobs=torch.from_numpy(row.old.copy()),
        action_mask=torch.from_numpy(row.mask.copy()),
        reward=0.0,  # the advantages hold all credit
        advantages=advantages,
        returns=advantages,
        info={
            "weights": _wide(row.weights, width),
            "calls": _wide(row.calls, width),
            "rate": row.rate,
            "first": row.first,
        },
        custom_fields=FIELDS,
    )


def _wide(array: np.ndarray, width: int) -> Sequence[Any]:
    """The array as a list, with zeros after it."""
    return np.pad(array, (0, width - len(array))).tolist()
