"""Batched sampling from a Hugging Face model, in tokens, on the loop where it was started.

A worker task takes all requests that wait, decodes them as one batch and answers them; then it
takes those that came meanwhile. The batch's common prefix is computed once. Everything runs on the
loop's own thread and gives way after each token, so requests that arrive in one turn of the loop
form one batch, in their order: what a lockstep scheduler needs for runs that are equal bit for bit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from transformers import DynamicCache

from ajet.types import Float32, GenerateRequest, Generation, GenerationDelta, Int32
from ajet_local.modeling import context_length as model_context_length
from ajet_local.prefix import common_prefix
from ajet_local.sampling import Sampler, sample
from ajet_local.stopping import StopStrings

COMPACT_BELOW = 0.75
"""Finished rows are removed once no more than this share of a batch is alive."""


@dataclass(slots=True)
class _Row:
    """One request on its way: what was asked, where the answer goes, what was sampled so far."""

    request: GenerateRequest
    future: asyncio.Future[Generation]
    limit: int
    sampler: Sampler
    stop_strings: StopStrings
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    fresh: asyncio.Queue[GenerationDelta | None] | None = None
    """Where each token goes at once, if it is to be streamed; None says that the future is done."""

    @property
    def alive(self) -> bool:
        return not self.future.done()

    def add(self, token: int, logprob: float, version: int) -> None:
        """Take one sampled token; if it is the last, answer the request."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        reason = self._reason(token)
        if self.fresh is not None:
            self.fresh.put_nowait(
                GenerationDelta(*_arrays([token], [logprob], [version]), finish_reason=reason)
            )
        if reason:
            arrays = _arrays(self.token_ids, self.logprobs, self.versions)
            self.future.set_result(Generation(*arrays, finish_reason=reason))

    def _reason(self, token: int) -> Literal["stop", "length"] | None:
        """Why the completion ends with its last token, or None if it goes on."""
        if token in self.request.sampling.stop_token_ids or self.stop_strings.found(self.token_ids):
            return "stop"
        return "length" if len(self.token_ids) >= self.limit else None


