"""Continuous batching: who takes part in the next forward pass, and what becomes of its logits.

Each step runs one pass for every adapter that has work: a token for each decoding completion, and beside
them chunks of the prompts that are still to be computed. Completions join at any step and leave by the
next. Everything is a function of the order of requests and the tokens drawn, and of no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ajet_local.batch import Batch
from ajet_local.completion import Completion
from ajet_local.kv_cache import KVLayout, Node, PrefixCache
from ajet_local.sampling import sample
from ajet_local.slots import AHEAD, Slots


class Scheduler:
    """Runs completions. ``cache_bytes`` bounds the memory of keys and values, in cache and slots together,
    except that one completion always runs; ``prefill_tokens`` bounds those of prompts in one pass."""

    def __init__(
        self,
        model: Any,
        activate: Callable[[str | None], None],
        *,
        max_batch: int,
        cache_bytes: int,
        prefill_tokens: int,
    ) -> None:
        self.model = model
        self.activate = activate
        self.max_batch = max_batch
        self.prefill_tokens = prefill_tokens
        self.waiting: deque[Completion] = deque()
        self.running: list[Completion] = []
        """In the order of admission."""
        self.layout = KVLayout.of(model)
        self.max_tokens = cache_bytes // (self.layout.layers * self.layout.layer_bytes)
        """Tokens whose keys and values may be held."""
        self.cache = PrefixCache(self.layout)
        self._lanes: dict[str | None, _Lane] = {}

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def held_tokens(self) -> int:
        """Tokens for which memory is held, or will be when those who are admitted decode."""
        lanes = self._lanes.values()
        promised = sum(_slot_tokens(node.end) * len(node.awaiting) for lane in lanes for node in lane.pending)
        return self.cache.tokens + promised + sum(lane.slots.tokens for lane in lanes)

    @torch.inference_mode()
    def step(self, version: int) -> None:
        """One pass for every adapter with work; sampled tokens are labelled with ``version``."""
        for completion in [c for c in self.running if not c.alive]:
            self._release(completion)
        self._admit()
        self._bound()
        for adapter, lane in self._lanes.items():
            if lane.busy:
                self.activate(adapter)
                lane.step(version)

    def restart(self) -> None:
        """The weights are others: forget all keys and values. What runs is computed anew and goes on."""
        for completion in self.running:
            completion.node = None
        self.waiting.extendleft(reversed(self.running))
        self.running.clear()
        self.cache.clear()
        for lane in self._lanes.values():
            lane.clear()

    def fail(self, error: Exception, *, waiting: bool) -> None:
        """Answer all that run, and if wanted all that wait, with an error; start afresh."""
        failed = [*self.running, *(self.waiting if waiting else ())]
        self.running.clear()
        self.restart()
        if waiting:
            self.waiting.clear()
        for completion in failed:
            completion.fail(error)

    def _admit(self) -> None:
        """Let those who wait in, in order, as long as slots and memory last."""
        while self.waiting and len(self.running) < self.max_batch:
            completion = self.waiting.popleft()
            if not completion.alive:
                continue
            alone = not self.running
            self.running.append(completion)  # so that `fail` answers it, whatever fails from here on
            adapter, ids = completion.request.adapter, completion.context()
            node = self.cache.find(adapter, ids)
            self.cache.pin(node)
            if not alone and not self._make_room(len(ids) - node.end + _slot_tokens(len(ids))):
                self.cache.unpin(node)
                self.waiting.appendleft(self.running.pop())
                return
            if node.end < len(ids):
                leaf = self.cache.add(node, ids[node.end :])
                self.cache.pin(leaf)
                self.cache.unpin(node)
                node = leaf
            completion.node = node
            if adapter not in self._lanes:
                self._lanes[adapter] = _Lane(self)
            self._lanes[adapter].admit(completion)

    def _bound(self) -> None:
        """Hold no more than is allowed: unused entries are evicted first, then the youngest completion."""
        for lane in self._lanes.values():
            lane.slots.grow()
        while not self._make_room(0) and len(self.running) > 1:
            youngest = self.running[-1]
            self._release(youngest)
            self.waiting.appendleft(youngest)

    def _make_room(self, tokens: int) -> bool:
        """Whether so many more tokens may be held, after evicting unused ones."""
        excess = self.held_tokens + tokens - self.max_tokens
        if excess > 0:
            for lane in self._lanes.values():
                lane.slots.shrink()
            self.cache.evict(self.held_tokens + tokens - self.max_tokens)
        return self.held_tokens + tokens <= self.max_tokens

    def _release(self, completion: Completion) -> None:
        """Take it out of the batch; its keys and values stay in the cache."""
        self.running.remove(completion)
        self._lanes[completion.request.adapter].release(completion)


class _Lane:
    """The batch of one adapter."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.cache = scheduler.cache
        self.slots = Slots(scheduler.layout)
        self.pending: list[Node] = []
        """Where contexts end that are still to be computed, first come first."""

    @property
    def busy(self) -> bool:
        return bool(self.pending or self.slots.banks)

    def admit(self, completion: Completion) -> None:
        """Begin with a completion that is pinned to its node."""
        node = completion.node
        assert node is not None
        if node.ready:  # all is there but the logits: its last token is computed once more
            completion.length = node.end - 1
            self.slots.join(completion)
        else:
            if node not in self.pending:
                self.pending.append(node)
            node.awaiting.append(completion)

    def release(self, completion: Completion) -> None:
        """End one: what it computed goes into the cache, what it alone waited for is dropped."""
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
        if completion in node.awaiting:  # else its first token was its last
            node.awaiting.remove(completion)
        self.cache.unpin(node)
        while not node.ready and not node.users and not node.children:
            assert node.parent is not None
            if node in self.pending:
                self.pending.remove(node)
            self.cache.remove(node)
            node = node.parent

    def clear(self) -> None:
        self.pending.clear()
        self.slots.clear()

    def step(self, version: int) -> None:
        """One forward pass, and a token for each completion whose logits it brings."""
        batch = Batch(self.slots.banks, self._chunks())
        logits = batch.logits(self.scheduler.model)
        self.slots.advance()
        for completion in batch.running:
            completion.length += 1
        for chunk in batch.chunks:
            chunk.node.filled += chunk.count
        self.pending = [node for node in self.pending if not node.ready]
        if not batch.answered:
            return
        tokens, logprobs = sample(logits, [c.sampler for c in batch.answered])
        for completion, token, logprob in zip(batch.answered, tokens, logprobs, strict=True):
            if completion.alive:
                completion.add(token, logprob, version)
        for completion in batch.answered[len(batch.running) :]:
            assert completion.node is not None
            completion.node.awaiting.remove(completion)
            if completion.alive:
                completion.length = completion.node.end
                self.slots.join(completion)

    def _chunks(self) -> dict[Node, int]:
        """How many tokens of which nodes the next pass computes, ancestors first. If not all of them, the
        oldest prompt gets half of the room and the shortest ones the rest: no request waits forever, and
        few wait long."""
        counts: dict[Node, int] = {}
        left = self.scheduler.prefill_tokens
        queue = self.pending
        if sum(map(_missing, queue)) > left:
            left -= _take(queue[0], left // 2, counts)
            queue = sorted(queue, key=_missing)
        for node in queue:
            left -= _take(node, left, counts)
        return counts


def _slot_tokens(length: int) -> int:
    """Tokens for which a slot takes memory at most, for a context of so many."""
    return 2 * (length + AHEAD)


def _missing(node: Node) -> int:
    """Tokens of the path that are not computed yet."""
    return sum(len(part.ids) - part.filled for part in node.path())


def _take(node: Node, most: int, counts: dict[Node, int]) -> int:
    """Add up to ``most`` tokens of a path to ``counts``; returns how many."""
    taken = 0
    for part in reversed([*node.path()]):
        missing = len(part.ids) - part.filled - counts.get(part, 0)
        if count := min(missing, most - taken):
            counts[part] = counts.get(part, 0) + count
            taken += count
        if count < missing:
            break  # what lies below needs all of it
    return taken
