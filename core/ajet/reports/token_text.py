"""Tokens as text, and text made visible: model output can neither move a cursor nor hide."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ajet.runs.run_dir import TOKENIZER
from ajet.utils.terminal import readable

_LONGEST = 16
"""Maximum tokens of one character."""
IMAGE = "[image]"
"""Stands for the placeholders of an image."""
_SPACES = str.maketrans({" ": "·", "\t": "→", "\n": "↵"})


class TokenText:
    """The text of token ids, from the tokenizer that a run saved. ``missing`` says why there is none."""

    def __init__(self, run_dir: Path) -> None:
        self._tokenizer: Any = None
        self.missing = ""
        path = run_dir / TOKENIZER / "tokenizer.json"
        if not path.is_file():
            self.missing = f"{path} does not exist"
            return
        try:
            from tokenizers import Tokenizer
        except ImportError:
            self.missing = "the package tokenizers is not installed (pip install tokenizers)"
            return
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exceptions
            self.missing = f"{path}: {error}"

    def __call__(self, ids: Sequence[int], borders: Collection[int] = ()) -> list[str | None]:
        """The text that each token adds. A character of several tokens belongs to the last one, the others add
        nothing; no character crosses ``borders``. Without a tokenizer all are None."""
        if self._tokenizer is None:
            return [None] * len(ids)
        if any(i < 0 for i in ids):
            return self._with_images(ids, borders)
        pieces: list[str | None] = []
        borders = {*borders, len(ids)}
        start = done = 0  # decode with the token before: some tokenizers drop a space at the beginning
        for end in range(1, len(ids) + 1):
            before, after = self._decode(ids[start:done]), self._decode(ids[start:end])
            if after.endswith("\ufffd") and end not in borders and end - done < _LONGEST:
                pieces.append("")
            else:
                pieces.append(after[len(before) :])
                start, done = done, end
        return pieces

    def _with_images(self, ids: Sequence[int], borders: Collection[int]) -> list[str | None]:
        """Placeholders of an image are written once, as its mark."""
        pieces: list[str | None] = []
        for is_image, group in groupby(enumerate(ids), lambda item: item[1] < 0):
            index, some = zip(*group, strict=True)
            if is_image:
                pieces += [IMAGE if i == 0 or some[i - 1] != token else "" for i, token in enumerate(some)]
            else:
                pieces += self(some, {border - index[0] for border in borders})
        return pieces

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def visible(text: str) -> str:
    """Readable text in one line, with a sign for each space, tab and newline."""
    return readable(text).translate(_SPACES)
