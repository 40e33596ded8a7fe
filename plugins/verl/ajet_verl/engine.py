"""`ajet.interfaces.engine.Engine` over verl's client of its inference servers: tokens in, tokens out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import numpy as np

from ajet.interfaces.engine import room_for
from ajet.types import Float32, GenerateRequest, Generation, GenerationDelta, Int32

RESUME_SECONDS = 0.2
"""After a server has broken off a request, since it takes new weights or goes back to training."""
PARTS = 64
"""Most tokens of which a stop string may consist."""


class VerlEngine:
    """Samples on the servers that verl balances; an episode's calls go to one server, for its prefix cache.

    A call that a server breaks off goes on where it was, perhaps under newer weights: tokens keep the version that
    sampled them. ``seeded``: a call's seed is passed on; not where calls are broken off, as its random numbers would come
    twice.
    """

    def __init__(
        self, client: Any, tokenizer: Any, model_type: str, context_length: int, *, seeded: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.model_type = model_type
        self.context_length = context_length
        self.adapters: tuple[str, ...] = ()
        """verl serves the one model that it trains, its adapter included."""
        self._client = client
        self._seeded = seeded
        self._vocabulary = len(tokenizer)

    @classmethod
    def of(cls, config: Any, client: Any) -> VerlEngine:
        """The engine of verl's configuration."""
        from verl.utils.config import omega_conf_to_dataclass

        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        rollout = config.actor_rollout_ref.rollout
        length = rollout.max_model_len or rollout.prompt_length + rollout.response_length
        seeded = config.trainer.v1.trainer_mode == "sync"
        return cls(client, model.tokenizer, model.hf_config.model_type, length, seeded=seeded)

    async def start(self) -> None:
        """verl has started its servers."""

    async def close(self) -> None:
        """verl stops its servers."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `ajet.interfaces.engine.Engine.generate`."""
        from verl.workers.rollout.llm_server import LLMServerClient

        limit = room_for(request, self.context_length, self._vocabulary)
        prompt, sampling = request.prompt_ids.tolist(), request.sampling
        params = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop": [text for text in sampling.stop if text],
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,
            "skip_special_tokens": False,
            "detokenize": any(sampling.stop),
            "logprobs": True,
            **({"seed": sampling.seed} if self._seeded and sampling.seed is not None else {}),
        }
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        while True:
            # The base class's method, as that of the asynchronous one joins the parts and forgets their versions.
            output = await LLMServerClient.generate(
                self._client,
                request.key[0],
                prompt_ids=prompt + tokens,
                sampling_params={**params, "max_tokens": limit - len(tokens)},
            )
            new = list(output.token_ids)
            tokens += new
            logprobs += list(output.log_probs or ())
            versions += [output.extra_fields["global_steps"]] * len(new)
            if output.stop_reason not in ("aborted", "abort"):
                break
            if len(tokens) >= limit:
                break
            await asyncio.sleep(RESUME_SECONDS)
        if len(logprobs) != len(tokens):
            raise RuntimeError(f"verl's server gave {len(tokens)} tokens, but {len(logprobs)} logprobs")
        return Generation(
            np.array(tokens, np.int32),
            np.array(logprobs, np.float32),
            np.array(versions, np.int32),
            self._finish_reason(request, tokens, limit),
        )

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """As `generate`, in one piece: verl's servers give no other."""
        whole = await self.generate(request)
        yield GenerationDelta(whole.token_ids, whole.logprobs, whole.weight_versions, whole.finish_reason)

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """verl's servers do not score."""
        raise NotImplementedError("verl's servers do not score given tokens")

    def _finish_reason(
        self, request: GenerateRequest, tokens: list[int], limit: int
    ) -> Literal["stop", "length"]:
        """verl calls both ``completed``."""
        if len(tokens) < limit or tokens[-1] in request.sampling.stop_token_ids:
            return "stop"
        end = self.tokenizer.decode(tokens[-PARTS:]) if request.sampling.stop else ""
        return "stop" if any(text and text in end for text in request.sampling.stop) else "length"
