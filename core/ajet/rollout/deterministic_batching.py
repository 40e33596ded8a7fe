"""Fixed scheduling of batches, for bit-equal runs.

Floating-point results depend on which requests share a batch, and arrival times vary between runs. So
nothing is sent to the engine until every running episode waits for it; then one request of each is sent,
in the order of their keys, as one batch. Agents that call from several threads of one
episode at once are not covered: their requests have no fixed order.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from typing import Any

from ajet.interfaces.engine import Engine
from ajet.types import Float32, GenerateRequest, Generation, GenerationDelta, Int32


class DeterministicBatching:
    """An Engine that forwards requests in rounds. `swap` tells it which episodes are running."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.context_length = engine.context_length
        self.tokenizer: Any = engine.tokenizer
        self.model_type = engine.model_type
        self.adapters = engine.adapters
        self._running: set[str] = set()
        self._waiting: dict[str, deque[tuple[GenerateRequest, asyncio.Future[Generation]]]] = {}
        self._round: asyncio.Task[None] | None = None
        self._waited: defaultdict[str, float] = defaultdict(float)
        self._since: dict[str, float] = {}

    async def start(self) -> None:
        """Start the engine."""
        await self.engine.start()

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """See `Engine.score`."""
        return await self.engine.score(ids, temperature)

    def swap(self, leave: set[str], enter: set[str]) -> None:
        """Some episodes stop running and others begin, in one step, so that no round starts in between."""
        self._running = (self._running - leave) | enter
        for episode in leave:
            self._waiting.pop(episode, None)
        self._maybe_run()

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Engine.generate`; waits for the round."""
        episode = request.key[0]
        if request.blocks_loop or episode not in self._running:
            # No other episode can progress, or there is none to wait for.
            return await self.engine.generate(request)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(episode, deque()).append((request, future))
        self._since.setdefault(episode, time.monotonic())
        self._maybe_run()
        try:
            return await future
        finally:
            self._waited[episode] += time.monotonic() - self._since.pop(episode, time.monotonic())

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """See `Engine.stream`. Yields one delta with the whole answer, so that streaming changes no batch."""
        whole = await self.generate(request)
        arrays = whole.token_ids, whole.logprobs, whole.weight_versions
        yield GenerationDelta(*arrays, whole.finish_reason, whole.kept)

    def waited(self, episode: str) -> float:
        """Seconds that an episode has waited for its rounds. Its deadline must not count them: other episodes may
        have caused the wait."""
        since = self._since.get(episode)
        return self._waited[episode] + (time.monotonic() - since if since else 0.0)

    def _maybe_run(self) -> None:
        for queue in self._waiting.values():
            while queue and queue[0][1].cancelled():
                queue.popleft()
        if self._round or not self._running or not all(self._waiting.get(e) for e in self._running):
            return
        requests = [self._waiting[episode].popleft() for episode in sorted(self._running)]
        self._round = asyncio.get_running_loop().create_task(self._run(requests))

    async def _run(self, batch: list[tuple[GenerateRequest, asyncio.Future[Generation]]]) -> None:
        await asyncio.gather(*(self._one(request, future) for request, future in batch))
        self._round = None
        self._maybe_run()

    async def _one(self, request: GenerateRequest, future: asyncio.Future[Generation]) -> None:
        task = asyncio.ensure_future(self.engine.generate(request))
        future.add_done_callback(lambda f: task.cancel() if f.cancelled() else None)
        try:
            generation = await task
        except asyncio.CancelledError:
            future.cancel()
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(generation)
