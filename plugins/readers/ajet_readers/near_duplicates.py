"""Near-duplicates among texts: by shared sequences of characters, or by an embedding model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ajet_readers.extras import needs

_SHINGLE = 5  # characters: catches changed words as well as changed endings, in any script
_PERMUTATIONS = 128


def first_of_each(texts: Sequence[str], similarity: float) -> list[int]:
    """Indices of the texts whose shingles (sequences of five characters) have a Jaccard index below ``similarity``
    with those of every text kept before. Texts that differ in their numbers are never duplicates.

    MinHash (Broder 1997) finds the candidates; the Jaccard index of their shingles decides, so no text is dropped by
    chance.
    """
    lsh_module = needs("datasketch", "generated")
    index = lsh_module.MinHashLSH(threshold=max(0.1, similarity - 0.15), num_perm=_PERMUTATIONS)
    kept: dict[int, set[bytes]] = {}
    numbers = [re.findall(r"\d+", text) for text in texts]
    for number, text in enumerate(texts):
        shingles = _shingles(text)
        sketch = lsh_module.MinHash(num_perm=_PERMUTATIONS, seed=1)
        sketch.update_batch(sorted(shingles))
        if all(
            _jaccard(shingles, kept[other]) < similarity or numbers[number] != numbers[other]
            for other in index.query(sketch)
        ):
            index.insert(number, sketch)
            kept[number] = shingles
    return list(kept)


def first_of_each_meaning(vectors: Sequence[Sequence[float]], similarity: float) -> list[int]:
    """Indices of the vectors whose cosine with every vector kept before is below ``similarity``."""
    import numpy as np

    kept: list[int] = []
    if not vectors:
        return kept
    rows: Any = np.asarray(vectors, np.float32)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    chosen = np.empty_like(rows)
    for number, row in enumerate(rows):
        if not kept or float((chosen[: len(kept)] @ row).max()) < similarity:
            chosen[len(kept)] = row
            kept.append(number)
    return kept


def plain(text: str) -> str:
    """A text without case and punctuation, for comparisons."""
    return "".join(c if c.isalnum() else " " for c in text.casefold()).strip()


def _shingles(text: str) -> set[bytes]:
    words = " ".join(plain(text).split())
    return {words[i : i + _SHINGLE].encode() for i in range(max(1, len(words) - _SHINGLE + 1))}


def _jaccard(first: set[bytes], second: set[bytes]) -> float:
    return len(first & second) / len(first | second)
