"""A request in progress: the request, what has been sampled so far, its stop strings, and where the answer goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ajet.interfaces.engine import Float32, GenerateRequest, Generation, GenerationDelta, Int32, Kept
from ajet_local.kv_cache import CacheNode
from ajet_local.sampling import Drawn, RequestSampler


@dataclass(slots=True, eq=False)
class Completion:
    """A request and its answer so far. ``limit`` is the maximum number of tokens to sample."""

    request: GenerateRequest
    tokenizer: Any
    limit: int
    future: asyncio.Future[Generation]
    deltas: asyncio.Queue[GenerationDelta | None] | None = None
    """Receives each token at once if the request streams; None in the queue means that the future is done."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    kept: list[Int32] = field(default_factory=list)
    """The tokens among which each was drawn, if the request asks for them; empty: all."""
    sampler: RequestSampler = field(init=False)
    stop_strings: StopStrings = field(init=False)

    node: CacheNode | None = None
    """While it runs: the node of the prefix cache where its context ended on admission."""
    length: int = 0
    """How many tokens of the context have keys and values."""
    shift: int = 0
    """How far the positions of sampled tokens are from their indices, because of images in the prompt."""

    def __post_init__(self) -> None:
        self.sampler = RequestSampler(self.request.sampling)
        self.stop_strings = StopStrings(self.tokenizer, self.request.sampling.stop)

    @property
    def alive(self) -> bool:
        return not self.future.done()

    @property
    def next_token(self) -> int:
        """The last token of the context, which the model has not processed yet."""
        return self.token_ids[-1] if self.token_ids else int(self.request.prompt_ids[-1])

    def context(self) -> Int32:
        """Prompt and sampled tokens, int32[T]."""
        if not self.token_ids:
            return self.request.prompt_ids
        return np.concatenate([self.request.prompt_ids, np.array(self.token_ids, dtype=np.int32)])

    def add(self, drawn: Drawn, version: int) -> None:
        """Append a sampled token; if it is the last one, answer the request."""
        self.token_ids.append(drawn.token)
        self.logprobs.append(drawn.logprob)
        self.versions.append(version)
        if self.request.sampling.report_kept:
            self.kept.append(
                np.empty(0, np.int32) if drawn.kept is None else drawn.kept.cpu().numpy().astype(np.int32)
            )
        reason = self._reason(drawn.token)
        if self.deltas is not None:
            arrays = _arrays([drawn.token], [drawn.logprob], [version])
            self.deltas.put_nowait(GenerationDelta(*arrays, finish_reason=reason, kept=_kept(self.kept[-1:])))
        if reason:
            arrays = _arrays(self.token_ids, self.logprobs, self.versions)
            self.future.set_result(Generation(*arrays, finish_reason=reason, kept=_kept(self.kept)))

    def fail(self, error: Exception) -> None:
        """Answer the request with an error, unless it is already answered or cancelled."""
        if self.alive:
            self.future.set_exception(error)

    def _reason(self, token: int) -> Literal["stop", "length"] | None:
        """Why the completion ends after its last token, or None if it continues."""
        if token in self.request.sampling.stop_token_ids or self.stop_strings.found(self.token_ids):
            return "stop"
        return "length" if len(self.token_ids) >= self.limit else None


def _arrays(
    token_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
) -> tuple[Int32, Float32, Int32]:
    return (
        np.array(token_ids, dtype=np.int32),
        np.array(logprobs, dtype=np.float32),
        np.array(versions, dtype=np.int32),
    )


def _kept(each: Sequence[Int32]) -> Kept | None:
    if not each:
        return None
    return Kept(np.array([len(kept) for kept in each], dtype=np.int32), np.concatenate(each))


class StopStrings:
    """Finds stop strings in a growing completion, decoding each token a bounded number of times.

    A token may be part of a character, so the last tokens are decoded again until they give complete characters (the
    two-offset scheme of Hugging Face's text-generation-inference).
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(text for text in stop if text)
        self._longest = max(map(len, self._stop), default=0)
        self._tail = ""
        self._settled = 0  # the text of the ids before this index is final
        self._context = (
            0  # decoding starts at this index, before `_settled`, to get the spaces between tokens right
        )

    def found(self, ids: Sequence[int]) -> bool:
        """Whether ``ids`` contain a stop string. ``ids`` is the completion so far, one token longer than in the last call."""
        if not self._stop:
            return False
        known = self._decode(ids[self._context : self._settled])
        text = self._decode(ids[self._context :])
        fresh = text[len(known) :]
        seen = self._tail + fresh
        if not text.endswith("\ufffd") and fresh:
            self._context, self._settled = self._settled, len(ids)
            self._tail = seen[-self._longest :]
        return any(stop in seen for stop in self._stop)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
