"""The body of `POST /v1/fine_tuning/jobs`, and what `GET` returns for a job."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ajet import ConfigError, Settings
from ajet.plugins import validated

Whole = Literal["auto"] | int | None
Number = Literal["auto"] | float | None
OF_A_RESULT = (
    *("id", "object", "created_at", "finished_at", "estimated_finish", "fine_tuned_model", "status", "error"),
    *("result_files", "organization_id", "trained_tokens", "user_provided_suffix", "usage_metrics"),
    *("shared_with_openai", "eval_id"),
)
"""Keys that `GET` adds; they say nothing about how to train."""


class Hyperparameters(Settings):
    """Of every method."""

    n_epochs: Whole = None
    batch_size: Whole = None
    learning_rate_multiplier: Number = None

    @model_validator(mode="after")
    def _positive(self) -> Self:
        for name, value in self.model_dump().items():
            if isinstance(value, int | float) and not value > 0:
                raise ValueError(f"{name}: expected more than 0, or auto")
        return self


class DpoHyperparameters(Hyperparameters):
    """Of `dpo`."""

    beta: Number = None


class ReinforcementHyperparameters(Hyperparameters):
    """Of `reinforcement`."""

    compute_multiplier: Number = None
    eval_interval: Whole = None
    eval_samples: Whole = None
    reasoning_effort: Literal["default", "minimal", "low", "medium", "high"] | None = None


class Supervised(Settings):
    """The method `supervised`."""

    hyperparameters: Hyperparameters | None = None


class Dpo(Settings):
    """The method `dpo`."""

    hyperparameters: DpoHyperparameters | None = None


class Reinforcement(Settings):
    """The method `reinforcement`."""

    grader: dict[str, Any]
    """Checked by the judge `openai_grader`."""
    hyperparameters: ReinforcementHyperparameters | None = None
    response_format: dict[str, Any] | None = None


class Method(Settings):
    """Exactly one method."""

    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None
    dpo: Dpo | None = None
    reinforcement: Reinforcement | None = None

    @model_validator(mode="after")
    def _has_its_grader(self) -> Self:
        if self.type == "reinforcement" and self.reinforcement is None:
            raise ValueError("reinforcement: is missing; the method needs a grader")
        return self

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Those of the method that ``type`` names."""
        chosen = getattr(self, self.type)
        given: Hyperparameters | None = chosen and chosen.hyperparameters
        kinds = {"dpo": DpoHyperparameters, "reinforcement": ReinforcementHyperparameters}
        return given or kinds.get(self.type, Hyperparameters)()


class Wandb(Settings):
    """A run in Weights & Biases."""

    project: str
    entity: str | None = None
    name: str | None = None
    tags: tuple[str, ...] | None = None


class Integration(Settings):
    """Where metrics go."""

    type: Literal["wandb"]
    wandb: Wandb


class FineTuningJob(Settings):
    """A job of OpenAI."""

    model: str = Field(min_length=1)
    training_file: str = Field(min_length=1)
    validation_file: str | None = None
    method: Method = Method(type="supervised")
    seed: int | None = Field(None, ge=0)
    suffix: str | None = Field(None, max_length=64)
    metadata: dict[str, str] | None = None
    integrations: tuple[Integration, ...] | None = None


def read_job(path: Path) -> tuple[FineTuningJob, list[str]]:
    """The job in a file, and the keys that are not known here. Raises ConfigError with the line or the key."""
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file. Save the body of POST /v1/fine_tuning/jobs, or what GET returns."
        )
    try:
        given = json.loads(path.read_bytes().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno}).") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON that can be read ({error}).") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: a fine-tuning job is a JSON object.")
    known = [*FineTuningJob.model_fields, "hyperparameters"]
    unknown = [key for key in given if key not in known and key not in OF_A_RESULT]
    for key in unknown:
        if near := get_close_matches(key, known, 1, 0.8):
            raise ConfigError(f"{path}: {key}: unknown key; did you mean {near[0]}?")
    kept = {
        key: value for key, value in given.items() if key in FineTuningJob.model_fields and value is not None
    }
    # How jobs were written before there were methods.
    if given.get("hyperparameters") and "method" not in kept:
        kept["method"] = {"type": "supervised", "supervised": {"hyperparameters": given["hyperparameters"]}}
    return validated(FineTuningJob, kept, str(path)), unknown
