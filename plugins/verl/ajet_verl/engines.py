"""verl's training engines: where each has the keys that AgentJet sets, and what AgentJet sets for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORKERS = "ajet_verl.workers"
"""Module that registers our engine instead of verl's, named by ``actor_rollout_ref.model.external_lib``."""
ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"


@dataclass(frozen=True, slots=True)
class EngineKeys:
    """The keys of one engine. Keys of `ajet_verl.alignment.TABLE` are those of the engine ``dp``."""

    section: str
    """The engine's section of the actor and of the reference model."""
    sharing: str
    """Key of the section: how many ranks share one row, so a row may have as many times a rank's tokens."""
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    """Where the engine has a key of ``dp``; None if it has none."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Our defaults instead of verl's."""

    def key(self, name: str) -> str | None:
        """The engine's key for a key of ``dp``."""
        return self.renamed.get(name, name)


SCHEDULE = f"{ACTOR}.optim.lr_scheduler_type"
FINAL_SHARE = f"{ACTOR}.optim.min_lr_ratio"
EPSILON = f"{ACTOR}.optim.override_optimizer_config"
GRAD_CLIP = f"{ACTOR}.grad_clip"
SEED = f"{ACTOR}.fsdp_config.seed"

ENGINES: Mapping[str, EngineKeys] = {
    "dp": EngineKeys(
        section="fsdp_config",
        sharing="ulysses_sequence_parallel_size",
        defaults={
            f"{ACTOR}.strategy": "fsdp2",
            f"{ACTOR}.fsdp_config.strategy": f"${{{ACTOR}.strategy}}",
        },
    ),
    "megatron": EngineKeys(
        section="megatron",
        sharing="context_parallel_size",
        renamed={
            SCHEDULE: f"{ACTOR}.optim.lr_decay_style",
            FINAL_SHARE: None,
            EPSILON: None,
            GRAD_CLIP: None,
            SEED: f"{ACTOR}.megatron.seed",
        },
    ),
    "veomni": EngineKeys(
        section="veomni",
        sharing="ulysses_parallel_size",
        renamed={FINAL_SHARE: None, EPSILON: None, GRAD_CLIP: None, SEED: f"{ACTOR}.veomni.seed"},
    ),
    "torchtitan": EngineKeys(
        section="torchtitan",
        sharing="tensor_parallel_size",
        renamed={
            SCHEDULE: None,
            FINAL_SHARE: None,
            EPSILON: None,
            GRAD_CLIP: None,
            SEED: f"{ACTOR}.torchtitan.seed",
        },
        defaults={f"{ACTOR}.optim.min_lr_factor": 1.0},  # a constant rate: decay_type has no such value
    ),
}
"""verl's engines by ``backbone.verl.engine``."""
