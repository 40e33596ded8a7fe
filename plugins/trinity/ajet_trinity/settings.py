"""The keys of `backbone.trinity`: AgentJet's, and those of Trinity's configuration that the user may set or that AgentJet requires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from ajet import Backbone
from ajet.interfaces.helpers import nearest
from ajet_trinity.spool import NAME, PROJECT

REMOTE = "ajet_trinity.remote"
OPTIMIZER = "trainer.trainer_config.actor.optim"
UNLIMITED = 1.0e30
"""A norm to which Trinity's own clipping never clips: our optimizer clips the gradients of whole mini-batches."""

FIXED: Mapping[str, Any] = {
    "mode": "train",
    "project": PROJECT,
    "name": NAME,
    "continue_from_checkpoint": True,
    "algorithm.sample_strategy": f"{REMOTE}.strategy.Files",
    "algorithm.kl_loss_fn": "none",
    "algorithm.kl_penalty_fn": "none",
    "algorithm.optimizer.lr_scheduler_type": "constant",
    "algorithm.optimizer.clip_grad": UNLIMITED,
    "trainer.trainer_type": "verl",
    "trainer.trainer_strategy": "fsdp2",
    "trainer.grad_clip": UNLIMITED,
    "trainer.use_dynamic_bsz": True,
    "trainer.balance_batch": False,
    "trainer.save_interval": 0,
    "trainer.save_hf_checkpoint": "never",
    "trainer.total_steps": None,
    f"{OPTIMIZER}.optimizer_impl": f"{REMOTE}.optimizer",
    f"{OPTIMIZER}.optimizer": "AdamW",
    "synchronizer.sync_method": "checkpoint",
    "synchronizer.sync_interval": 1,
    "monitor.monitor_type": f"{REMOTE}.monitor.Reporter",
    "buffer.trainer_input.experience_buffer": {"name": "unused", "storage_type": "file", "path": "unused"},
}
"""What AgentJet requires. Setting one of these keys is an error."""

ALLOWED: Mapping[str, str] = {
    "algorithm.optimizer.betas": "of AdamW",
    "log.level": "of Trinity's logs",
    "model.trust_remote_code": "whether Python code in the model's folder may run",
    "trainer.max_token_len_per_gpu": "tokens that a worker computes together; at least those of the longest row",
    "trainer.offload_policy": "FSDP2's offloading",
    "trainer.optimizer_offload": "optimizer states in the CPU's memory between steps",
    "trainer.param_offload": "weights in the CPU's memory between steps",
    "trainer.trainer_config": "verl's configuration of Trinity's workers: model, actor and ref",
    "trainer.ulysses_sequence_parallel_size": "workers that share a row",
    "trainer.use_remove_padding": "compute rows without padding, which needs flash attention",
}
"""Keys of Trinity, or prefixes of keys, that the user may set below `backbone.trinity`, and what they are. No other key of
Trinity has an effect here that a key of the job does not have."""


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of a tree. None removes it, so Trinity's default holds."""
    *folders, last = key.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    if value is None:
        tree.pop(last, None)
    else:
        tree[last] = value


class TrinitySettings(Backbone):
    """AgentJet's keys, and some of Trinity's: `ALLOWED`."""

    model_config = ConfigDict(extra="allow")

    gpus: int = Field(1, ge=1, description="GPUs of each node on which Trinity trains.")
    nodes: int = Field(
        1, ge=1, description="Nodes of the Ray cluster at RAY_ADDRESS on which Trinity trains."
    )
    engine: Literal["auto", "vllm", "local"] = Field(
        "auto",
        description="What samples, in the process of `ajet run`: vllm, on the GPUs that Trinity does not use, or local. auto: vllm "
        "where it and CUDA are installed, else local.",
    )
    patience: float = Field(
        1800.0, gt=0, description="End the run if one step of Trinity, or its start, takes more seconds."
    )

    @model_validator(mode="after")
    def _only_keys_of_trinity(self) -> TrinitySettings:
        sections = sorted({key.partition(".")[0] for key in (*ALLOWED, *FIXED)})
        known = [*type(self).model_fields, *sections]
        for key in self.model_extra or {}:
            if key not in known:
                raise ValueError(f"unknown key {key!r}{nearest(key, known)}. Known: {', '.join(known)}")
        return self

    @property
    def explicit(self) -> dict[str, Any]:
        """Trinity's keys that the user has set, as a tree."""
        return dict(self.model_extra or {})

    @property
    def ranks(self) -> int:
        """Number of workers that compute different rows."""
        trainer = self.explicit.get("trainer", {})
        sharing = int(trainer.get("ulysses_sequence_parallel_size", 1)) if isinstance(trainer, dict) else 1
        return max(self.nodes * self.gpus // sharing, 1)
