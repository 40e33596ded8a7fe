"""The backbone and engine `tinker`: their settings, and what is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from ajet import AjetError, Backbone, ConfigError, Engine, EnginePlugin, Plugin, find_recipe
from ajet.interfaces.backbone import OPTIONAL_KEYS, Capabilities, RunResult
from ajet.interfaces.base import Seconds
from ajet_tinker.saved import SAVED_FILE, Saved, saved_in
from ajet_tinker.service import TinkerService

if TYPE_CHECKING:
    from ajet import Job
    from ajet.interfaces.backbone import Need
    from ajet.interfaces.progress import Progress
    from ajet.learning.settings import LoraSettings, TrainSettings
    from ajet_tinker.trainer import TinkerTrainer

DAY = 24 * 60 * 60
MOST_DAYS = 3650
"""Tinker keeps checkpoints for ten years at most, or until they are deleted."""


class AtTinker(Plugin):
    """The settings that sampling and training share."""

    base_model: str | None = Field(
        None,
        description="Tinker's name of the model. Default: the job's `model`, which is a name of Tinker's or a checkpoint; with this "
        "key, `model` is a folder with the model's tokenizer.",
    )
    base_url: str | None = Field(
        None, description="Address of the service; default: TINKER_BASE_URL, else Tinker's own."
    )
    timeout: Seconds = Field(
        1800.0, description="Maximum seconds for one answer of the service, its queue included."
    )

    def named(self, model: str, saved: Saved | None) -> str:
        """Tinker's name of a job's model. Raises ConfigError."""
        if saved is not None:
            if self.base_model not in (None, saved.base_model):
                raise ConfigError(
                    "backbone.tinker.base_model",
                    f"{model} is a checkpoint of {saved.base_model}; remove the key.",
                )
            return saved.base_model
        if self.base_model is not None:
            return self.base_model
        if find_recipe(model) or Path(model).expanduser().is_dir():
            raise ConfigError(
                f"model {model}",
                "Tinker does not have it. Name one of Tinker's models, such as Qwen/Qwen3-8B, or set "
                "backbone.tinker.base_model to the model whose tokenizer it has.",
            )
        return model

    def room(self, service: TinkerService, base_model: str, model: str) -> int:
        """Maximum tokens of prompt and reply together, less one: scoring a sequence samples one token after it. Where the service
        does not say it, the model's config does. Raises AjetError."""
        from transformers import AutoConfig

        length = service.context_length(base_model)
        for source in (str(Path(model).expanduser()), base_model) if length is None else ():
            with suppress(OSError, ValueError, AttributeError):
                config = AutoConfig.from_pretrained(source, trust_remote_code=False)
                length = config.get_text_config().max_position_embeddings
                break
        if length is None:
            raise AjetError(
                f"model {base_model}",
                "the service does not say how long a context it takes. Let `model` be a folder with its config.json.",
            )
        return length - 1

    def load_tokenizer(
        self, model: str, seed: int, saved: Saved | None, service: TinkerService | None
    ) -> tuple[Any, str]:
        """A model's tokenizer and the name of its architecture: from its folder, or else from where Tinker's client finds
        it. Raises AjetError."""
        from transformers import AutoConfig, AutoTokenizer

        recipe = find_recipe(model)
        if recipe:
            return recipe.tokenizer(seed)
        folder = Path(model).expanduser()
        try:
            if folder.is_dir():
                tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
                return tokenizer, saved.model_type if saved else AutoConfig.from_pretrained(
                    folder, trust_remote_code=False
                ).model_type
            asked = service or TinkerService(self.base_url, self.timeout)
            tokenizer = asked.sampler(base_model=self.named(model, saved)).get_tokenizer()
            return tokenizer, AutoConfig.from_pretrained(
                tokenizer.name_or_path, trust_remote_code=False
            ).model_type
        except (OSError, ValueError) as error:
            line = str(error).strip().splitlines()[0]
            raise AjetError(
                f"model {model}",
                f"its tokenizer cannot be loaded ({line}). Give a folder with tokenizer and config.json, and the "
                "model's name in backbone.tinker.base_model.",
            ) from error


