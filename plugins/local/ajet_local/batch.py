"""One forward pass of sampling: its tokens and positions, and which completions get its logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ajet_local.cached_attention import ATTENTION, Chunk, Decoding, Pass
from ajet_local.completion import Completion
from ajet_local.kv_cache import Node
from ajet_local.slots import Bank


class Batch:
    """A token for each completion in ``banks``, then the given number of tokens of each node in ``chunks``.

    ``awaiting`` lists the completions whose context ends with a node and is not computed yet.
    """

    def __init__(
        self, banks: Sequence[Bank], chunks: Mapping[Node, int], awaiting: Mapping[Node, Sequence[Completion]]
    ) -> None:
        self.running: list[Completion] = []
        decoding = []
        for bank in banks:
            decoding.append(Decoding(bank, len(self.running)))
            self.running += [member for family in bank.taken for member in family.members if member]
        self.chunks: list[Chunk] = []
        self._size = len(self.running)
        for node, count in chunks.items():
            self.chunks.append(Chunk(node, count, self._size))
            self._size += count
        self._pass = Pass(decoding, self.chunks)
        self.answered = list(self.running)
        """The completions that get logits: the running ones, then those whose context this pass completes."""
        self._last = list(range(len(self.running)))
        for chunk in self.chunks:
            if chunk.node.filled + chunk.count == len(chunk.node.ids):
                waiting = awaiting.get(chunk.node, ())
                self.answered += waiting
                self._last += [chunk.span.stop - 1] * len(waiting)

    def logits(self, model: Any) -> torch.Tensor:
        """Run ``model``: float[len(answered), V]. Its attention stores keys and values in the slots and nodes."""
        ids, positions = np.empty((2, 1, self._size), dtype=np.int64)
        ids[0, : len(self.running)] = [c.next_token for c in self.running]
        positions[0, : len(self.running)] = [c.length for c in self.running]
        for chunk in self.chunks:
            node = chunk.node
            ids[0, chunk.span] = node.ids[node.filled : node.filled + chunk.count]
            positions[0, chunk.span] = np.arange(chunk.count) + node.start + node.filled
        device = model.device
        original = model.config._attn_implementation
        model.config._attn_implementation = ATTENTION
        try:
            logits: torch.Tensor = model(
                input_ids=torch.from_numpy(ids).to(device),
                position_ids=torch.from_numpy(positions).to(device),
                use_cache=False,
                logits_to_keep=torch.tensor(self._last, dtype=torch.long, device=device)
                if self.chunks
                else 0,
                cached=self._pass,
            ).logits[0]
        finally:
            model.config._attn_implementation = original
        return logits
