"""The engine that samples while Trinity trains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from ajet.interfaces.engine import Float32, GenerateRequest, Generation, GenerationDelta, Int32, SharedEngine

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]


class Sampler:
    """`ajet.interfaces.engine.Engine` over one that takes new weights. ``restored`` are the weights to begin with, if not the
    model's own, and ``on_start`` is called when the engine starts."""

    adapters: tuple[str, ...] = ()

    def __init__(self, engine: SharedEngine, on_start: Callable[[], None]) -> None:
        self.tokenizer = engine.tokenizer
        self.model_type = engine.model_type
        self.context_length = engine.context_length
        self.version = 0
        """Weight version of new tokens."""
        self.restored: Weights | None = None
        self._engine = engine
        self._on_start = on_start

    async def start(self) -> None:
        """Start the engine. Raises what its `start` raises."""
        self._on_start()
        await self._engine.start()
        if self.restored is not None:
            await self._engine.load_weights(self.restored, self.version)
            self.restored = None

    async def load(self, weights: Weights, version: int) -> None:
        """Sample from these weights, under this version. Raises AjetError if they do not fit."""
        await self._engine.load_weights(weights, version)
        self.version = version

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Engine.generate`."""
        return await self._engine.generate(request)

    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """See `Engine.stream`."""
        return self._engine.stream(request)

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """See `Engine.score`."""
        return await self._engine.score(ids, temperature)

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.close()
