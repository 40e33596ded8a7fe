"""What AgentJet writes into verl's TransferQueue: timelines as rows, read back for credit, and the status of each group.

A row has the tensors that verl's workers read, and a `VerlRow` with what credit needs to know. So credit needs only the
queue, even after the queue was restored from a checkpoint, and of the queue no tensors, unless rows become trees.

verl waits for a group until its status is ``finished`` or ``failure``, and then takes all rows that the queue has of it. So
rows are put before the status, and rows that do not belong to the group's last run are removed before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import transfer_queue as tq
from numpy.typing import NDArray

from ajet import AjetError
from ajet.interfaces.backbone import Span
from ajet.learning.batch import Learnable
from ajet.tracker.timelines import Timeline
from ajet_verl.images import COORDINATES, INPUTS, seen
from ajet_verl.recorder import from_text, to_text

if TYPE_CHECKING:
    from ajet.interfaces.vision import Vision

READ = ("row",)
"""The fields that `read` needs."""
TOKENS = ("prompts", "responses")
"""The fields that it needs for token ids."""
ROUTED = "routed_experts"
"""In the tag of a row with this field: its numbers of layers and of experts per token."""
Fields = dict[str, Any]
PARTITION = "train"
"""The partition of verl's queue with the training data."""


Status = Literal["running", "finished", "failure"]


@dataclass(frozen=True, slots=True)
class VerlRow:
    """What a row contains besides its tensors."""

    episode: Learnable
    """The episode of the timeline, without its lines, because these are the rows."""
    number: int
    """Number of the timeline in its episode, from 0."""
    spans: tuple[Span, ...]
    rowless: tuple[Learnable, ...] = ()
    """Members of its group that have a reward but no rows."""


class GroupRows(NamedTuple):
    """The rows of a group: each has a key, fields and a tag."""

    keys: list[str]
    fields: list[Fields]
    tags: list[dict[str, Any]]


def key(uid: str, member: int, number: int) -> str:
    """The row's key, which verl parses into group, session and output."""
    return f"{uid}_{member}_{number}"


def group_rows(
    uid: str, members: Sequence[Learnable], temperature: float, vision: Vision | None = None
) -> GroupRows:
    """The rows of a group; ``vision`` is that of a model that sees images. Raises AjetError if a row would not be trained as it was
    sampled."""
    rowless = tuple(m for m in members if not m.lines)
    keys: list[str] = []
    fields: list[Fields] = []
    tags: list[dict[str, Any]] = []
    for member in members:
        check(member, temperature)
        for number, line in enumerate(member.lines):
            keys.append(key(uid, member.member, number))
            row = VerlRow(replace(member, lines=()), number, line.spans, rowless)
            fields.append(to_fields(line, row, uid, vision))
            tags.append(to_tag(line) | ({INPUTS: True} if vision else {}))
    return GroupRows(keys, fields, tags)


def check(member: Learnable, temperature: float) -> None:
    """Raise AjetError unless each sampled token is in exactly one row or dropped by a policy, each row has such tokens,
    and all were sampled at ``temperature``, at which verl computes logprobs."""
    trained = [int(line.mask.sum()) for line in member.lines]
    if 0 in trained or sum(trained) + sum(member.dropped.values()) != member.sampled_tokens:
        raise AjetError(
            f"episode {member.id!r}: {member.sampled_tokens} tokens were sampled and {sum(member.dropped.values())} dropped, "
            f"but its rows train {trained}. This is a bug in AgentJet: please report it with the run folder."
        )
    others = {s.temperature for line in member.lines for s in line.spans} - {temperature}
    if others:
        raise AjetError(
            f"episode {member.id!r}: sampled at temperature {others.pop():g}, but verl computes logprobs at {temperature:g}. "
            "This is a bug in AgentJet: please report it with the run folder."
        )


def to_fields(line: Timeline, row: VerlRow, uid: str, vision: Vision | None = None) -> Fields:
    """The fields of a timeline of T tokens: P before the first trained one, and the other R = T - P.

    int64: ``prompts`` [P], ``responses`` [R], ``input_ids`` and ``position_ids`` [T], ``response_mask`` and ``loss_mask``
    [R]. float32 [R]: ``rollout_log_probs``, 0 where not sampled; ``rm_scores``, the true reward, on the last token.
    int32 [R]: ``weight_versions``, -1 where not sampled; ``calls``, 0 where not sampled, else the number of the token's
    span, from 1. int16 [T, layers, k]: ``routed_experts``, if the timeline has them.

    With ``vision``, as verl's agent loop gives them: ``position_ids`` are [4, T], tokens of images have the id of the model's
    placeholder, and ``multi_modal_inputs`` are the arrays of the row's images (see `ajet_verl.images.RowImages`).
    """
    first = int(line.mask.argmax())
    mask = line.mask[first:]
    calls = np.zeros(len(line.token_ids), np.int32)
    for number, span in enumerate(line.spans, 1):
        calls[span.start : span.end] = number
    rewards = np.zeros(len(mask), np.float32)
    rewards[-1] = row.episode.reward
    ids, positions = _tensor(line.token_ids, np.int64), torch.arange(len(mask) + first)
    pictures: Fields = {}
    if vision:
        plain, positions, inputs = seen(vision, line.token_ids.tolist(), line.images)
        ids, pictures = torch.tensor(plain), {INPUTS: inputs}
    routed = line.routed_experts
    return {
        "prompts": ids[:first],
        "responses": ids[first:],
        "input_ids": ids,
        "position_ids": positions,
        "response_mask": _tensor(mask, np.int64),
        "loss_mask": _tensor(mask, np.int64),
        "rollout_log_probs": _tensor(np.where(mask, line.logprobs[first:], 0.0), np.float32),
        "rm_scores": _tensor(rewards, np.float32),
        "weight_versions": _tensor(line.versions[first:], np.int32),
        "calls": _tensor(calls[first:], np.int32),
        "num_turns": len(line.spans),
        "uid": uid,
        "row": to_text(row),
        **({} if routed is None else {ROUTED: _tensor(routed, np.int16)}),
        **pictures,
    }


