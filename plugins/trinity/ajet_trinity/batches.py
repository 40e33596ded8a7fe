"""A batch as rows, and rows as a file: what the run sends to the learner.

A row is a timeline up to its last trained token. Trinity's trainer takes an optimizer step for each fixed number of rows, so
the rows of a mini-batch are cut into chunks of this number, the last one padded with rows of weight 0. Only the last chunk of
a mini-batch has a learning rate above 0; for the others our optimizer adds up the gradients
(`ajet_trinity.remote.optimizer`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ajet import AjetError
from ajet.interfaces.backbone import Batch, Sample
from ajet.interfaces.engine import Float32, Int32
from ajet.types import Bool
from ajet_trinity.spool import write

ROWS = ("length", "prompt", "rate", "first")
"""Arrays of a file with one entry a row."""
RESPONSES = ("mask", "old", "advantages", "weights", "calls")
"""Arrays of a file with one entry for each token after a row's prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A timeline. ``token_ids`` has P + T entries, the other arrays T."""

    token_ids: Int32
    prompt: int
    """P: the tokens before the first trained one, at least 1."""
    mask: Bool
    old: Float32
    """The sampling logprobs; 0 where no token is trained."""
    advantages: Float32
    weights: Float32
    """They hold every normalisation; 0 where no token is trained."""
    calls: Int32
    """The number of each token's call in its row."""
    rate: float = 0.0
    """The learning rate of the optimizer step that its chunk completes; 0 if it completes none."""
    first: bool = False
    """Whether it is in the batch's first mini-batch, which is computed before the weights change."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of an update, in Trinity's order."""

    rows: Sequence[Row]
    chunks: int
    """Number of chunks: Trinity's mini-batches."""
    steps: int
    """Number of optimizer steps."""
    skipped: int
    """Trained tokens of samples without credit, which are not sent."""

    @property
    def tokens(self) -> int:
        """Trained tokens of all rows."""
        return sum(int(row.mask.sum()) for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How Trinity distributes rows: ``size`` of them in a chunk, a multiple of ``ranks``, the number of data-parallel workers."""

    size: int
    ranks: int

    @classmethod
    def of(cls, episodes: int, ranks: int) -> RowLayout:
        """A layout for mini-batches of about so many episodes."""
        return cls(max(-(-episodes // ranks), 1) * ranks, ranks)

    def chunks(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Cut rows, padded to a multiple of the size, into chunks."""
        padded = [*rows, *[padding()] * (-len(rows) % self.size)]
        for start in range(0, len(padded), self.size):
            yield padded[start : start + self.size]

    def arrange(self, chunks: Sequence[Sequence[Row]]) -> list[Row]:
        """The rows of all chunks in an order in which the workers compute the chunks one after the other: each worker gets a
        consecutive share of the rows, and of that share a consecutive part for each chunk. Long rows are spread over workers."""
        shares = []
        for chunk in chunks:
            longest_first = sorted(chunk, key=lambda row: -len(row.token_ids))
            shares.append([longest_first[rank :: self.ranks] for rank in range(self.ranks)])
        return [row for rank in range(self.ranks) for share in shares for row in share[rank]]


def padding() -> Row:
    """A row that trains nothing."""
    return Row(
        token_ids=np.zeros(2, np.int32),
        prompt=1,
        mask=np.zeros(1, np.bool_),
        old=np.zeros(1, np.float32),
        advantages=np.zeros(1, np.float32),
        weights=np.zeros(1, np.float32),
        calls=np.zeros(1, np.int32),
    )


def rows_of(batch: Batch, layout: RowLayout, temperature: float) -> Rows:
    """The rows of a batch. Samples without credit are left out (if `Batch.zero_costs_nothing`), and mini-batches of only such
    samples. Raises AjetError for a token that was sampled at another temperature, because Trinity computes the logprobs of all
    rows at one."""
    chunks: list[list[Row]] = []
    steps = skipped = 0
    for indices in batch.mini_batches:
        samples = [batch.samples[i] for i in indices]
        live = [sample for sample in samples if batch.has_credit(sample)]
        skipped += sum(int(s.mask.sum()) for s in samples) - sum(int(s.mask.sum()) for s in live)
        if not live:
            continue
        own = list(layout.chunks([_row(sample, temperature, first=not steps) for sample in live]))
        own[-1] = [_with_rate(row, batch.learning_rate) for row in own[-1]]
        chunks += own
        steps += 1
    return Rows(layout.arrange(chunks), len(chunks), steps, skipped)


def _row(sample: Sample, temperature: float, *, first: bool) -> Row:
    trained = np.flatnonzero(sample.mask)
    prompt, end = int(trained[0]), int(trained[-1]) + 1
    for span in sample.spans:
        if (span.temperature or 1.0) != temperature:
            raise AjetError(
                f"episode {sample.episode}: agent {span.agent!r} sampled at temperature {span.temperature:g}, but Trinity computes "
                f"all logprobs at rollout.sampling.temperature ({temperature:g}). Let the agent use that temperature."
            )
    calls = np.zeros(len(sample.token_ids), np.int32)
    for number, span in enumerate(sample.spans):
        calls[span.start : span.end] = number
    mask = sample.mask[prompt:end]

    def trained_only(array: Float32) -> Float32:
        return np.where(mask, array[prompt:end], 0).astype(np.float32)

    return Row(
        token_ids=sample.token_ids[:end].astype(np.int32),
        prompt=prompt,
        mask=mask,
        old=trained_only(sample.logprobs),
        advantages=trained_only(sample.advantages),
        weights=trained_only(sample.weights),
        calls=calls[prompt:end],
        first=first,
    )


def _with_rate(row: Row, rate: float) -> Row:
    return replace(row, rate=rate)


def write_rows(path: Path, rows: Rows) -> None:
    """Write rows into a safetensors file, with their numbers of rows and of trained tokens. Raises OSError."""
    from safetensors.numpy import save

    arrays: dict[str, Any] = {
        "token_ids": np.concatenate([row.token_ids for row in rows.rows]),
        "length": np.array([len(row.token_ids) for row in rows.rows], np.int32),
        "prompt": np.array([row.prompt for row in rows.rows], np.int32),
        "rate": np.array([row.rate for row in rows.rows], np.float64),
        "first": np.array([row.first for row in rows.rows], np.bool_),
        **{name: np.concatenate([getattr(row, name) for row in rows.rows]) for name in RESPONSES},
    }
    counts = {"rows": len(rows.rows), "tokens": rows.tokens}
    write(path, save(arrays, {"counts": json.dumps(counts)}))


def read_rows(path: Path) -> list[Row]:
    """The rows of a file. Raises ValueError if they are not those that its counts name."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        counts = json.loads(file.metadata()["counts"])
        arrays = {name: file.get_tensor(name) for name in ("token_ids", *ROWS, *RESPONSES)}
    rows = list(_cut(arrays))
    actual = {"rows": len(rows), "tokens": sum(int(row.mask.sum()) for row in rows)}
    if actual != counts:
        raise ValueError(
            f"{path.name}: the run sent {counts['tokens']} trained tokens in {counts['rows']} rows, but the learner reads "
            f"{actual['tokens']} in {actual['rows']}"
        )
    return rows


def _cut(arrays: dict[str, Any]) -> Iterator[Row]:
    start = answered = 0
    for length, prompt, rate, first in zip(*(arrays[name] for name in ROWS), strict=True):
        end, until = start + int(length), answered + int(length) - int(prompt)
        yield Row(
            token_ids=arrays["token_ids"][start:end],
            prompt=int(prompt),
            **{name: arrays[name][answered:until] for name in RESPONSES},
            rate=float(rate),
            first=bool(first),
        )
        start, answered = end, until
