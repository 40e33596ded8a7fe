"""Online training: agents that improve from the feedback of their users."""

from __future__ import annotations

from ajet import Reader, hookimpl
from ajet_online.reader import StoreReader

__all__ = ["StoreReader"]


@hookimpl
def ajet_readers() -> list[type[Reader]]:
    return [StoreReader]
