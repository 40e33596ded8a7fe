"""What a step trained: `batches/step_NNNNNN.npz`, whose arrays `ajet.rollout.batch_record` describes."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet_audit.files import Folder

MOST_UNPACKED = 1 << 30
"""Bytes of the arrays of a record that are read."""


@dataclass(frozen=True)
class SampleRow:
    """A sample: arrays of its length, and (start, end, call, agent, target, checksum) of each call in it."""

    episode: str
    adapter: str | None
    ids: Any
    mask: Any
    weights: Any
    advantages: Any
    spans: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Step:
    """A step's rows, and which indices of them each mini-batch has."""

    rows: Sequence[SampleRow]
    mini_batches: Sequence[Sequence[int]]
    groups: Mapping[str, int]
    calls_left_out: Mapping[str, Mapping[str, Sequence[int]]]
    episodes_left_out: Mapping[str, Sequence[str]]
    sums: Sequence[Mapping[str, float]]
    learning_rate: float
    zero_costs_nothing: bool
    with_tokens: bool

    @property
    def passes(self) -> Sequence[Sequence[int]]:
        """The mini-batches of one pass over the batch."""
        return self.mini_batches[: len(self.sums)]


def read_step(folder: Folder, step: int) -> Step:
    """The record of a step. Raises AjetError if it cannot be read, ValueError if it contradicts itself."""
    name = f"batches/step_{step:06d}.npz"
    try:
        with np.load(io.BytesIO(folder.read(name)), allow_pickle=False) as arrays:
            if sum(part.file_size for part in arrays.zip.infolist()) > MOST_UNPACKED:
                raise ValueError(f"more than {MOST_UNPACKED >> 30} GiB when unpacked")
            about = json.loads(arrays["about"].tobytes())
            ids, mask, weights, advantages = (
                arrays[part] for part in ("token_ids", "mask", "weights", "advantages")
            )
    except (OSError, KeyError, EOFError, ValueError, NotImplementedError) as error:
        raise ValueError(f"{name} is damaged ({error})") from None
    except Exception as error:  # of zipfile and zlib, which share no base
        raise ValueError(f"{name} is damaged ({type(error).__name__}: {error})") from None
    if about["step"] != step:
        raise ValueError(f"{name} is the record of step {about['step']}")
    rows, at, taken, before = [], 0, 0, ids[:0]
    for sample in about["samples"]:
        length, shared = sample["length"], sample["shared"]
        new = length - shared if about["with_tokens"] else 0
        before = np.concatenate([before[:shared], ids[taken : taken + new]])
        own = slice(at, at + length)
        credit = mask[own], weights[own], advantages[own]
        rows.append(SampleRow(sample["episode"], sample["adapter"], before, *credit, sample["spans"]))
        at, taken = at + length, taken + new
    if not (at == len(mask) == len(weights) == len(advantages) and taken == len(ids)):
        raise ValueError(f"{name}: its arrays have other lengths than its samples")
    left_out = about["left_out"]
    return Step(
        rows,
        about["mini_batches"],
        about["groups"],
        left_out["calls"],
        left_out["episodes"],
        about["sums"],
        about["learning_rate"],
        about["zero_costs_nothing"],
        about["with_tokens"],
    )
