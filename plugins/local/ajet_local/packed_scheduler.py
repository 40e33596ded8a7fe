"""One forward pass a step for each adapter: a token for each decoding completion, and chunks of prompts, in one row without padding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ajet_local.cached_attention import Decoding, NodeChunk, Pass, forward
from ajet_local.completion import Completion
from ajet_local.kv_cache import CacheNode, KVLayout, PrefixCache
from ajet_local.scheduler import Scheduler
from ajet_local.seen import CachedFeatures
from ajet_local.sight import Places, Sight
from ajet_local.slots import AHEAD, AdapterSlots, Bank


class Batch:
    """A token for each completion in ``banks``, then the given number of tokens of each node in ``chunks``.

    ``awaiting`` lists the completions whose context ends with a node and is not computed yet.
    """

    def __init__(
        self,
        banks: Sequence[Bank],
        chunks: Mapping[CacheNode, int],
        awaiting: Mapping[CacheNode, Sequence[Completion]],
    ) -> None:
        self.banks = banks
        self.running = [m for bank in banks for family in bank.taken for m in family.members if m]
        self.chunks: list[NodeChunk] = []
        self._size = len(self.running)
        for node, count in chunks.items():
            self.chunks.append(NodeChunk(node, count, self._size))
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
        places = Places(
            np.empty((3 if sight and sight.mrope else 1, self._size), np.int64), np.full_like(ids, -1)
        )
        ids[: len(self.running)] = [c.next_token for c in self.running]
        places.positions[:, : len(self.running)] = [c.length + c.shift for c in self.running]
        for chunk in self.chunks:
            node = chunk.node
            ids[chunk.span] = node.ids[node.filled : node.filled + chunk.count]
            if images:
                of_chunk = images.places(chunk)
                places.positions[:, chunk.span], places.rows[chunk.span] = of_chunk.positions, of_chunk.rows
            else:
                places.positions[0, chunk.span] = np.arange(chunk.count) + node.start + node.filled
        decoding, start = [], 0
        for bank in self.banks:
            decoding.append(Decoding(bank, start))
            start = decoding[-1].span.stop
        device = model.device
        tokens = torch.from_numpy(ids).to(device)
        if images and (ids < 0).any():
            features = images.features(adapter, dict.fromkeys(ids[ids < 0].tolist()))
            tokens = images.sight.embedded(ids, places.rows, features)
        positions = (
            sight.positions(places.positions) if sight else torch.from_numpy(places.positions[0]).to(device)
        )
        return forward(
            model,
            tokens,
            positions,
            Pass(decoding, self.chunks),
            torch.tensor(self._last, dtype=torch.long, device=device) if self.chunks else 0,
        )


class PackedScheduler(Scheduler):
    """``cache_bytes`` bounds the memory of keys and values, in cache and slots together."""

    def __init__(
        self, model: Any, activate: Callable[[str | None], None], *, cache_bytes: int, **sizes: int
    ) -> None:
        super().__init__(model, activate, **sizes)
        self.layout = KVLayout.of(model)
        self.max_tokens = cache_bytes // (self.layout.layers * self.layout.layer_bytes)
        """Maximum number of tokens with keys and values in memory."""
        self.cache = PrefixCache(self.layout)
        sight = Sight.of(model)
        self.images = CachedFeatures(sight) if sight else None

    @property
    def held_tokens(self) -> int:
        """Tokens with memory in cache and slots, including the slots that admitted completions will need to decode."""
        lanes = self._lanes.values()
        promised = sum(
            _slot_tokens(node.end) * len(waiting) for lane in lanes for node, waiting in lane.pending.items()
        )
        return self.cache.tokens + promised + sum(lane.slots.tokens for lane in lanes)

    def release(self) -> None:
        """See `Scheduler.release`."""
        self.restart()
        for lane in self._lanes.values():
            lane.slots.shrink()

    def _clear(self) -> None:
        for completion in self.running:
            completion.node = None
        self.cache.clear()
        if self.images:
            self.images.clear()
        for lane in self._lanes.values():
            lane.clear()

    def _begin(self, completion: Completion, first: bool) -> bool:
        adapter, ids = completion.request.adapter, completion.context()
        if self.images:
            self.images.admit(completion)
        node = self.cache.find(adapter, ids)
        self.cache.pin(node)
        if not first and not self._make_room(len(ids) - node.end + _slot_tokens(len(ids))):
            self.cache.unpin(node)
            return False
        if node.end < len(ids):
            leaf = self.cache.add(node, ids[node.end :])
            self.cache.pin(leaf)
            self.cache.unpin(node)
            node = leaf
        completion.node = node
        if adapter not in self._lanes:
            self._lanes[adapter] = _Lane(self.layout, self.cache)
        self._lanes[adapter].admit(completion)
        return True

    def _admit(self) -> None:
        """See `Scheduler._admit`; every running completion also gets a slot for its next token."""
        super()._admit()
        for lane in self._lanes.values():
            lane.slots.grow()

    def _make_room(self, more: int) -> bool:
        """Evict unused entries if necessary; return whether there is memory for ``more`` tokens."""
        if self.held_tokens + more > self.max_tokens:
            for lane in self._lanes.values():
                lane.slots.shrink()
            self.cache.evict(self.held_tokens + more - self.max_tokens)
        return self.held_tokens + more <= self.max_tokens

    def _release(self, gone: Collection[Completion]) -> None:
        """Remove completions from the batch; their keys and values stay in the cache."""
        for completion in gone:
            self.running.remove(completion)
            self._lanes[completion.request.adapter].release(completion)

    def _step(self, adapter: str | None, lane: _Lane, version: int) -> None:
        batch = lane.batch(self.prefill_tokens)
        logits = batch.logits(self.model, adapter, self.images)
        lane.advance(batch)
        if batch.answered:
            self._answer(batch.answered, logits, version)
            lane.join(batch)


class _Lane:
    """The batch of one adapter."""

    def __init__(self, layout: KVLayout, cache: PrefixCache) -> None:
        self.cache = cache
        self.slots = AdapterSlots(layout)
        self.pending: dict[CacheNode, list[Completion]] = {}
        """The nodes where uncomputed contexts end, oldest first, each with the completions that wait for it."""

    @property
    def busy(self) -> bool:
        return bool(self.pending or self.slots.banks)

    def admit(self, completion: Completion) -> None:
        """Start a completion, whose node is already pinned."""
        node = completion.node
        assert node is not None
        if node.ready:  # only logits are missing, so its last token is computed again
            completion.length = node.end - 1
            self.slots.join(completion)
        else:
            self.pending.setdefault(node, []).append(completion)

    def release(self, completion: Completion) -> None:
        """Stop a completion: cache what it computed, and drop the nodes that only it waited for."""
        node, completion.node = completion.node, None
        assert node is not None
        if completion in self.slots:
            end = node
            if completion.length > node.end:
                ids = completion.context()[node.end : completion.length]
                end = self.cache.insert(node, ids, self.slots.own(completion, node.end))
            self.slots.leave(completion)
            self.cache.unpin(node)
            self.cache.merge(end)
            return
        waiting = self.pending.get(node, [])
        if completion in waiting:  # otherwise its first token was also its last
            waiting.remove(completion)
        self.cache.unpin(node)
        while not node.ready and not node.users and not node.children:
            assert node.parent is not None
            self.pending.pop(node, None)
            self.cache.remove(node)
            node = node.parent

    def clear(self) -> None:
        """Drop all completions; the caller clears the cache."""
        self.pending.clear()
        self.slots.clear()

    def batch(self, prefill_tokens: int) -> Batch:
        """The next pass, with at most so many tokens of prompts."""
        return Batch(self.slots.banks, self._chunks(prefill_tokens), self.pending)

    def advance(self, batch: Batch) -> None:
        """Record what a pass has computed."""
        self.slots.advance()
        for completion in batch.running:
            completion.length += 1
        for chunk in batch.chunks:
            chunk.node.filled += chunk.count
        self.pending = {node: waiting for node, waiting in self.pending.items() if not node.ready}

    def join(self, batch: Batch) -> None:
        """Let the completions whose context a pass has completed decode, unless their first token was also their last."""
        for completion in batch.answered[len(batch.running) :]:
            assert completion.node is not None
            if completion.alive:
                completion.length = completion.node.end
                self.slots.join(completion)

    def _chunks(self, left: int) -> dict[CacheNode, int]:
        """How many tokens of which nodes the next pass computes, ancestors first, at most ``left``. If not all fit, the oldest prompt
        gets half of the tokens and the shortest ones the rest: no request waits forever, and few wait long."""
        counts: dict[CacheNode, int] = {}
        queue = list(self.pending)
        if sum(map(_missing, queue)) > left:
            left -= _take(queue[0], left // 2, counts)
            queue = sorted(queue, key=_missing)
        for node in queue:
            left -= _take(node, left, counts)
        return counts


def _slot_tokens(length: int) -> int:
    """Maximum number of tokens that a slot allocates for a context of ``length`` tokens."""
    return 2 * (length + AHEAD)


def _missing(node: CacheNode) -> int:
    """How many tokens of a node's path are not computed yet."""
    return sum(len(part.ids) - part.filled for part in node.path())


def _take(node: CacheNode, most: int, counts: dict[CacheNode, int]) -> int:
    """Add up to ``most`` uncomputed tokens of a node's path to ``counts``; return how many."""
    taken = 0
    for part in reversed([*node.path()]):
        missing = len(part.ids) - part.filled - counts.get(part, 0)
        if count := min(missing, most - taken):
            counts[part] = counts.get(part, 0) + count
            taken += count
        if count < missing:
            break  # deeper nodes need all of this one
    return taken
