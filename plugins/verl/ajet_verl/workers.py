"""The engine of verl's FSDP workers with what AgentJet adds to it. Importing this module registers it; verl imports it in its
processes, because ``actor_rollout_ref.model.external_lib`` names it."""

from __future__ import annotations

from verl.utils.device import get_vendor
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

from ajet_verl.lora_engine import Lora
from ajet_verl.trees import Trees
from ajet_verl.vision_engine import VisionTower


# verl prefers an engine of the device's vendor to its own, which is of any vendor.
@EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "npu"], vendor=get_vendor()
)
class Engine(Lora, Trees, VisionTower, FSDPEngineWithLMHead):
    """verl's FSDP engine, which also trains several adapters, computes rows as trees, and computes rows with and without images."""
