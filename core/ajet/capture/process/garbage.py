"""A full garbage collection stops every thread for as long as the heap is large, and all calls wait for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MIDDLE_TO_FULL = 100
"""Collections of the middle generation before a full one: with Python's other thresholds (700 and 10) some
700,000 containers. Where PyTorch is loaded, Python's own rule (a quarter of the heap) is about as rare."""


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """A block in which full collections are rare and skip all objects that were alive at its beginning. Enter it
    when models and libraries are loaded."""
    young, middle, full = before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, middle, max(full, _MIDDLE_TO_FULL))
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
