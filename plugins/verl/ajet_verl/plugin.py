"""The backbone `verl`: the keys that it honours, and how it runs a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ajet.interfaces.backbone import Capabilities, RunResult
from ajet_verl.settings import VerlSettings
from ajet_verl.versions import check

if TYPE_CHECKING:
    from ajet.estimate.devices import Gpus
    from ajet.estimate.layout import JobSizes, Layout
    from ajet.job.config import JobConfig
    from ajet.job.job import Job


class Verl(VerlSettings):
    """Trains with verl on a Ray cluster: vLLM samples, FSDP or Megatron trains."""

    name = "verl"
    capabilities: ClassVar[Capabilities] = Capabilities(
        lora=True,
        several_targets=True,
        keys=frozenset(
            {
                "train.kl",
                "train.reference",
                "train.entropy",
                "train.correction",
                "train.epochs",
                "train.max_staleness",
                "train.asynchronous",
                "train.schedule",
                "train.dynamic_sampling",
                "rollout.oversample",
            }
        ),
        restarts=True,
    )

    def run(self, job: Job) -> RunResult:
        """Run the job with verl: on the Ray cluster at RAY_ADDRESS, else on that of the service `ray` if the job uses it,
        else on a new one."""
        for warning in check():
            job.progress.say(warning)
        from ajet_verl.launch import launch

        return launch(job, self)

    def layout(self, sizes: JobSizes, gpus: Gpus) -> Layout:
        """See `Backbone.layout`: shards of FSDP on all GPUs, and vLLM beside them."""
        from ajet_verl.scale import layout

        return layout(sizes, self, gpus)

    def alternatives(self) -> Sequence[Mapping[str, object]]:
        """See `Backbone.alternatives`."""
        from ajet_verl.scale import alternatives

        return alternatives(self)

    def defaults(self, config: JobConfig) -> Mapping[str, tuple[object, str]]:
        """See `Backbone.defaults`."""
        from ajet_verl.scale import defaults

        return defaults(config, self)

    def describe(self, job: Job) -> str:
        """See `Backbone.describe`: the configuration that verl receives."""
        from ajet_verl.alignment import describe

        return describe(job, self)

    def export(self, checkpoint: Path, output: Path, target: str | None) -> None:
        """See `Backbone.export`: merges verl's shards into one model."""
        from ajet_verl.export import export

        export(checkpoint, output, target)