class Tinker(AtTinker, Backbone):
    """Trains LoRA at the hosted trainer Tinker, through its public client. Needs TINKER_API_KEY."""

    name = "tinker"
    capabilities: ClassVar[Capabilities] = Capabilities(
        keys=OPTIONAL_KEYS - {"train.entropy", "train.reference"},
        needs=frozenset({"before", "reference", "pairs"}),
    )
    rank: int = Field(32, ge=1, description="Rank of the LoRA.")
    train_mlp: bool = Field(True, description="Adapt the MLP layers.")
    train_attn: bool = Field(True, description="Adapt the attention layers.")
    train_unembed: bool = Field(True, description="Adapt the unembedding layer.")
    probe: bool = Field(
        True,
        description="Try what a job needs, with a small LoRA, before a run at another service than Tinker's own.",
    )
    ttl_days: int | None = Field(
        None,
        ge=1,
        le=MOST_DAYS,
        description="Days after which Tinker deletes a checkpoint; default: it keeps checkpoints until they are deleted.",
    )

    @model_validator(mode="after")
    def _something_is_trained(self) -> Self:
        if not (self.train_mlp or self.train_attn or self.train_unembed):
            raise ValueError(
                "train_mlp, train_attn and train_unembed are all false; nothing would be trained"
            )
        return self

    def run(self, job: Job) -> RunResult:
        """Train the job's model with the core's loop. Raises ConfigError for what Tinker cannot do."""
        from ajet import train_job

        _refuse(job)
        config = job.config
        trainer = self.trainer(
            job.model,
            config.train,
            seed=config.run.seed,
            deterministic=config.run.deterministic,
            progress=job.progress,
        )
        try:
            if self.probe and trainer.service.address:
                from ajet_tinker.probe import averages

                layers = {name: getattr(self, name) for name in ("train_mlp", "train_attn", "train_unembed")}
                trainer.averaged = averages(trainer.service, trainer.base_model, rank=trainer.rank, **layers)
            return train_job(job, trainer)
        finally:
            trainer.service.close()

    def trainer(
        self,
        model: str,
        train: TrainSettings,
        *,
        seed: int,
        deterministic: bool,
        progress: Progress,
        needs: Collection[Need] = (),
        adapters: Mapping[str, LoraSettings] = MappingProxyType({}),
        trained: Collection[str] | None = None,
    ) -> TinkerTrainer:
        """A `TinkerTrainer` over one of Tinker's models or a checkpoint. Raises ConfigError and ServiceFailed."""
        from ajet_tinker.trainer import Optimizer, TinkerTrainer

        saved = saved_in(model)
        base_model = self.named(model, saved)
        if saved is not None and "rank" in self.model_fields_set and self.rank != saved.rank:
            raise ConfigError("backbone.tinker.rank", f"{model} has rank {saved.rank}; remove the key.")
        service = TinkerService(self.base_url, self.timeout)
        try:
            tokenizer, model_type = self.load_tokenizer(model, seed, saved, service)
            create = (
                partial(service.restore, saved.state, optimizer=False)
                if saved is not None
                else partial(
                    service.create,
                    base_model,
                    rank=self.rank,
                    seed=seed,
                    train_mlp=self.train_mlp,
                    train_attn=self.train_attn,
                    train_unembed=self.train_unembed,
                )
            )
            return TinkerTrainer(
                service,
                tokenizer,
                base_model=base_model,
                rank=saved.rank if saved else self.rank,
                model_type=model_type,
                context_length=self.room(service, base_model, model),
                create=create,
                optimizer=Optimizer(
                    weight_decay=train.weight_decay,
                    epsilon=train.adam_epsilon,
                    max_grad_norm=train.max_grad_norm,
                ),
                ttl_seconds=self.ttl_days * DAY if self.ttl_days else None,
            )
        except BaseException:
            service.close()
            raise


class TinkerEnginePlugin(AtTinker, EnginePlugin):
    """Tinker's sampling alone, of its models and of this backbone's checkpoints. Needs TINKER_API_KEY."""

    name = "tinker"
    backbone = "tinker"
    binding = frozenset({"base_model", "base_url"})

    @classmethod
    def preferred(cls, model: str) -> bool:
        """Whether the model is a checkpoint of this backbone, whose weights no other engine has."""
        return (Path(model).expanduser() / SAVED_FILE).is_file()

    def build(self, model: str, seed: int, progress: Progress) -> Engine:
        """A `TinkerEngine` over one of Tinker's models or a checkpoint. Raises ConfigError and ServiceFailed."""
        from ajet_tinker.engine import TinkerEngine

        saved = saved_in(model)
        base_model = self.named(model, saved)
        service = TinkerService(self.base_url, self.timeout)
        opened = (
            partial(service.sampler, path=saved.sampler)
            if saved
            else partial(service.sampler, base_model=base_model)
        )
        try:
            tokenizer, model_type = self.load_tokenizer(model, seed, saved, service)
            return TinkerEngine(service, tokenizer, model_type, self.room(service, base_model, model), opened)
        except BaseException:
            service.close()
            raise

    def tokenizer(self, model: str, seed: int) -> tuple[Any, str]:
        """See `EnginePlugin.tokenizer`."""
        return self.load_tokenizer(model, seed, saved_in(model), None)


def _refuse(job: Job) -> None:
    """Raise ConfigError for what a job asks and Tinker cannot do, apart from what its capabilities exclude."""
    temperature = job.config.rollout.sampling.temperature
    if temperature != 1.0:
        raise ConfigError(
            "rollout.sampling.temperature",
            f"{temperature:g}, but Tinker computes the logprobs that are trained at temperature 1; "
            "remove the key.",
        )
    if job.config.eval.sampling.min_p:
        raise ConfigError(
            "eval.sampling.min_p", "Tinker samples without it; remove the key, or set top_p or top_k."
        )
