"""What was read a moment ago and may be asked for again, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class Recent:
    """Values by key. The least recently used ones are forgotten once all are larger than ``most_bytes``; the last one is
    kept whatever its size. May be used in any thread; one value is made at a time, which bounds memory."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._guard = threading.RLock()
        self._values: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()

    def get(self, key: Hashable, size: int, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not here; ``size`` is about how many bytes it takes."""
        with self._guard:
            if key in self._values:
                self._values.move_to_end(key)
            else:
                self._values[key] = size, make()
                total = sum(size for size, _ in self._values.values())
                while total > self._most_bytes and len(self._values) > 1:
                    total -= self._values.popitem(last=False)[1][0]
            found: Value = self._values[key][1]
            return found