def to_tag(line: Timeline) -> dict[str, Any]:
    """A row's tag, which verl's trainer reads without the row itself."""
    first, length = int(line.mask.argmax()), len(line.token_ids)
    versions = line.versions[line.mask]
    routed = line.routed_experts
    return {
        "status": "success",
        "prompt_len": first,
        "response_len": length - first,
        "seq_len": length,
        "min_global_steps": int(versions.min()),
        "max_global_steps": int(versions.max()),
        **({} if routed is None else {ROUTED: list(routed.shape[1:])}),
    }


def padding(token: int, like: Mapping[str, Any]) -> tuple[Fields, dict[str, Any]]:
    """Fields and tag of a padding row: two tokens, none of them trained. ``like`` is the tag of another row of the batch."""
    nothing = Learnable(
        id="", group=-1, member=0, reward=0.0, rewards={}, calls=(), lines=(), sampled_tokens=0, call_tokens=0
    )
    ids = np.full(2, token, np.int32)
    routed = np.zeros((2, *like[ROUTED]), np.int16) if ROUTED in like else None
    line = Timeline(ids, np.array([False, True]), np.zeros(2, np.float32), np.zeros(2, np.int32), (), routed)
    fields = to_fields(line, VerlRow(nothing, 0, ()), "")
    for name in ("response_mask", "loss_mask"):
        fields[name] = torch.zeros_like(fields[name])
    tag = {**to_tag(line), "is_padding": True}
    if INPUTS in like:
        fields |= {"position_ids": torch.arange(len(ids)).repeat(COORDINATES, 1), INPUTS: {}}
        tag[INPUTS] = True
    return {**fields, "num_turns": 0}, tag


def read(fields: Mapping[str, Any]) -> tuple[VerlRow, Timeline]:
    """The row and what credit needs of its timeline, from the fields that `to_fields` made: mask and spans, and the token ids if
    the fields include `TOKENS`; otherwise these are 0. Logprobs are NaN and versions -1."""
    row: VerlRow = from_text(fields["row"])
    length = row.spans[-1].end  # a timeline ends with a call
    mask = np.zeros(length, np.bool_)
    for span in row.spans:
        mask[span.start : span.end] = True

    def unknown(value: np.generic) -> NDArray[Any]:
        return np.broadcast_to(value, length)  # without memory of its own

    parts = [_array(fields[name], np.int32) for name in TOKENS if name in fields]
    ids = np.concatenate(parts) if parts else unknown(np.int32(0))
    line = Timeline(ids, mask, unknown(np.float32(np.nan)), unknown(np.int32(-1)), row.spans)
    return row, line


def learnables(rows: Sequence[tuple[VerlRow, Timeline]]) -> list[Learnable]:
    """The episodes of all groups of these rows, with their timelines, sorted by group and member."""
    lines: dict[str, list[tuple[int, Timeline]]] = {}
    episodes: dict[str, Learnable] = {}
    for row, line in rows:
        episodes |= {other.id: other for other in (row.episode, *row.rowless)}
        lines.setdefault(row.episode.id, []).append((row.number, line))
    whole = [
        replace(e, lines=[line for _, line in sorted(lines.get(name, ()), key=lambda pair: pair[0])])
        for name, e in episodes.items()
    ]
    return sorted(whole, key=lambda e: (e.group, e.member))


def _tensor(array: NDArray[Any], kind: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=kind))


def _array(tensor: torch.Tensor, kind: Any) -> NDArray[Any]:
    return tensor.cpu().numpy().astype(kind)


async def add_group(uid: str, step: int, status: Status) -> None:
    """Add a group of a step that verl has not asked for."""
    tag = {"is_prompt": True, "status": status, "global_steps": step}
    await tq.async_kv_put(key=uid, partition_id=PARTITION, tag=tag)


async def set_status(uid: str, status: Status) -> None:
    """Set the status of a group, given by its key."""
    await tq.async_kv_put(key=uid, partition_id=PARTITION, tag={"status": status})


async def put_rows(rows: GroupRows, step: int) -> None:
    """Put the rows of a group that was planned for a step. Existing rows with the same keys are replaced."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    tags = [{**tag, "global_steps": step} for tag in rows.tags]
    fields = list_of_dict_to_tensordict(rows.fields)
    await tq.async_kv_batch_put(keys=rows.keys, fields=fields, tags=tags, partition_id=PARTITION)


async def remove_rows(uid: str, but: Collection[str] = ()) -> None:
    """Remove the rows of a group, except the keys in ``but``."""
    await _remove({key for key in await _keys() if key.startswith(f"{uid}_")} - set(but))


async def remove_groups(uids: Collection[str]) -> None:
    """Remove groups: their rows and their statuses."""
    wanted = set(uids)
    await _remove({key for key in await _keys() if key.split("_")[0] in wanted})


async def _keys() -> list[str]:
    partitions = await tq.async_kv_list(partition_id=PARTITION)
    return list((partitions or {}).get(PARTITION, ()))


async def _remove(keys: Collection[str]) -> None:
    if keys:
        await tq.async_kv_clear(keys=sorted(keys), partition_id=PARTITION)
