"""`ajet.interfaces.engine.Engine` over Tinker's sampling client: token ids go out, token ids and logprobs come back."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ajet.interfaces.engine import (
    Float32,
    GenerateRequest,
    Generation,
    GenerationDelta,
    Int32,
    Sampling,
    room_for,
)
from ajet_tinker.service import TinkerFailed, TinkerService

if TYPE_CHECKING:
    from tinker import SamplingClient

SEEDS = 2**31 - 1
"""Seeds are sent modulo this prime: a service may read them as 32-bit integers."""
DRAWS = 16
"""How often a token is drawn until it is one that the tokenizer has."""


class TinkerEngine:
    """See the module. ``open_sampler`` gives the first sampling client and may block; `load` gives later ones.

    Tinker's logprobs are those at temperature 1, or greedy ones. At other temperatures it samples, but its logprobs are
    not checked and not trained.
    """

    def __init__(
        self,
        service: TinkerService,
        tokenizer: Any,
        model_type: str,
        context_length: int,
        open_sampler: Callable[[], SamplingClient],
    ) -> None:
        self.service = service
        self.tokenizer = tokenizer
        self.model_type = model_type
        self.context_length = context_length
        self.adapters: tuple[str, ...] = ()
        """Always empty: the one LoRA of a run is not chosen by name."""
        self.version = 0
        self._open_sampler = open_sampler
        self._sampler: SamplingClient | None = None
        self._tokens = frozenset(tokenizer.get_vocab().values())
        self._vocabulary = max(self._tokens) + 1

    async def start(self) -> None:
        """Open the first sampling client, if `load` has given none. Raises ServiceFailed."""
        if self._sampler is None:
            self._sampler = await asyncio.to_thread(self._open_sampler)

    def load(self, sampler: SamplingClient, version: int) -> None:
        """Answer later requests with these weights; those in progress keep theirs."""
        self._sampler, self.version = sampler, version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion (see `ajet.interfaces.engine.Engine.generate`). Tinker samples on after a stop string;
        what comes after it is cut off here. Of a reply with an id for which the tokenizer has no token, only what is before it is
        kept, and sampled on: such ids have the probability 0. Raises ServiceFailed."""
        sampling = request.sampling
        if request.adapter is not None:
            raise ValueError(f"adapter {request.adapter!r}: this engine serves no adapters by name")
        if sampling.min_p:
            raise ValueError(
                f"min_p {sampling.min_p:g}: Tinker samples without it; set top_p or top_k instead"
            )
        limit = room_for(request, self.context_length, self._vocabulary)
        sampler, version, drawn = self._running(), self.version, 0
        ids, logprobs = np.zeros(0, np.int32), np.zeros(0, np.float32)
        while True:
            new, its, reason = await self._sampled(
                sampler, [*request.prompt_ids.tolist(), *ids.tolist()], sampling, limit - len(ids), drawn
            )
            known = next((i for i, token in enumerate(new.tolist()) if token not in self._tokens), len(new))
            drawn = 1 if known else drawn + 1
            again = known < len(new) and drawn < DRAWS
            ids = np.concatenate([ids, new[: known if again else None]])
            logprobs = np.concatenate([logprobs, its[: known if again else None]])
            if not again:
                break
        end = self._end(ids.tolist(), sampling.stop)
        return Generation(
            ids[:end].astype(np.int32),
            logprobs[:end].astype(np.float32),
            np.full(len(ids[:end]), version, dtype=np.int32),
            reason if end is None else "stop",
        )

    async def _sampled(
        self, sampler: SamplingClient, prompt: list[int], sampling: Sampling, limit: int, drawn: int
    ) -> tuple[Int32, Float32, Literal["stop", "length"]]:
        """One reply of the service. ``drawn`` counts draws of its first token: each has a seed of its own."""
        from tinker import ModelInput, SamplingParams

        params = SamplingParams(
            max_tokens=limit,
            seed=None if sampling.seed is None else (sampling.seed + drawn) % SEEDS,
            stop=[token for token in sampling.stop_token_ids if 0 <= token < self._vocabulary],
            temperature=sampling.temperature,
            top_k=sampling.top_k or -1,
            top_p=sampling.top_p,
        )
        reply = await self.service.result(sampler.sample(ModelInput.from_ints(prompt), 1, params), "sampling")
        [sequence] = reply.sequences
        if sequence.tokens_np is None or sequence.logprobs_np is None:
            raise TinkerFailed("Tinker: a sampled reply came without its logprobs.")
        return sequence.tokens_np, sequence.logprobs_np, sequence.stop_reason

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """Like `generate`, in one piece: Tinker answers when all tokens are sampled."""
        got = await self.generate(request)
        yield GenerationDelta(got.token_ids, got.logprobs, got.weight_versions, got.finish_reason)

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """Logprobs of the tokens ``ids`` (int32[T]), float32[T]; the first is NaN. Temperature 0 means 1, as for greedy
        calls. Raises ValueError for ids that cannot be scored and for other temperatures, and ServiceFailed."""
        from tinker import ModelInput

        ids = np.asarray(ids, dtype=np.int32)
        if temperature not in (0.0, 1.0):
            raise ValueError(f"temperature {temperature}: Tinker scores at temperature 1")
        if not 0 < len(ids) <= self.context_length:
            raise ValueError(f"cannot score {len(ids)} tokens: the engine accepts 1 to {self.context_length}")
        if int(ids.min()) < 0 or int(ids.max()) >= self._vocabulary:
            raise ValueError(f"there are token ids outside 0..{self._vocabulary - 1}")
        if len(ids) == 1:
            return np.array([np.nan], dtype=np.float32)
        asked = self._running().compute_logprobs(ModelInput.from_ints(ids.tolist()))
        logprobs = await self.service.result(asked, "scoring")
        return np.array([np.nan if logprob is None else logprob for logprob in logprobs], dtype=np.float32)

    async def close(self) -> None:
        """End the session at Tinker. Open and later requests fail with RuntimeError. Closing twice is allowed."""
        await asyncio.to_thread(self.service.close)

    def _running(self) -> SamplingClient:
        if self._sampler is None:
            raise RuntimeError("the engine is not running: await engine.start() first")
        return self._sampler

    def _end(self, ids: Sequence[int], stop: Sequence[str]) -> int | None:
        """The number of tokens up to the one that completes a stop string; None if there is none in the text."""
        strings = [text for text in stop if text]

        def stopped(count: int) -> bool:
            text = self.tokenizer.decode(ids[:count], skip_special_tokens=False)
            return any(string in text for string in strings)

        if not strings or not stopped(len(ids)):
            return None
        return bisect_left(range(len(ids)), True, key=stopped)
