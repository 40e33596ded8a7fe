"""The keys of `backbone.verl`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from ajet import Backbone
from ajet_verl.keys import SECTIONS, unknown

Mode = Literal["sync", "colocate_async", "separate_async"]


class VerlSettings(Backbone):
    """Our keys, and beside them verl's own: ``backbone.verl.actor_rollout_ref.…``."""

    model_config = ConfigDict(extra="allow")

    mode: Mode | None = Field(
        None,
        description="When episodes run: sync, between updates; colocate_async, also while a step waits for its last episodes; "
        "separate_async, on GPUs of their own. Default: sync, or colocate_async with train.asynchronous.",
    )
    engine: Literal["dp", "megatron", "veomni", "torchtitan"] = Field(
        "dp", description="Engine of the update: dp is FSDP; verl's `model_engine`."
    )
    runners: int = Field(
        1, ge=1, description="Processes on each node that run episodes, each as many as its share."
    )
    patience: float = Field(
        1800.0, gt=0, description="End the run when nothing has happened for this many seconds."
    )

    @model_validator(mode="after")
    def _only_keys_of_verl(self) -> VerlSettings:
        for key in self.model_extra or {}:
            if key.removeprefix("+") not in SECTIONS:
                raise ValueError(unknown(key, [*type(self).model_fields, *SECTIONS]))
        return self

    @property
    def explicit(self) -> dict[str, Any]:
        """The user's own keys of verl, as a tree."""
        return dict(self.model_extra or {})