class LocalEngine:
    """`ajet.engine.Engine` over a Hugging Face causal model, which it shares with the trainer.

    ``version`` is the weight version that new tokens are labelled with. ``max_batch`` bounds the
    rows decoded together. ``context_length`` defaults to what the model's positions reach.
    """

    def __init__(
        self, model: Any, tokenizer: Any, context_length: int | None = None, max_batch: int = 64
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.context_length = context_length or model_context_length(model)
        self.max_batch = max_batch
        self.version = 0
        self.model_type: str = model.config.model_type
        self._vocabulary = model.get_input_embeddings().num_embeddings
        self._waiting: deque[_Row] = deque()
        self._wake: asyncio.Event | None = None
        self._worker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the worker on the running loop. Starting twice is an error of the caller."""
        if self._worker is not None:
            raise RuntimeError("the engine is already started")
        self._wake = asyncio.Event()
        self._worker = asyncio.create_task(self._work(), name="ajet-local-engine")

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion (see `ajet.engine.Engine.generate`). Cancel the awaiting task to stop it."""
        return await self._submit(request).future

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """As `generate`, token by token as the batch is decoded. Closing the iterator stops it."""
        row = self._submit(request)
        fresh: asyncio.Queue[GenerationDelta | None] = asyncio.Queue()
        row.fresh = fresh
        row.future.add_done_callback(lambda _: fresh.put_nowait(None))
        try:
            while delta := await fresh.get():
                yield delta
            row.future.result()  # raises if the batch failed
        finally:
            row.future.cancel()

    def _submit(self, request: GenerateRequest) -> _Row:
        """Put a request into the queue. Raises RuntimeError if nobody works on it, ValueError if it cannot
        be served."""
        if self._worker is None or self._wake is None or self._worker.done():
            raise RuntimeError("the engine is not running: await engine.start() on this loop first")
        limit = self._room(request)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        stop_strings = StopStrings(self.tokenizer, request.sampling.stop)
        row = _Row(request, future, limit, Sampler(request.sampling), stop_strings)
        self._waiting.append(row)
        self._wake.set()
        return row

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """``log_softmax(logits / temperature)`` of given tokens, float32[T]; the first is NaN.

        Temperature 0 means 1, as for greedy calls. Raises ValueError beyond the context.
        """
        ids = np.asarray(ids, dtype=np.int32)
        if not 0 < len(ids) <= self.context_length:
            raise ValueError(f"cannot score {len(ids)} tokens: the context holds 1 to {self.context_length}")
        with torch.no_grad():
            tokens = torch.as_tensor(ids, dtype=torch.long, device=self.model.device)[None]
            logits = self.model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
            logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
            chosen = logprobs.gather(1, tokens[0, 1:, None])[:, 0].cpu().numpy()
        return np.concatenate([np.array([np.nan], dtype=np.float32), chosen])

    async def close(self) -> None:
        """Stop the worker. Requests still open fail with RuntimeError. Closing twice is fine."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        _fail(self._waiting, RuntimeError("the engine was closed"))
        self._waiting.clear()

    def _room(self, request: GenerateRequest) -> int:
        """Most tokens to sample for ``request``; ValueError when it cannot be served."""
        ids, wanted = request.prompt_ids, request.sampling.max_tokens
        room = self.context_length - len(ids)
        if len(ids) == 0:
            raise ValueError("the prompt is empty")
        if room < 1:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, but the model's context holds {self.context_length} "
                "and needs one free. Shorten the chat or take a model with a longer context."
            )
        if int(np.min(ids)) < 0 or int(np.max(ids)) >= self._vocabulary:
            raise ValueError(f"the prompt has token ids outside 0..{self._vocabulary - 1}")
        if wanted is not None and wanted < 1:
            raise ValueError(f"max_tokens must be at least 1, not {wanted}")
        return room if wanted is None else min(room, wanted)

    async def _work(self) -> None:
        assert self._wake is not None
        while True:
            await self._wake.wait()
            await self._gather()
            count = min(self.max_batch, len(self._waiting))
            rows = [self._waiting.popleft() for _ in range(count)]
            if not self._waiting:
                self._wake.clear()
            rows = [row for row in rows if row.alive]
            try:
                if rows:
                    await self._decode(rows)
            except asyncio.CancelledError:
                _fail(rows, RuntimeError("the engine was closed"))
                raise
            except Exception as error:
                # It belongs to those who asked; the worker lives on.
                _fail(rows, error)

    async def _gather(self) -> None:
        """Let the loop turn until no further request arrives, so that a burst makes one batch."""
        seen = -1
        while seen < len(self._waiting) < self.max_batch:
            seen = len(self._waiting)
            await asyncio.sleep(0)

    async def _decode(self, rows: list[_Row]) -> None:
        """Answer ``rows`` (all alive): prefill, then one token for each row and turn."""
        batch, logits = self._prefill([row.request.prompt_ids for row in rows])
        while True:
            tokens, logprobs = sample(logits, [row.sampler for row in rows])
            for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
                if row.alive:
                    row.add(token, logprob, self.version)
            await asyncio.sleep(0)
            alive = [index for index, row in enumerate(rows) if row.alive]
            if not alive:
                return
            if len(alive) <= COMPACT_BELOW * len(rows):
                batch.select(alive)
                rows = [rows[index] for index in alive]
                tokens = [tokens[index] for index in alive]
            with torch.no_grad():
                logits = batch.step(self.model, tokens)

    @torch.no_grad()
    def _prefill(self, prompts: Sequence[Int32]) -> tuple[_Batch, torch.Tensor]:
        """The batch after its prompts, and the logits (float[B, V]) of each row's first new token.

        The common prefix is computed once; what follows is padded on the left.
        """
        device = self.model.device
        shared = common_prefix(prompts, min(map(len, prompts)) - 1)
        cache = DynamicCache(config=self.model.config)
        if shared:
            prefix = torch.as_tensor(prompts[0][:shared], dtype=torch.long, device=device)[None]
            self.model(input_ids=prefix, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(len(prompts))
        width = max(map(len, prompts)) - shared
        tokens = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.ones(len(prompts), shared + width, dtype=torch.long)
        for index, prompt in enumerate(prompts):
            padding = width - (len(prompt) - shared)
            tokens[index, padding:] = torch.as_tensor(prompt[shared:], dtype=torch.long)
            mask[index, shared : shared + padding] = 0
        lengths = mask.sum(-1, keepdim=True)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, shared:]
        batch = _Batch(cache, mask.to(device), lengths.to(device))
        logits = self.model(
            input_ids=tokens.to(device),
            attention_mask=batch.mask,
            position_ids=positions.to(device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return batch, logits[:, -1]


@dataclass(slots=True)
class _Batch:
    """The state of rows that decode together."""

    cache: DynamicCache
    mask: torch.Tensor
    """int64[B, S]: 0 at the padding."""
    positions: torch.Tensor
    """int64[B, 1]: position of each row's next token."""

    def step(self, model: Any, tokens: Sequence[int]) -> torch.Tensor:
        """Append one token per row; the logits, float[B, V], of the next."""
        ids = torch.tensor(tokens, dtype=torch.long, device=self.mask.device)[:, None]
        self.mask = torch.cat([self.mask, torch.ones_like(ids)], dim=1)
        logits = model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
        ).logits[:, -1]
        self.positions = self.positions + 1
        return logits

    def select(self, rows: Sequence[int]) -> None:
        """Keep ``rows`` only, in this order."""
        index = torch.tensor(rows, dtype=torch.long, device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.mask, self.positions = self.mask[index], self.positions[index]


def _fail(rows: Sequence[_Row] | deque[_Row], error: Exception) -> None:
    for row in rows:
        if row.alive:
            row.future.set_exception(error)


def _arrays(
    token_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
) -> tuple[Int32, Float32, Int32]:
    return (
        np.array(token_ids, dtype=np.int32),
        np.array(logprobs, dtype=np.float32),
        np.array(versions, dtype=np.int32),
    )
