"""An engine whose weights change while it answers: new calls go to the new weights, calls in progress end on theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ajet.interfaces.engine import Engine, Float32, GenerateRequest, Generation, GenerationDelta, Int32


@dataclass(slots=True, eq=False)
class Loaded:
    """An engine with the weights of one version."""

    engine: Engine
    version: int
    adapter: str | None
    """Which of its adapters answers."""
    calls: int = 0


class SwitchingEngine:
    """An `ajet.Engine` over one engine per version. Weight versions of its tokens are those of the store. Runs on one event
    loop, as every engine."""

    def __init__(self, first: Loaded) -> None:
        self.context_length = first.engine.context_length
        self.tokenizer: Any = first.engine.tokenizer
        self.model_type = first.engine.model_type
        self.calls_by_version: dict[int, int] = {}
        self._current = first
        self._leaving: set[Loaded] = set()

    @property
    def adapters(self) -> Collection[str]:
        """None to choose from: each version has the one that answers."""
        return ()

    @property
    def version(self) -> int:
        """The version that new calls are answered with."""
        return self._current.version

    async def start(self) -> None:
        await self._current.engine.start()

    async def switch(self, new: Loaded) -> None:
        """Start an engine and answer new calls with it. The one before it is closed when its last call has ended. If it does not start,
        it is closed, and nothing else changes."""
        try:
            await new.engine.start()
        except BaseException:
            await new.engine.close()
            raise
        old, self._current = self._current, new
        self._leaving.add(old)
        await self._close_idle()

    async def generate(self, request: GenerateRequest) -> Generation:
        with self._in_use() as used:
            generation = await used.engine.generate(replace(request, adapter=used.adapter))
        await self._close_idle()
        return replace(generation, weight_versions=_all(used.version, generation.token_ids))

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        with self._in_use() as used:
            pieces = used.engine.stream(replace(request, adapter=used.adapter))
            try:
                async for piece in pieces:
                    yield replace(piece, weight_versions=_all(used.version, piece.token_ids))
            finally:
                await pieces.aclose()  # type: ignore[attr-defined]
        await self._close_idle()

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        with self._in_use() as used:
            return await used.engine.score(ids, temperature)

    async def close(self) -> None:
        for loaded in (*self._leaving, self._current):
            await loaded.engine.close()
        self._leaving.clear()

    @contextmanager
    def _in_use(self) -> Iterator[Loaded]:
        used = self._current
        used.calls += 1
        self.calls_by_version[used.version] = self.calls_by_version.get(used.version, 0) + 1
        try:
            yield used
        finally:
            used.calls -= 1

    async def _close_idle(self) -> None:
        for loaded in [one for one in self._leaving if not one.calls]:
            self._leaving.discard(loaded)
            await loaded.engine.close()


def _all(version: int, ids: Int32) -> Int32:
    return np.full(len(ids), version, np.int32)
