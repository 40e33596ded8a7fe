"""The algorithms and filters that come with AgentJet, registered like those of any plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ajet.hookspecs import hookimpl

if TYPE_CHECKING:
    from ajet.interfaces.base import Plugin


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    from ajet.learning import algorithms as a
    from ajet.learning import filters as f

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
        a.SDPO,
        f.DiscardedAttempts,
        f.OverLong,
        f.Repetition,
        f.UnusedBranches,
    ]
