"""The backbone `trinity`: its settings, and how it runs a job."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ajet import AjetError, ConfigError, EnginePlugin, find_recipe, model_source
from ajet.interfaces.backbone import OPTIONAL_KEYS, Capabilities, MachineFailed, RunResult
from ajet.rollout.checkpoints import CHECKPOINT_STATE, FILES
from ajet_trinity.settings import TrinitySettings
from ajet_trinity.versions import check

if TYPE_CHECKING:
    from ajet import Job
    from ajet.interfaces.engine import SharedEngine
    from ajet_trinity.trainer import TrinityTrainer

GPU_SHARE = 0.85
"""Share of a GPU's free memory that the engine's weights and its cache may take."""
CPU_CACHE = 1 << 30
"""Bytes for keys and values on a CPU."""


class Trinity(TrinitySettings):
    """Trains with Trinity-RFT in processes of its own, on other GPUs than those of the engine, which may sample meanwhile."""

    name = "trinity"
    capabilities: ClassVar[Capabilities] = Capabilities(
        keys=OPTIONAL_KEYS - {"train.reference"},
        needs=frozenset({"before", "reference"}),
        restarts=True,
    )

    def run(self, job: Job) -> RunResult:
        """Train the job's model with the core's loop, and Trinity as the trainer. Raises ConfigError for what Trinity cannot
        do, and MachineFailed if one of its processes has died."""
        from ajet import train_job
        from ajet.runs.run_dir import held, new_run_dir
        from ajet_trinity import alignment
        from ajet_trinity.learner import LearnerFailed

        for warning in check():
            job.progress.say(warning)
        model = _folder(model_source(job.model, job.config.run.seed, job.progress))
        place = alignment.Place(
            model=str(model), context=job.config.rollout.context_length or _context(model)
        )
        alignment.compose(job, self, place)  # raises what is wrong with the job before a run folder is made
        engine = self._engine(job, model, place.context)
        run_dir = job.resume or new_run_dir(job)
        with held(run_dir, job.progress.say):
            trainer = self._trainer(job, engine, model, run_dir, place.context)
            try:
                return train_job(job, trainer, run_dir)
            except LearnerFailed as error:
                if not error.machine:
                    raise
                raise MachineFailed(str(error), run_dir) from error
            finally:
                trainer.learner.close()

    def describe(self, job: Job) -> str:
        """See `Backbone.describe`: the configuration that Trinity receives."""
        from ajet_trinity import alignment

        folder = Path(job.model).expanduser()
        here = not find_recipe(job.model) and (folder / "config.json").is_file()
        context = job.config.rollout.context_length or (_context(folder) if here else None)
        return alignment.describe(job, self, alignment.Place(model=job.model, context=context))

    def export(self, checkpoint: Path, output: Path, target: str | None) -> None:
        """See `Backbone.export`: copies the model of a checkpoint. Raises AjetError if it is not one of this backbone."""
        from ajet_trinity.trainer import STATE

        if target is not None:
            raise ConfigError(
                "--target: a checkpoint of the backbone trinity holds no adapters; remove the option."
            )
        if not (checkpoint / STATE).is_file():
            raise AjetError(
                f"checkpoint {checkpoint}: no {STATE}. Give a folder written by the backbone trinity."
            )
        if output.exists():
            raise ConfigError(f"{output} already exists; name a new folder.")
        output.mkdir(parents=True)
        for file in sorted(checkpoint.iterdir()):
            if file.is_file() and file.name not in (STATE, CHECKPOINT_STATE, FILES):
                shutil.copyfile(file, output / file.name)

    def _trainer(
        self, job: Job, engine: SharedEngine, model: Path, run_dir: Path, context: int | None
    ) -> TrinityTrainer:
        from ajet_trinity import alignment
        from ajet_trinity.engine import Sampler
        from ajet_trinity.learner import TrinityLearner
        from ajet_trinity.trainer import TrinityTrainer

        place = alignment.Place(
            model=str(model), run_dir=run_dir, context=context, attempt=uuid.uuid4().hex[:8]
        )
        # All that counts of earlier learners is in checkpoints.
        shutil.rmtree(run_dir / alignment.FOLDER, ignore_errors=True)
        place.spool.create()
        learner = TrinityLearner(
            place.spool, alignment.compose(job, self, place), self._learner_environment(), self.patience
        )
        return TrinityTrainer(
            learner,
            Sampler(engine, on_start=learner.start if job.config.train.steps else lambda: None),
            model=model,
            layout=alignment.layout_of(job, self),
            temperature=job.config.rollout.sampling.temperature,
        )

    def _engine(self, job: Job, model: Path, context: int | None) -> SharedEngine:
        """The engine that samples. Raises ConfigError if there is no GPU left for it."""
        import torch

        cuda = torch.cuda.is_available()
        name = self.engine
        if name == "auto":
            name = "vllm" if cuda and find_spec("vllm") and find_spec("ajet_vllm") else "local"
        if cuda and not os.environ.get("RAY_ADDRESS") and torch.cuda.device_count() <= self.gpus:
            raise ConfigError(
                "backbone.trinity.gpus",
                f"{self.gpus} of {torch.cuda.device_count()} GPUs are for Trinity, which leaves none for the "
                "engine. Lower it, or train with --backbone local or verl, which share a GPU.",
            )
        plugin = job.plugins.get(EnginePlugin, name, "backbone.trinity.engine")
        job.progress.say(f"sampling with {name}; Trinity takes a minute or more to start")
        return plugin().build_shared(
            str(model),
            job.config.run.seed,
            job.progress,
            dtype="bfloat16" if cuda else "float32",
            cache=_gpu_cache(model, torch.cuda.mem_get_info(0)[0]) if cuda else CPU_CACHE,
            context=context or 0,
        )

    def _learner_environment(self) -> dict[str, str]:
        """The variables of Trinity's processes: they get the last GPUs of this machine, as the engine takes the first."""
        import torch

        if not torch.cuda.is_available() or os.environ.get("RAY_ADDRESS"):
            return {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        all_of_them = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
        return {"CUDA_VISIBLE_DEVICES": ",".join(all_of_them[-self.gpus :])}


def _folder(source: str) -> Path:
    """The folder of a model with safetensors, which is fetched if ``source`` is a Hugging Face id. Raises ConfigError."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(source))
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"model {source}",
            "has no safetensors, in which AgentJet and Trinity exchange weights. Save it with save_pretrained.",
        )
    return folder.resolve()


def _gpu_cache(model: Path, free: int) -> int:
    """Bytes for keys and values on a GPU with so many free bytes, beside the weights in bfloat16. Raises ConfigError."""
    from ajet_trinity import weights

    taken = 2 * weights.count(weights.files_of(model))
    left = int(GPU_SHARE * free) - taken
    if left <= 0:
        raise ConfigError(
            f"model {model}",
            f"its weights take {taken >> 20} MiB, but the engine's GPU has {free >> 20} MiB free. Take a smaller "
            "model, or the backbone verl, whose engine shards the model.",
        )
    return left


def _context(folder: Path) -> int:
    """The number of positions of a model. Raises ConfigError if its config.json does not say."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    positions = config.get("max_position_embeddings") or config.get("text_config", {}).get(
        "max_position_embeddings"
    )
    if not positions:
        raise ConfigError(
            f"model {folder}", "its config.json has no max_position_embeddings; set rollout.context_length."
        )
    return int(positions)
