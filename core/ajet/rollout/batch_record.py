"""What a step trained, as one small file: `ajet audit` compares it with the journal.

A file ``batches/step_NNNNNN.npz`` has these arrays, which NumPy reads without pickles:

    about        uint8: JSON in UTF-8, see `packed`
    token_ids    int32: the tokens of all samples, without those at the beginning that the sample before has too
    mask         bool, weights and advantages float32: those of all samples, one after the other
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ajet.tracker.tree import common_length
from ajet.types import Batch, Int32, Sample
from ajet.utils.files import writing

BATCHES = "batches"


@dataclass(frozen=True, slots=True)
class Account:
    """Which episodes a batch was made of, and what was left out of it, by rule."""

    groups: Mapping[str, int] = field(default_factory=dict)
    """The group of each episode that counts in a group's statistics, also if no call of it is left."""
    calls: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    """By rule and episode, the numbers of the calls that filters and limits left out."""
    episodes: dict[str, list[str]] = field(default_factory=dict)
    """By rule, the episodes that were left out whole."""
    sums: Sequence[Mapping[str, float]] = ()
    """For each mini-batch and adapter ("": none), what its weights add up to by the algorithm."""


def batch_file(run_dir: Path, step: int) -> Path:
    """The record of a step."""
    return run_dir / BATCHES / f"step_{step:06d}.npz"


def packed(step: int, batch: Batch, account: Account, *, with_tokens: bool = True) -> bytes:
    """The record of a step, as the bytes of its file.

    ``about`` holds the step, the learning rate, ``mini_batches`` as indices of samples, ``zero_costs_nothing``, the `Account`,
    and for each sample its episode, adapter, length, the number of tokens ``shared`` with the sample before, and ``spans``:
    (start, end, call, agent, target, CRC-32 of the logprobs). Without ``with_tokens`` token ids and checksums are unknown.
    """
    before: Int32 = np.zeros(0, np.int32)
    told, tokens = [], []
    for sample in batch.samples:
        ids = np.ascontiguousarray(sample.token_ids if with_tokens else (), np.int32)
        shared = common_length(before, ids)
        tokens.append(ids[shared:])
        before = ids
        told.append(
            {
                "episode": sample.episode,
                "adapter": sample.adapter,
                "pair": sample.pair,
                "length": len(sample.mask),
                "shared": shared,
                "spans": [
                    (
                        s.start,
                        s.end,
                        s.call,
                        s.agent,
                        s.target,
                        _checksum(sample, s.start, s.end, with_tokens),
                    )
                    for s in sample.spans
                ],
            }
        )
    about = {
        "step": step,
        "learning_rate": batch.learning_rate,
        "mini_batches": [list(indices) for indices in batch.mini_batches],
        "zero_costs_nothing": batch.zero_costs_nothing,
        "with_tokens": with_tokens,
        "samples": told,
        "groups": account.groups,
        "left_out": {"calls": account.calls, "episodes": account.episodes},
        "sums": account.sums,
    }
    arrays = {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "token_ids": _joined(tokens, np.int32),
        "mask": _joined([s.mask for s in batch.samples], np.bool_),
        "weights": _joined([s.weights for s in batch.samples], np.float32),
        "advantages": _joined([s.advantages for s in batch.samples], np.float32),
    }
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


MOST_RECORDED = 1 << 30
"""Bytes of a record's JSON and of its advantages that are read."""


def trained_advantages(run_dir: Path, step: int) -> dict[tuple[str, int], float] | None:
    """The advantage with which a step trained each call, by episode and number: the mean over the call's tokens. None if there is no
    record of the step that can be read."""
    path = batch_file(run_dir, step)
    try:
        with zipfile.ZipFile(path) as archive:
            if any(
                archive.getinfo(f"{name}.npy").file_size > MOST_RECORDED for name in ("about", "advantages")
            ):
                return None
        with np.load(path, allow_pickle=False) as arrays:
            about, advantages = json.loads(arrays["about"].tobytes()), arrays["advantages"]
        by_call, at = {}, 0
        for sample in about["samples"]:
            for start, end, call, *_ in sample["spans"]:
                tokens = advantages[at + start : at + end]
                if len(tokens) and np.isfinite(tokens).all():
                    # In double precision, in which the mean of equal numbers is that number.
                    by_call[str(sample["episode"]), int(call)] = float(tokens.mean(dtype=np.float64))
            at += sample["length"]
    except (OSError, EOFError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError):
        return None
    except (zipfile.BadZipFile, zlib.error):
        return None
    return by_call


def write_batch(path: Path, data: bytes) -> None:
    """Write a record; one of an earlier attempt at the step is replaced. Raises AjetError."""
    partial = path.with_name(f".{path.name}")
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        partial.write_bytes(data)
        os.replace(partial, path)


def _checksum(sample: Sample, start: int, end: int, known: bool) -> int | None:
    return zlib.crc32(sample.logprobs[start:end].astype("<f4").tobytes()) if known else None


def _joined(parts: Sequence[Any], kind: Any) -> Any:
    return np.concatenate([np.zeros(0, kind), *parts]).astype(kind)
