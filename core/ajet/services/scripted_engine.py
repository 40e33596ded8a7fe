"""A complete engine whose answers are scripted: `ajet check --answers`, and tests through `ajet.testing`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.types import Float32, GenerateRequest, Generation, GenerationDelta, Int32

if TYPE_CHECKING:
    from ajet.chat.vision import Vision

Script = Callable[[GenerateRequest, str], str | Sequence[int]]


class ScriptedEngine:
    """An `ajet.Engine` that samples exactly the tokens that a function returns.

    ``script(request, prompt_text)`` returns the answer as text or as token ids. The first stop id of the request
    is appended to text that ends with none of them, as a model would end its turn. The logprob of a token
    depends only on the token and its position, so that tests can predict it (`logprob_of`).

    With ``vision`` it takes images, which are placeholders in the text of a prompt. ``seconds`` pass before an answer; in a
    stream ``seconds_between`` pass between its tokens.
    ``cancelled`` counts the generations that were stopped before their last token.
    """

    def __init__(
        self,
        tokenizer: Any,
        script: Script,
        *,
        context_length: int = 4096,
        model_type: str = "qwen3",
        seconds: float = 0.0,
        seconds_between: float = 0.0,
        vision: Vision | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vision = vision
        self.context_length = context_length
        self.model_type = model_type
        self.adapters: tuple[str, ...] = ()
        self.version = 0
        self.requests: list[GenerateRequest] = []
        self.cancelled = 0
        self.started = False
        self._script = script
        self._seconds = seconds
        self._seconds_between = seconds_between

    async def start(self) -> None:
        """Mark the engine as started; there is nothing else to do."""
        self.started = True

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `ajet.Engine.generate`."""
        self._begin(request)
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self._sample(request)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """See `ajet.Engine.stream`; token by token."""
        self._begin(request)
        finished = False
        try:
            await asyncio.sleep(self._seconds)
            whole = self._sample(request)
            last = max(len(whole.token_ids) - 1, 0)
            for i in range(last + 1):
                if i:
                    await asyncio.sleep(self._seconds_between)
                finished = i == last
                yield GenerationDelta(
                    whole.token_ids[i : i + 1],
                    whole.logprobs[i : i + 1],
                    whole.weight_versions[i : i + 1],
                    whole.finish_reason if finished else None,
                )
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += not finished
            raise

    def _begin(self, request: GenerateRequest) -> None:
        if len(request.prompt_ids) >= self.context_length:
            raise ValueError(
                f"a prompt of {len(request.prompt_ids)} tokens leaves no room in {self.context_length}"
            )
        self.requests.append(request)

    def _sample(self, request: GenerateRequest) -> Generation:
        prompt: list[int] = request.prompt_ids.tolist()
        answer = self._script(
            request, self.tokenizer.decode(self.vision.plain(prompt) if self.vision else prompt)
        )
        ids = self._turn(answer, request) if isinstance(answer, str) else list(answer)
        first = len(request.prompt_ids)
        room = self.context_length - first
        limit = min(room, request.sampling.max_tokens or room)
        token_ids = np.array(ids[:limit], np.int32)
        return Generation(
            token_ids,
            np.array([logprob_of(int(t), first + i) for i, t in enumerate(token_ids)], np.float32),
            np.full(len(token_ids), self.version, np.int32),
            "length" if len(ids) > limit else "stop",
        )

    def _turn(self, text: str, request: GenerateRequest) -> list[int]:
        stops = request.sampling.stop_token_ids
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids if ids and ids[-1] in stops else [*ids, *stops[:1]]

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """See `ajet.Engine.score`."""
        return np.array([np.nan, *(logprob_of(int(t), i) for i, t in enumerate(ids) if i)], np.float32)

    async def close(self) -> None:
        """Mark the engine as closed."""
        self.started = False


def logprob_of(token: int, position: int) -> float:
    """The logprob that a `ScriptedEngine` gives a token at a position of the whole sequence."""
    return -((token * 31 + position * 17) % 97 + 1) / 100
