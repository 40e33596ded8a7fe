"""Batches for models whose layers keep states: every context is a row of a cache of transformers.

Each step computes a token for each decoding completion, in one batch per adapter, and pieces of prompts, one after the
other. A state cannot be cut, so what is kept of contexts are snapshots at their ends: at the end of each prompt and of
each completion, and where a prompt first leaves one that was kept (as in Marconi, Pan et al., arXiv:2411.19379). A
prompt continues the longest snapshot that it begins with. Where prompts are cut depends only on them and on the snapshots,
so equal runs compute equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ajet.interfaces.engine import Int32
from ajet_local.completion import Completion
from ajet_local.row_cache import EMPTY, CachedRow, CachedRows
from ajet_local.rows import common_prefix
from ajet_local.scheduler import Scheduler
from ajet_local.slots import AHEAD

WORTH_KEEPING = 64
"""Minimum tokens that the common beginning of two prompts must save to be kept: a pass ends there."""


@dataclass(eq=False, slots=True)
class Snapshot:
    """The context of the tokens ``ids`` (int32[T]) under an adapter."""

    adapter: str | None
    ids: Int32
    row: CachedRow
    logits: torch.Tensor | None
    """[1, V]: those of the last token, if they are known."""
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = self.row.bytes + (0 if self.logits is None else self.logits.nbytes)


@dataclass(eq=False, slots=True)
class RowPrompt:
    """A context that is not computed yet, as far as its ``row`` reaches, and the completions that wait for it."""

    ids: Int32
    waiting: list[Completion]
    row: CachedRow | None = None
    """None: not begun."""
    cut: int = 0
    """Where a snapshot is kept on the way; 0: nowhere."""

    @property
    def missing(self) -> int:
        """How many tokens are not computed."""
        return len(self.ids) - (self.row.length if self.row else 0)


@dataclass(slots=True)
class Lane:
    """The work of one adapter."""

    prompts: list[RowPrompt] = field(default_factory=list)
    """Oldest first."""
    decoding: list[Completion] = field(default_factory=list)
    rows: CachedRows | None = None
    """The contexts of ``decoding``, without their last tokens."""

    @property
    def busy(self) -> bool:
        return bool(self.prompts or self.decoding)

    def contexts(self) -> Iterator[int]:
        """The lengths of all contexts, with room for the next tokens."""
        yield from (completion.length + 1 for completion in self.decoding)
        yield from (len(prompt.ids) + 1 for prompt in self.prompts for _ in prompt.waiting)


class RowScheduler(Scheduler):
    """``cache_bytes`` bounds the memory of contexts and snapshots together. Half of ``prefill_tokens`` bounds the prompt tokens of a
    pass."""

    def __init__(
        self, model: Any, activate: Callable[[str | None], None], *, cache_bytes: int, **sizes: int
    ) -> None:
        super().__init__(model, activate, **sizes)
        self.max_bytes = cache_bytes
        self.snapshots: list[Snapshot] = []
        """The one that was used longest ago first."""
        self._state, self._token = _sizes(model)

    @property
    def held_bytes(self) -> int:
        """Bytes of snapshots and of all contexts, also of those that are not computed yet."""
        return sum(s.bytes for s in self.snapshots) + sum(map(self._bytes, self._lanes.values()))

    def _bytes(self, lane: Lane, *more: int) -> int:
        """Bytes of a lane's contexts, and of further ones of these lengths: all are as wide as the longest."""
        lengths = [*lane.contexts(), *more]
        return len(lengths) * (self._state + self._token * max(lengths, default=0))

    # ------------------------------------------------------------------ which completions run

    def _clear(self) -> None:
        self.snapshots.clear()
        self._lanes.clear()

    def _begin(self, completion: Completion, first: bool) -> bool:
        ids = completion.context()
        lane = self._lanes.setdefault(completion.request.adapter, Lane())
        growth = self._bytes(lane, len(ids) + AHEAD) - self._bytes(lane)
        if not first and not self._make_room(growth):
            return False
        prompt = next((p for p in lane.prompts if np.array_equal(p.ids, ids)), None)
        if prompt is None:
            lane.prompts.append(prompt := RowPrompt(ids, []))
        prompt.waiting.append(completion)
        return True

    def _release(self, gone: Collection[Completion]) -> None:
        """Remove completions from the batch; snapshots keep what they computed after their prompts."""
        self.running = [c for c in self.running if c not in gone]
        for adapter, lane in self._lanes.items():
            leaving = [n for n, completion in enumerate(lane.decoding) if completion in gone]
            for n in leaving:
                completion = lane.decoding[n]
                assert lane.rows is not None
                self._keep(adapter, completion.context()[: completion.length], lane.rows[n].clone())
            if leaving:
                self._regroup(lane, [n for n in range(len(lane.decoding)) if n not in leaving], [])
            for prompt in lane.prompts:
                prompt.waiting = [c for c in prompt.waiting if c not in gone]
            lane.prompts = [prompt for prompt in lane.prompts if prompt.waiting]

    def _regroup(
        self, lane: Lane, staying: Sequence[int], joining: Sequence[tuple[Completion, CachedRow]]
    ) -> None:
        """Make a batch of the decoding completions that stay, by their index, and of others."""
        rows = [lane.rows[n] for n in staying] if lane.rows else []
        lane.decoding = [lane.decoding[n] for n in staying] + [completion for completion, _ in joining]
        rows += [row for _, row in joining]
        lane.rows = CachedRows(self.model, rows) if rows else None

    # ------------------------------------------------------------------ what is kept

    def _keep(
        self, adapter: str | None, ids: Int32, row: CachedRow, logits: torch.Tensor | None = None
    ) -> None:
        """Keep a snapshot, if there is none of these tokens that says as much; evict others for it."""
        same = [s for s in self.snapshots if s.adapter == adapter and np.array_equal(s.ids, ids)]
        if not same or (same[0].logits is None and logits is not None):
            self.snapshots = [s for s in self.snapshots if s not in same]
            self.snapshots.append(Snapshot(adapter, ids, row, logits))
            self._make_room(0)

    def _make_room(self, more: int) -> bool:
        """Evict snapshots if necessary; return whether there is memory for ``more`` bytes."""
        excess = self.held_bytes + more - self.max_bytes
        while excess > 0 and self.snapshots:
            excess -= self.snapshots.pop(0).bytes
        return excess <= 0

    def _continue(self, adapter: str | None, prompt: RowPrompt) -> Snapshot | None:
        """Continue a prompt from the longest snapshot that it begins with; returns it if it is all of the prompt."""
        best, branch = None, 0
        for snapshot in self.snapshots:
            if snapshot.adapter != adapter:
                continue
            shared = common_prefix([snapshot.ids, prompt.ids], len(prompt.ids))
            whole = shared == len(snapshot.ids) and (shared < len(prompt.ids) or snapshot.logits is not None)
            if whole and (best is None or shared > len(best.ids)):
                best = snapshot
            if shared < len(prompt.ids):
                branch = max(branch, shared)
        prompt.row = best.row if best else EMPTY
        prompt.cut = branch if branch - prompt.row.length >= WORTH_KEEPING else 0
        if best:
            self.snapshots.remove(best)
            self.snapshots.append(best)
        return best if best and not prompt.missing else None

    # ------------------------------------------------------------------ one step

    def _step(self, adapter: str | None, lane: Lane, version: int) -> None:
        logits, answered = [], list(lane.decoding)
        if lane.rows:
            logits.append(lane.rows.logits(self._ids([[c.next_token] for c in answered])))
            for completion in answered:
                completion.length += 1
        done: list[RowPrompt] = []
        left, most = self.prefill_tokens, max(1, self.prefill_tokens // 2)
        while left >= most and (rest := [p for p in lane.prompts if p not in done]):
            # The oldest one makes progress in every step, the shortest ones wait least.
            for prompt in [rest[0], *sorted(rest[1:], key=lambda p: p.missing)]:
                if left < most:
                    break
                computed, last_logits = self._advance(adapter, prompt, most)
                left -= computed
                if last_logits is not None:
                    done.append(prompt)
                    answered += prompt.waiting
                    logits.append(last_logits.expand(len(prompt.waiting), -1))
        if not answered:
            return
        self._answer(answered, torch.cat(logits), version)
        lane.prompts = [p for p in lane.prompts if p not in done]
        joining = []
        for prompt in done:
            for completion in prompt.waiting:
                if completion.alive:
                    completion.length = len(prompt.ids)
                    assert prompt.row is not None
                    joining.append((completion, prompt.row))
        if joining:
            self._regroup(lane, range(len(lane.decoding)), joining)

    def _advance(self, adapter: str | None, prompt: RowPrompt, most: int) -> tuple[int, torch.Tensor | None]:
        """Compute the next piece of a prompt, of at most ``most`` tokens: their number, and the logits [1, V] of its last token
        once that is computed."""
        if prompt.row is None and (snapshot := self._continue(adapter, prompt)):
            return 0, snapshot.logits
        assert prompt.row is not None
        begin = prompt.row.length
        ends = [end for end in (prompt.cut, len(prompt.ids)) if end > begin]
        end = min(*ends, begin + most)
        rows = CachedRows(self.model, [prompt.row])
        logits = rows.logits(self._ids([prompt.ids[begin:end].tolist()]))
        prompt.row = rows[0]
        whole = end == len(prompt.ids)
        if whole or end == prompt.cut:
            self._keep(adapter, prompt.ids[:end], prompt.row, logits)
        return end - begin, logits if whole else None

    def _ids(self, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.model.device)


@torch.inference_mode()
def _sizes(model: Any) -> tuple[int, int]:
    """Bytes that a context takes: its states, and those of each token beside them, as if a window had no end. One pass tells."""
    rows = CachedRows(model, [EMPTY])
    rows.logits(torch.zeros(1, 1, dtype=torch.long, device=model.device))
    token = sum(t.nbytes for layer in rows[0].layers for t in layer.past or ())
    return rows[0].bytes - token, token
