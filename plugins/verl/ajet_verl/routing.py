"""Router replay of mixture-of-experts models: an update sends tokens to the experts that they were sent to before.

Otherwise rounding makes the trained model send some tokens to other experts than the sampling one, which changes their
logprobs a lot (Ma et al., arXiv:2510.11370). verl has two modes. R2: the pass for the logprobs before the update records the
experts. R3: vLLM records them while it samples, and rows carry them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.types import ConfigError
from ajet_verl.engines import ACTOR

if TYPE_CHECKING:
    from omegaconf import DictConfig

RECORDS = "actor_rollout_ref.rollout.enable_rollout_routing_replay"
"""Key for vLLM to return the experts of each call."""


def replay(config: DictConfig) -> str:
    """verl's mode of the actor: ``disabled``, ``R2`` or ``R3``."""
    actor = config.actor_rollout_ref.actor
    section = actor.get("megatron") or actor.get("veomni") or {}
    found: str = section.get("router_replay", {}).get("mode", "disabled")
    return found


def check(config: DictConfig, engine: str) -> None:
    """Raise ConfigError if vLLM records experts that the engine does not replay, or if R3 has none to replay."""
    records, mode = config.actor_rollout_ref.rollout.enable_rollout_routing_replay, replay(config)
    if mode == "R3" and not records:
        raise ConfigError(
            f"backbone.verl.{ACTOR}.{engine}.router_replay.mode: R3 replays the experts that vLLM has recorded; set "
            f"backbone.verl.{RECORDS}: true."
        )
    if records and mode != "R3":
        where = f"set backbone.verl.{ACTOR}.{engine}.router_replay.mode: R3, or remove the key"
        if engine not in ("megatron", "veomni"):
            where = "only verl's engines megatron and veomni do; set backbone.verl.engine, or remove the key"
        raise ConfigError(f"backbone.verl.{RECORDS}: nothing would replay these experts: {where}.")
