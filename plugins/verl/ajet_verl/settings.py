"""The keys of `backbone.verl`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from ajet import Backbone
from ajet.interfaces.helpers import nearest
from ajet_verl.keys import ENGINES, SECTIONS

Mode = Literal["sync", "colocate_async", "separate_async"]


class VerlSettings(Backbone):
    """AgentJet's keys, and any of verl's: ``backbone.verl.actor_rollout_ref.…``."""

    model_config = ConfigDict(extra="allow")

    mode: Mode | None = Field(
        None,
        description="When episodes run: sync, between updates; colocate_async, also while a step waits for its last episodes; "
        "separate_async, on separate GPUs. Default: sync, or colocate_async with train.asynchronous.",
    )
    engine: Literal["dp", "megatron"] = Field(
        "dp", description="Engine of the update: dp is FSDP; verl's `model_engine`."
    )
    runners: int = Field(
        1, ge=1, description="Processes on each node that run episodes; episodes are spread over all of them."
    )
    environment: tuple[str, ...] = Field(
        (),
        description="Further environment variables of `ajet run` for the processes of a cluster that it joins: names, or "
        "patterns such as MY_*.",
    )
    trees: Literal["auto"] | bool = Field(
        "auto",
        description="Compute what rows of a mini-batch share once, as the local backbone does: true, false, or auto, where it is "
        "estimated to cost less, and always on GPUs without flash-attn. Only with the engine dp.",
    )
    long_rows: Literal["error", "drop"] = Field(
        "error",
        description="If the context allows rows that are longer than verl's workers compute: refuse the job, or drop such rows "
        "and count their tokens (the metric dropped_tokens/over_long_rows).",
    )
    patience: float = Field(
        1800.0,
        gt=0,
        description="End the run after this many seconds without progress: no episode waits for something else, and no "
        "micro-batch is trained.",
    )

    @field_validator("engine", mode="before")
    @classmethod
    def _supported_engine(cls, value: Any) -> Any:
        if value not in tuple(ENGINES):
            raise ValueError(f"verl's engine {value!r} is not supported; use {' or '.join(ENGINES)}")
        return value

    @model_validator(mode="after")
    def _only_keys_of_verl(self) -> VerlSettings:
        for key in self.model_extra or {}:
            if key.removeprefix("+") not in SECTIONS:
                raise ValueError(unknown(key, [*type(self).model_fields, *SECTIONS]))
        return self

    @property
    def trusts_model(self) -> bool:
        """verl's key ``actor_rollout_ref.model.trust_remote_code``: whether Python code in the model's folder may run."""
        model = self.explicit.get("actor_rollout_ref", {}).get("model", {})
        return bool(model.get("trust_remote_code", False))

    @property
    def explicit(self) -> dict[str, Any]:
        """verl's keys that the user has set, as a tree."""
        return dict(self.model_extra or {})


def unknown(name: str, known: Iterable[str]) -> str:
    """An error text for an unknown name, with the nearest known one or all of them."""
    names = [n for n in known if n != "_target_"]
    near = nearest(name, names)
    return f"unknown key {name!r}{near or '. Known: ' + ', '.join(names)}"
