"""The backbone `verl`: the keys that it honours, and how it runs a job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ajet import AjetError, ConfigError
from ajet.interfaces.backbone import Capabilities, RunResult
from ajet_verl.settings import VerlSettings
from ajet_verl.versions import check

if TYPE_CHECKING:
    from ajet import Job
    from ajet.estimate.devices import Gpus
    from ajet.estimate.layout import JobSizes, Layout
    from ajet.job.config import JobConfig


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
        """See `Backbone.export`. verl's merger puts the shards of a whole model together. An adapter is merged into its base model,
        in the type of the base weights; ``target`` names it if there are several. Raises ConfigError for unsuitable arguments,
        AjetError if the merger fails."""
        from ajet_lora.folders import saved_adapters

        if output.exists():
            raise ConfigError(f"{output} already exists; name a new folder.")
        if saved_adapters(checkpoint):
            from ajet_lora.adapters import load_merged

            model, tokenizer = load_merged(checkpoint, target, _load)
            model.save_pretrained(output)
            tokenizer.save_pretrained(output)
            return
        if target is not None:
            raise ConfigError(
                f"--target {target}: {checkpoint} is a complete model without adapters. Remove --target."
            )
        actor = next(checkpoint.glob("global_step_*/actor"), None)
        if actor is None:
            raise ConfigError(
                f"{checkpoint} is not a checkpoint of the verl backbone; name a folder checkpoints/step_NNNNNN."
            )
        backend = "fsdp" if any(actor.glob("model_world_size_*_rank_*.pt")) else "megatron"
        command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", backend]
        command += ["--local_dir", str(actor), "--target_dir", str(output)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            line = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            raise AjetError(
                f"{checkpoint}: verl's merger failed: {line}. To see all of its output, run: {' '.join(command)}"
            )


def _load(model: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(
        model, dtype="auto", trust_remote_code=False
    ), AutoTokenizer.from_pretrained(model, trust_remote_code=False)
