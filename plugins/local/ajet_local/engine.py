"""Samples tokens from a Hugging Face model, on the event loop where it was started.

While there is work, a worker task runs scheduler steps and yields to the loop after each, so requests can join and
leave at any token. Everything runs on the loop's thread. Requests that arrive in one turn of the loop are admitted
together, in their order: deterministic runs need this to be equal bit for bit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from ajet import AjetError
from ajet.interfaces.engine import (
    Float32,
    GenerateRequest,
    Generation,
    GenerationDelta,
    Image,
    Int32,
    room_for,
)
from ajet_local.completion import Completion
from ajet_local.memory import free_memory
from ajet_local.modeling import context_length as model_context_length
from ajet_local.modeling import with_cache
from ajet_local.one_pass import fitting_scheduler
from ajet_local.row_scheduler import RowScheduler
from ajet_local.sight import Sight, check_sight, places, vision_of_model
from ajet_lora.adapters import Adapters
from ajet_trees.head import predict

log = logging.getLogger("ajet")

SCORED_TOGETHER = 1024
"""Scoring computes this many tokens at a time."""
BURST = 0.003
"""Maximum seconds between the requests of a burst: about one forward pass, so an idle engine never loses more by
waiting for the next request than by a pass without it."""


class LocalEngine:
    """`ajet.interfaces.engine.Engine` over a Hugging Face causal model, which it may share with the trainer.

    ``max_batch`` bounds the requests sampled together, ``cache_mib`` the memory for keys, values and states (default: a
    quarter of the device's free memory), ``prefill_tokens`` the prompt tokens of one step. ``context_length`` defaults
    to the model's number of positions. A ``deterministic`` engine empties its cache whenever it is idle, so its samples
    depend only on the requests of one burst, not on what was cached before. ``adapters`` are the model's; a request may
    name one. Raises `AjetError` for a model whose tokens it cannot sample with the logprobs of one pass
    (`ajet_local.one_pass`).
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        context_length: int | None = None,
        max_batch: int = 64,
        cache_mib: int | None = None,
        prefill_tokens: int = 1024,
        deterministic: bool = False,
        adapters: Adapters | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.context_length = context_length or model_context_length(model)
        self.deterministic = deterministic
        self._adapters = adapters or Adapters(model)
        self.model_type: str = model.config.model_type
        self.scheduler = fitting_scheduler(
            model,
            self._adapters.activate,
            max_batch=max_batch,
            cache_bytes=free_memory(model.device) // 4 if cache_mib is None else cache_mib << 20,
            prefill_tokens=prefill_tokens,
        )
        self.vision = vision_of_model(model)
        """How the model sees images; None if it reads only text."""
        if isinstance(self.scheduler, RowScheduler):
            if self.vision is not None:
                log.warning("the local engine samples from %r with text only.", self.model_type)
            self.vision = None
        else:
            check_sight(model)
        self._version = 0
        self._vocabulary = model.get_input_embeddings().num_embeddings
        self._wake: asyncio.Event | None = None
        self._worker: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def version(self) -> int:
        """The weight version of new tokens. Set it, on the engine's loop, when the weights have changed: this drops
        all cached keys and values, and requests in flight continue with recomputed ones."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        self.scheduler.restart()

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that requests may name."""
        return self._adapters.names

    takes_gpu = False

    def begin(self) -> Callable[[], None]:
        """See `SharedEngine.begin`. There is nothing to wait for."""
        return lambda: None

    async def sleep(self) -> None:
        """See `SharedEngine.sleep`. Requests in flight go on with the weights that there are."""
        self._drop_if_idle()

    def make_room(self) -> None:
        """Drop what is cached in the loop's next turn, if nothing is sampled then: an update gets the memory, and afterwards the
        cache is worth nothing. May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drop_if_idle)

    def _drop_if_idle(self) -> None:
        if not self.scheduler.busy:
            self.scheduler.release()

    async def load_weights(self, source: Mapping[str, Any], version: int) -> int:
        """Copy torch tensors, by the names of the model's checkpoint, into the model, and sample under this version. Calls in
        progress continue with the new weights. Raises AjetError, before anything is changed, for weights that do not fit."""
        own = self.model.state_dict()
        for name, tensor in own.items():
            if name not in source:
                raise AjetError(f"engine local: the new weights have no {name}.")
            if source[name].shape != tensor.shape:
                raise AjetError(
                    f"engine local: {name} has the shape {tuple(source[name].shape)} instead of {tuple(tensor.shape)}."
                )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(source[name])
        self.version = version
        return version

    async def load_adapters(self, folder: Path, version: int) -> int:
        """Restore the adapters from their folders, and sample under this version. Raises AjetError for adapters that do not fit."""
        for name in self.adapters:
            self._adapters.restore(name, folder / name)
        self.version = version
        return version

    async def start(self) -> None:
        """Start the worker on the running loop. Raises RuntimeError if it is already started."""
        if self._worker is not None:
            raise RuntimeError("the engine is already started")
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._worker = asyncio.create_task(self._work(), name="ajet-local-engine")

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion (see `ajet.interfaces.engine.Engine.generate`). Cancel the awaiting task to stop it."""
        return await self._submit(request).future

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """Like `generate`, but yields each token when it is sampled. Closing the iterator stops it."""
        completion = self._submit(request)
        deltas: asyncio.Queue[GenerationDelta | None] = asyncio.Queue()
        completion.deltas = deltas
        completion.future.add_done_callback(lambda _: deltas.put_nowait(None))
        try:
            while delta := await deltas.get():
                yield delta
            completion.future.result()  # raises if the batch failed
        finally:
            completion.future.cancel()

    def _submit(self, request: GenerateRequest) -> Completion:
        """Queue a request. Raises RuntimeError if the engine is not running, ValueError if the request is invalid or has images for a
        model that reads only text."""
        if self._worker is None or self._wake is None or self._worker.done():
            raise RuntimeError("the engine is not running: await engine.start() on this loop first")
        if request.images and self.vision is None:
            raise ValueError(f"the local engine takes no images for {self.model_type!r}: send text")
        limit = room_for(request, self.context_length, self._vocabulary)
        self._adapters.check(request.adapter)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        completion = Completion(request, self.tokenizer, limit, future)
        self.scheduler.waiting.append(completion)
        self._wake.set()
        return completion

    async def score(
        self,
        ids: Int32,
        temperature: float = 1.0,
        adapter: str | None = None,
        images: Sequence[Image] = (),
    ) -> Float32:
        """``log_softmax(logits / temperature)`` of the tokens ``ids`` (int32[T]), float32[T]; the first is NaN, and so are
        placeholders of ``images``.

        Temperature 0 means 1, as for greedy calls. Raises ValueError if ``ids`` is empty or longer than the context, and
        for an unknown adapter.
        """
        ids = np.asarray(ids, dtype=np.int32)
        if not 0 < len(ids) <= self.context_length:
            raise ValueError(f"cannot score {len(ids)} tokens: the engine accepts 1 to {self.context_length}")
        self._adapters.activate(adapter)
        tokens = torch.as_tensor(np.maximum(ids, 0), dtype=torch.long, device=self.model.device)
        inputs = self._inputs(ids, images)
        cache = DynamicCache(config=self.model.config)
        scored = [np.array([np.nan], dtype=np.float32)]
        with torch.no_grad():
            for begin in range(0, len(ids) - 1, SCORED_TOGETHER):
                end = min(begin + SCORED_TOGETHER, len(ids) - 1)
                part = {
                    name: tensor[..., begin:end] for name, tensor in inputs.items() if name != "inputs_embeds"
                }
                if "inputs_embeds" in inputs:
                    part["inputs_embeds"] = inputs["inputs_embeds"][:, begin:end]
                predictions = predict(self.model, **part, **with_cache(self.model, cache))[0]
                targets = tokens[begin + 1 : end + 1]
                temperatures = torch.full_like(targets, temperature or 1.0, dtype=torch.float32)
                logprobs, _ = predictions.logprobs(targets, temperatures)
                scored.append(logprobs.float().cpu().numpy())
        whole = np.concatenate(scored)
        whole[ids < 0] = np.nan
        return whole

    @torch.no_grad()
    def _inputs(self, ids: Int32, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """The arguments with which the model computes a row."""
        sight = Sight.of(self.model)
        if sight is None:
            return {"input_ids": torch.as_tensor(ids, dtype=torch.long, device=self.model.device)[None]}
        at = places(ids, sight.placed(images), sight.mrope)
        embeds = sight.embedded(ids[None], at.rows[None], sight.features(images))
        return {"inputs_embeds": embeds, "position_ids": sight.positions(at.positions[:, None])}

    async def close(self) -> None:
        """Stop the worker. Open requests fail with RuntimeError. Closing twice is allowed."""
        worker, self._worker, self._loop = self._worker, None, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        self.scheduler.fail(RuntimeError("the engine was closed"), waiting=True)

    async def _work(self) -> None:
        assert self._wake is not None
        while True:
            if not self.scheduler.busy:
                if self.deterministic:
                    self.scheduler.restart()
                self._wake.clear()
                await self._wake.wait()
                await self._gather()
            try:
                self.scheduler.step(self._version)
            except Exception as error:
                # The requests of this step fail; the worker continues.
                self.scheduler.fail(error, waiting=False)
            await asyncio.sleep(0)

    async def _gather(self) -> None:
        """Wait until no further request arrives or the batch is full, so that a burst is admitted together. A
        deterministic engine counts turns of the loop instead of seconds."""
        seen = -1
        while seen < len(self.scheduler.waiting) < self.scheduler.max_batch:
            seen = len(self.scheduler.waiting)
            await asyncio.sleep(0 if self.deterministic else BURST)
