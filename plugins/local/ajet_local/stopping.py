"""When a completion ends: stop tokens, stop strings, the limit of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopStrings:
    """Looks for stop strings in a growing completion, decoding each token a bounded number of times.

    Tokens may hold parts of a character, so the last few stay open until they decode to whole
    text (the two-offset scheme of Hugging Face's text-generation-inference).
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(text for text in stop if text)
        self._longest = max(map(len, self._stop), default=0)
        self._tail = ""
        self._settled = 0  # ids before here are in the tail
        self._context = 0  # where decoding starts, so that spaces between tokens come out right

    def found(self, ids: Sequence[int]) -> bool:
        """Whether a stop string has appeared by the end of ``ids``: the completion so far, which
        has grown by one token since the last call."""
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
