"""For plugin authors' tests: a proper Engine whose answers are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ajet.types import Float32, GenerateRequest, Generation, Int32

__all__ = ["ScriptedEngine"]

Script = Callable[[GenerateRequest, str], str | Sequence[int]]


class ScriptedEngine:
    """An `ajet.Engine` that samples what a function says, token by token exact.

    ``script(request, prompt_text)`` returns the answer as text or as token ids; the first stop id of
    the request is appended to text, as a model would end its turn. The logprob of a token depends only
    on the token and its position, so that tests can foresee it (`logprob_of`).
    """

    def __init__(
        self,
        tokenizer: Any,
        script: Script,
        *,
        context_length: int = 4096,
        model_type: str = "qwen3",
        seconds: float = 0.0,
    ) -> None:
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.model_type = model_type
        self.version = 0
        self.requests: list[GenerateRequest] = []
        self.cancelled = 0
        self.started = False
        self._script = script
        self._seconds = seconds

    async def start(self) -> None:
        """Nothing to start; remembers that it was."""
        self.started = True

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `ajet.Engine.generate`."""
        room = self.context_length - len(request.prompt_ids)
        if room < 1:
            raise ValueError(
                f"a prompt of {len(request.prompt_ids)} tokens leaves no room in {self.context_length}"
            )
        self.requests.append(request)
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        answer = self._script(request, self.tokenizer.decode(request.prompt_ids.tolist()))
        ids = (
            [*self.tokenizer.encode(answer, add_special_tokens=False), *request.sampling.stop_token_ids[:1]]
            if isinstance(answer, str)
            else list(answer)
        )
        limit = min(room, request.sampling.max_tokens or room)
        first = len(request.prompt_ids)
        token_ids = np.array(ids[:limit], np.int32)
        return Generation(
            token_ids,
            np.array([logprob_of(int(t), first + i) for i, t in enumerate(token_ids)], np.float32),
            np.full(len(token_ids), self.version, np.int32),
            "length" if len(ids) > limit else "stop",
        )

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """See `ajet.Engine.score`."""
        return np.array([np.nan, *(logprob_of(int(t), i) for i, t in enumerate(ids) if i)], np.float32)

    async def close(self) -> None:
        """Forget that it was started."""
        self.started = False


def logprob_of(token: int, position: int) -> float:
    """The logprob that a `ScriptedEngine` gives a token at a position of the whole sequence."""
    return -((token * 31 + position * 17) % 97 + 1) / 100
