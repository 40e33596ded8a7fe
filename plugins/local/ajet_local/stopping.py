"""Finds stop strings in a completion while it is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
