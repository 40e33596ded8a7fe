"""Online training: agents that improve from the feedback of their users."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ajet import Reader, hookimpl
from ajet_online.reader import StoreReader

if TYPE_CHECKING:
    from ajet import Algorithm

__all__ = ["StoreReader"]


@hookimpl
def ajet_readers() -> list[type[Reader]]:
    return [StoreReader]


@hookimpl
def ajet_algorithms() -> Iterable[type[Algorithm]]:
    from ajet_online.algorithms import KTO, Reinforce

    return [Reinforce, KTO]
