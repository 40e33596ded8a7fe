"""Continuous batching (Orca, Yu et al., OSDI 2022): which completions run, and in what order.

Completions can join at any step, and a finished one leaves at the next. Everything depends only on the order of requests and
the sampled tokens, not on time. How a step computes them, and what is kept of their contexts, differs: `PackedScheduler` and
`RowScheduler`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from ajet_local.completion import Completion
from ajet_local.sampling import sample
from ajet_local.seen import CachedFeatures


class Scheduler(ABC):
    """Runs up to ``max_batch`` completions of ``model``, whose adapter ``activate`` sets. ``prefill_tokens`` bounds the prompt tokens
    of a step, ``cache_bytes`` the memory of contexts, but one completion always runs."""

    images: CachedFeatures | None = None

    def __init__(
        self, model: Any, activate: Callable[[str | None], None], *, max_batch: int, prefill_tokens: int
    ) -> None:
        self.model = model
        self.activate = activate
        self.max_batch = max_batch
        self.prefill_tokens = prefill_tokens
        self.waiting: deque[Completion] = deque()
        self.running: list[Completion] = []
        """Oldest admission first."""
        self._lanes: dict[str | None, Any] = {}
        """The work of each adapter."""

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    @torch.inference_mode()
    def step(self, version: int) -> None:
        """Compute a token of each completion and parts of prompts that are not computed yet, for every adapter that has work; sampled
        tokens get the weight version ``version``."""
        self._release([c for c in self.running if not c.alive])
        self._admit()
        while not self._make_room(0) and len(self.running) > 1:
            youngest = self.running[-1]
            self._release([youngest])
            self.waiting.appendleft(youngest)
        for adapter, lane in self._lanes.items():
            if lane.busy:
                self.activate(adapter)
                self._step(adapter, lane, version)

    def restart(self) -> None:
        """Drop all contexts, because the weights changed. Running completions are recomputed and continue."""
        self.waiting.extendleft(reversed(self.running))
        self._clear()
        self.running.clear()

    def release(self) -> None:
        """Like `restart`, but free also the memory that is kept for later completions."""
        self.restart()

    def fail(self, error: Exception, *, waiting: bool) -> None:
        """Answer all running (and with ``waiting`` all waiting) completions with an error, and drop all contexts."""
        failed = [*self.running, *(self.waiting if waiting else ())]
        self.running.clear()
        self.restart()
        if waiting:
            self.waiting.clear()
        for completion in failed:
            completion.fail(error)

    def _admit(self) -> None:
        """Admit waiting completions, in order, while the batch and the memory have room."""
        while self.waiting and len(self.running) < self.max_batch:
            completion = self.waiting.popleft()
            if not completion.alive:
                continue
            first = not self.running
            self.running.append(completion)  # first, so that `fail` answers it if anything below fails
            if not self._begin(completion, first):
                self.waiting.appendleft(self.running.pop())
                return

    def _answer(self, completions: Sequence[Completion], logits: torch.Tensor, version: int) -> None:
        """Sample the next token of each completion from its row of the logits [B, V]."""
        drawn = sample(logits, [completion.sampler for completion in completions])
        for completion, one in zip(completions, drawn, strict=True):
            if completion.alive:
                completion.add(one, version)

    @abstractmethod
    def _begin(self, completion: Completion, first: bool) -> bool:
        """Give a completion its place; False if the memory has no room for it, which the ``first`` one needs not have."""

    @abstractmethod
    def _release(self, gone: Collection[Completion]) -> None:
        """Remove completions from the batch, and keep what they computed."""

    @abstractmethod
    def _make_room(self, more: int) -> bool:
        """Evict what is unused if necessary; return whether there is memory for so much more."""

    @abstractmethod
    def _step(self, adapter: str | None, lane: Any, version: int) -> None:
        """Compute the work of one adapter, which is active."""

    @abstractmethod
    def _clear(self) -> None:
        """Drop all contexts, also those of the running completions."""
