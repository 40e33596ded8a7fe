"""One forward pass of sampling: its tokens and positions, and which completions get its logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ajet_local.cached_attention import Chunk, Decoding, Pass, forward
from ajet_local.completion import Completion
from ajet_local.kv_cache import Node
from ajet_local.seen import CachedFeatures
from ajet_local.sight import Places
from ajet_local.slots import Bank


class Batch:
    """A token for each completion in ``banks``, then the given number of tokens of each node in ``chunks``.

    ``awaiting`` lists the completions whose context ends with a node and is not computed yet.
    """

    def __init__(
        self, banks: Sequence[Bank], chunks: Mapping[Node, int], awaiting: Mapping[Node, Sequence[Completion]]
    ) -> None:
        self.banks = banks
        self.running = [m for bank in banks for family in bank.taken for m in family.members if m]
        self.chunks: list[Chunk] = []
        self._size = len(self.running)
        for node, count in chunks.items():
            self.chunks.append(Chunk(node, count, self._size))
            self._size += count
        self.answered = list(self.running)
        """The completions that get logits: the running ones, then those whose context this pass completes."""
        self._last = list(range(len(self.running)))
        for chunk in self.chunks:
            if chunk.node.filled + chunk.count == len(chunk.node.ids):
                waiting = awaiting.get(chunk.node, ())
                self.answered += waiting
                self._last += [chunk.span.stop - 1] * len(waiting)

    def logits(self, model: Any, adapter: str | None, images: CachedFeatures | None) -> torch.Tensor:
        """Run ``model``, whose active adapter is ``adapter``: float[len(answered), V]. Its attention stores keys and values in the
        slots and nodes."""
        sight = images.sight if images else None
        ids = np.empty(self._size, dtype=np.int64)
        found = Places(
            np.empty((3 if sight and sight.mrope else 1, self._size), np.int64), np.full_like(ids, -1)
        )
        ids[: len(self.running)] = [c.next_token for c in self.running]
        found.positions[:, : len(self.running)] = [c.length + c.shift for c in self.running]
        for chunk in self.chunks:
            node = chunk.node
            ids[chunk.span] = node.ids[node.filled : node.filled + chunk.count]
            if images:
                of_chunk = images.places(chunk)
                found.positions[:, chunk.span], found.rows[chunk.span] = of_chunk.positions, of_chunk.rows
            else:
                found.positions[0, chunk.span] = np.arange(chunk.count) + node.start + node.filled
        decoding, start = [], 0
        for bank in self.banks:
            decoding.append(Decoding(bank, start))
            start = decoding[-1].span.stop
        device = model.device
        tokens = torch.from_numpy(ids).to(device)
        if images and (ids < 0).any():
            features = images.features(adapter, dict.fromkeys(ids[ids < 0].tolist()))
            tokens = images.sight.embedded(ids, found.rows, features)
        positions = (
            sight.positions(found.positions) if sight else torch.from_numpy(found.positions[0]).to(device)
        )
        return forward(
            model,
            tokens,
            positions,
            Pass(decoding, self.chunks),
            torch.tensor(self._last, dtype=torch.long, device=device) if self.chunks else 0,
        )
