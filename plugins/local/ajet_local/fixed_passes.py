"""Decoding passes of few fixed shapes, which a CUDA graph can repeat.

In a pass with one token for each completion, Python takes longer to start the kernels than a GPU to run them. A CUDA graph starts
all kernels of an earlier pass at once, but on the same memory and with the same shapes. So a fixed pass reads all that changes from
one tensor that stays in place, and its numbers of families and of columns are rounded up: rows without a completion compute a token
whose key and value go into a column that no row reads.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ajet_local.cached_attention import Decoding, Pass, forward
from ajet_local.slots import UNUSED, Bank

log = logging.getLogger("ajet")

Int64 = npt.NDArray[np.int64]
Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes work that has run before, and returns what repeats it on the same memory. Raises RuntimeError if it cannot."""
MOST_PASSES = 64
"""So many shapes are kept, the most recently used ones."""
COLUMNS = 64
"""The unit in which numbers of columns are rounded up."""
NEVER = -1e9
"""Added to scores that must not count. It is finite: rows without a completion read nothing, and their mean must be a number."""


class FixedPasses:
    """The passes of a model. ``record`` is `cuda_graph`, except in tests."""

    def __init__(self, model: Any, record: Record) -> None:
        self._model = model
        self._record: Record | None = record
        self._passes: OrderedDict[Hashable, _FixedPass] = OrderedDict()
        self._outputs: dict[int, torch.Tensor] = {}

    def logits(self, banks: Sequence[Bank], adapter: str | None) -> torch.Tensor | None:
        """Decode one token of each completion with the active adapter: their logits [n, V], in the order of the banks. None if the
        rows without a completion find no free column."""
        parts = [part for bank in banks if (part := _Part.of(bank))]
        if len(parts) < len(banks):
            return None
        key = (adapter, *(part.key for part in parts))
        found = self._passes.pop(key, None) or _FixedPass(self._model, parts, self._output(parts))
        if len(self._passes) == MOST_PASSES:
            self._passes.popitem(last=False)
        self._passes[key] = found
        alive = found.fill()
        if self._record is not None:
            try:
                found.record(self._record)
            except RuntimeError as error:
                log.warning("sampling goes on without CUDA graphs: %s", error)
                self._record = None
        found.run()
        return found.out[alive]

    def _output(self, parts: Sequence[_Part]) -> torch.Tensor:
        """Memory for logits, which passes share: each would keep as much of its own."""
        rows = sum(part.rows for part in parts)
        size = 1 << (rows - 1).bit_length()
        if size not in self._outputs:
            vocabulary = self._model.get_output_embeddings().weight.shape[0]
            self._outputs[size] = torch.empty(
                size, vocabulary, dtype=self._model.dtype, device=self._model.device
            )
        return self._outputs[size][:rows]


@dataclass(frozen=True, slots=True)
class _Part:
    """The first slots of a bank."""

    bank: Bank
    families: int
    width: int

    @classmethod
    def of(cls, bank: Bank) -> _Part | None:
        """The part with all taken slots, rounded up; None if a slot has no column for a member that has left."""
        width = max(family.used for family in bank.taken) + bank.size
        if width > bank.capacity:
            return None
        families = min(_rounded(len(bank.taken)), len(bank.owner))
        return cls(bank, families, min(_rounded(width, COLUMNS), bank.capacity))

    @property
    def rows(self) -> int:
        """How many tokens it has."""
        return self.families * self.bank.size

    @property
    def key(self) -> Hashable:
        """What must be equal for a recorded pass to repeat it. The bank's memory moves when it is resized."""
        bank = self.bank
        return id(bank), bank.kv.data_ptr(), len(bank.owner), self.families, self.width

    def fill(self, numbers: Int64) -> list[int]:
        """Write what the rows compute into ``numbers`` int64[4, rows]; returns the rows of completions."""
        ids, positions, columns, owners = numbers.reshape(4, self.families, self.bank.size)
        columns[:] = np.arange(self.bank.size)
        owners[:] = UNUSED
        alive = []
        for slot, family in enumerate(self.bank.taken):
            living = family.alive
            gone = [m for m, completion in enumerate(family.members) if completion is None]
            columns[slot, [*living, *gone]] = family.used + np.arange(self.bank.size)
            for member in living:
                completion = family.members[member]
                assert completion is not None
                ids[slot, member], positions[slot, member] = (
                    completion.next_token,
                    completion.length + completion.shift,
                )
                owners[slot, member] = member
                alive.append(slot * self.bank.size + member)
        return alive


class _FixedPass:
    """A pass over parts of banks, whose logits are in ``out`` [rows, V]."""

    def __init__(self, model: Any, parts: Sequence[_Part], out: torch.Tensor) -> None:
        self._model = model
        self._parts = parts
        self.out = out
        self._numbers = torch.zeros(4, len(out), dtype=torch.long, device=out.device)
        """Of each row: its token, position and column, and the owner of that column."""
        self._slots = [
            torch.arange(part.families, device=out.device).repeat_interleave(part.bank.size) for part in parts
        ]
        self._repeat: Callable[[], None] | None = None
        self._has_run = False

    def fill(self) -> torch.Tensor:
        """Write what the next run reads; returns the rows of completions, int64[n]."""
        numbers = np.zeros((4, len(self.out)), dtype=np.int64)
        alive, start = [], 0
        for part in self._parts:
            end = start + part.rows
            alive += [start + row for row in part.fill(numbers[:, start:end])]
            start = end
        self._numbers.copy_(torch.from_numpy(numbers))
        return torch.tensor(alive, device=self.out.device)

    def record(self, record: Record) -> None:
        """From the second run on, let runs repeat what is recorded once."""
        if self._has_run and self._repeat is None:
            self._repeat = record(self._compute)

    def run(self) -> None:
        """Compute the logits of all rows."""
        (self._repeat or self._compute)()
        self._has_run = True

    def _compute(self) -> None:
        ids, positions, columns, owners = self._numbers
        decoding, start = [], 0
        for part, slots in zip(self._parts, self._slots, strict=True):
            bank, span = part.bank, slice(start, start + part.rows)
            start = span.stop
            bank.owner[slots, columns[span]] = owners[span].to(torch.int8)
            decoding.append(
                Decoding(
                    bank=bank,
                    span=span,
                    families=part.families,
                    width=part.width,
                    slots=slots,
                    columns=columns[span],
                    rows=None,
                    bias=bank.foreign(part.families, part.width).to(bank.kv.dtype) * NEVER,
                )
            )
        self.out.copy_(forward(self._model, ids, positions, Pass(decoding)))


def _rounded(number: int, unit: int = 1) -> int:
    """The next larger of four numbers of units in each octave: 1, 2, … 7, 8, 10, 12, 14, 16, 20, …"""
    units = -(-number // unit)
    step = 1 << max(units.bit_length() - 3, 0)
    return -(-units // step) * step * unit


def cuda_graph(work: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels of ``work``, which must have run before, as a CUDA graph. Raises RuntimeError if it does something that a
    graph cannot repeat."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # In an asynchronous run, the trainer's thread allocates memory meanwhile.
        graph.capture_begin(pool=_temporary(), capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    replay: Callable[[], None] = graph.replay
    return replay


@cache
def _temporary() -> tuple[int, int]:
    """Memory for what graphs compute in between. They share it, as they are replayed one after the other."""
    return torch.cuda.graph_pool_handle()
