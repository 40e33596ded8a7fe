"""An algorithm of a user, in a file of its own, that measures something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.learning.algorithms import GSPO
from ajet.types import LossTokens


class Measuring(GSPO):
    """GSPO that also reports a number whose name verl would misunderstand."""

    name = "measuring"

    def measures(self, xp: Any, tokens: LossTokens) -> Mapping[str, Any]:
        """The logprobs under the current weights."""
        return {"lowest_min": tokens.new}
