"""What AgentJet writes into verl's TransferQueue: the status of each group, and its rows.

verl waits for a group until its status is ``finished`` or ``failure``, and then takes all rows that the queue has of it. So
rows are put before the status, and rows that do not belong to the group's last run are removed before it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import transfer_queue as tq

from ajet_verl.rows import GroupRows

PARTITION = "train"
"""The partition of verl's queue with the training data."""


Status = Literal["running", "finished", "failure"]


async def add(uid: str, step: int, status: Status) -> None:
    """Add a group of a step that verl has not asked for."""
    tag = {"is_prompt": True, "status": status, "global_steps": step}
    await tq.async_kv_put(key=uid, partition_id=PARTITION, tag=tag)


async def set_status(uid: str, status: Status) -> None:
    """Set the status of a group, given by its key."""
    await tq.async_kv_put(key=uid, partition_id=PARTITION, tag={"status": status})


async def put(rows: GroupRows, step: int) -> None:
    """Put the rows of a group that was planned for a step. Existing rows with the same keys are replaced."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    tags = [{**tag, "global_steps": step} for tag in rows.tags]
    fields = list_of_dict_to_tensordict(rows.fields)
    await tq.async_kv_batch_put(keys=rows.keys, fields=fields, tags=tags, partition_id=PARTITION)


async def remove_rows(uid: str, but: Collection[str] = ()) -> None:
    """Remove the rows of a group, except the keys in ``but``."""
    await _remove({key for key in await _keys() if key.startswith(f"{uid}_")} - set(but))


async def remove(uids: Collection[str]) -> None:
    """Remove groups: their rows and their statuses."""
    wanted = set(uids)
    await _remove({key for key in await _keys() if key.split("_")[0] in wanted})


async def _keys() -> list[str]:
    found = await tq.async_kv_list(partition_id=PARTITION)
    return list((found or {}).get(PARTITION, ()))


async def _remove(keys: Collection[str]) -> None:
    if keys:
        await tq.async_kv_clear(keys=sorted(keys), partition_id=PARTITION)
