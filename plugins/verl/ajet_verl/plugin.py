"""The backbone `verl`: what it can honour, and how it runs a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ajet.interfaces.backbone import Capabilities, RunResult
from ajet_verl.settings import VerlSettings
from ajet_verl.versions import check

if TYPE_CHECKING:
    from ajet.job.prepare import Job


class Verl(VerlSettings):
    """Trains with verl on a Ray cluster: vLLM samples, FSDP or Megatron learn."""

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
