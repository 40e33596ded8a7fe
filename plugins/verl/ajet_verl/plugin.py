"""The backbone `verl`: its settings, what it can honour, and how it runs a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from ajet import Backbone
from ajet.interfaces.backbone import Capabilities, RunResult
from ajet_verl.keys import SECTIONS, unknown
from ajet_verl.versions import check

if TYPE_CHECKING:
    from ajet.job.prepare import Job

Mode = Literal["sync", "colocate_async", "separate_async"]


class Verl(Backbone):
    """Trains with verl on a Ray cluster: vLLM samples, FSDP or Megatron learn."""

    model_config = ConfigDict(extra="allow")
    """verl's own keys stand beside ours: ``backbone.verl.actor_rollout_ref.…``."""

    name = "verl"
    capabilities: ClassVar[Capabilities] = Capabilities(
        keys=frozenset(
            {
                "train.kl",
                "train.entropy",
                "train.correction",
                "train.epochs",
                "train.max_staleness",
                "train.asynchronous",
                "train.schedule",
            }
        ),
    )

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
    def _only_keys_of_verl(self) -> Verl:
        for key in self.model_extra or {}:
            if key.removeprefix("+") not in SECTIONS:
                raise ValueError(unknown(key, [*type(self).model_fields, *SECTIONS]))
        return self

    @property
    def explicit(self) -> dict[str, Any]:
        """The user's own keys of verl, as a tree."""
        return dict(self.model_extra or {})

    def run(self, job: Job) -> RunResult:
        """Run the job as one of verl, on the Ray cluster that RAY_ADDRESS names, else on that of the
        service `ray` where the job has it, else on one of its own."""
        for warning in check():
            job.progress.say(warning)
        from ajet_verl.launch import launch

        return launch(job, self)

    def describe(self, job: Job) -> str:
        """See `Backbone.describe`: the configuration that verl receives."""
        from ajet_verl.alignment import describe

        return describe(job, self)

    def export(self, checkpoint: Path, output: Path, target: str | None) -> None:
        """See `Backbone.export`: verl's shards become one model."""
        from ajet_verl.export import export

        export(checkpoint, output, target)
