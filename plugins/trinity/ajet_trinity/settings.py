"""The keys of `backbone.trinity`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from ajet import Backbone
from ajet.backbones import nearest
from ajet_trinity.keys import ALLOWED, FIXED


class TrinitySettings(Backbone):
    """AgentJet's keys, and some of Trinity's: `ajet_trinity.keys.ALLOWED`."""

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
