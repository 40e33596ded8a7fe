"""An engine in processes of its own that samples from the weights in training, on the same device."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ajet.interfaces.engine import Float32, GenerateRequest, Generation, GenerationDelta, Int32, SharedEngine

if TYPE_CHECKING:
    from ajet_lora.adapters import Adapters


class SharedSampler:
    """`ajet.interfaces.engine.Engine` over a `SharedEngine` and the model in training, whose weights it gets in ``dtype``.

    The engine sleeps from `sleep` to `renew`: the trainer has the device's memory meanwhile. Without ``sleeps`` it samples on, and
    `renew` waits for the calls in progress. It starts with the weights of
    a file, so `start` renews them if ``version`` says that a checkpoint has been restored. With ``lora``, the adapters in
    training, it gets only these, and always from here.
    """

    def __init__(
        self,
        engine: SharedEngine,
        model: Any,
        dtype: torch.dtype,
        lora: Adapters | None = None,
        *,
        sleeps: bool = True,
    ) -> None:
        self.model = model
        self.adapters: tuple[str, ...] = lora.names if lora else ()
        self.version = 0
        """Weight version of new tokens."""
        self.tokenizer = engine.tokenizer
        self.model_type = engine.model_type
        self.context_length = engine.context_length
        self._engine = engine
        self._dtype = dtype
        self._lora = lora
        self._sleeps = sleeps
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start the engine. Raises what its `start` raises."""
        self._loop = asyncio.get_running_loop()
        await self._engine.start()
        if self.version or self._lora:
            await self._load(self.version)

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
        self._loop = None
        await self._engine.close()

    def sleep(self) -> None:
        """Let the engine give its memory back, and wait for that. Call it from another thread than the engine's; does nothing
        before `start`, and without ``sleeps``."""
        if self._sleeps and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._engine.sleep(), self._loop).result()

    async def renew(self) -> int:
        """Give the engine the weights, and increase the version, which it returns. Raises AjetError if they do not fit."""
        await self._load(self.version + 1)
        self.version += 1
        return self.version

    async def _load(self, version: int) -> None:
        if self._lora is None:
            weights = await asyncio.to_thread(self._weights)
            await self._engine.load_weights(weights, version)
            return
        with tempfile.TemporaryDirectory(prefix="ajet-adapters-") as folder:
            await asyncio.to_thread(self._write, Path(folder), self._lora)
            await self._engine.load_adapters(Path(folder), version)

    def _write(self, folder: Path, lora: Adapters) -> None:
        for name in lora.names:
            lora.save(name, folder / name)
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()  # what the update used is the engine's now

    def _weights(self) -> Mapping[str, torch.Tensor]:
        """The weights, in the memory of the CPU, as the engine's memory is taken again after they are copied, unless the engine
        copies them itself."""
        on_gpu = self.model.device.type == "cuda"
        if on_gpu and self._engine.takes_gpu:
            torch.cuda.empty_cache()
            weights: Mapping[str, torch.Tensor] = self.model.state_dict()
            return weights
        copied = {}
        for name, value in self.model.state_dict().items():
            # Into pinned memory, which torch keeps for the next step: of an H200, 6.6 GiB of float32 take 0.07 s instead of 3 s.
            place = torch.empty(value.shape, dtype=self._dtype, pin_memory=on_gpu)
            copied[name] = place.copy_(value.to(self._dtype), non_blocking=on_gpu)
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # what the update used is the engine's now
        return copied
