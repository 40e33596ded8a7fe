"""The algorithms and filters that come with AgentJet, registered like those of any plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ajet.hookspecs import hookimpl

if TYPE_CHECKING:
    from ajet.interfaces.algorithm import Algorithm
    from ajet.interfaces.filter import Filter


@hookimpl
def ajet_algorithms() -> Iterable[type[Algorithm]]:
    from ajet.learning import algorithms as a

    return [
        a.GRPO,
        a.DAPO,
        a.DrGRPO,
        a.RLOO,
        a.ReinforcePlusPlus,
        a.GSPO,
        a.CISPO,
        a.SFT,
        a.RejectionSampling,
        a.Distillation,
        a.DPO,
        a.PPO,
    ]


@hookimpl
def ajet_filters() -> Iterable[type[Filter]]:
    from ajet.learning.filters import DiscardedAttempts, OverLong, Repetition

    return [DiscardedAttempts, OverLong, Repetition]
