"""An algorithm turns the rewards of a group into advantages and says the loss of a token."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ajet.base import Plugin
from ajet.types import Float64


class Algorithm(Plugin):
    """Base of algorithms: pure functions. Trainers know no algorithm; they sum weighted token losses."""

    @abstractmethod
    def advantages(self, rewards: Float64) -> Float64:
        """float64[E] rewards of one group's episodes -> float64[E] advantages."""

    @abstractmethod
    def loss(self, xp: Any, new: Any, old: Any, advantages: Any) -> Any:
        """Loss of each token. ``new``/``old``: logprobs now and when sampled; ``xp``: torch or numpy."""
