"""A forecast from the arguments of `ajet forecast` or `ajet.forecast`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet import Backbone, ConfigError, Engine, Job, Trainer
from ajet.estimate.devices import parse_gpus
from ajet.job.config import Layers
from ajet.runs.jobs import checking_engine, job_of
from ajet.runs.runtime import trainer_of
from ajet_advice.forecast.figures import ForecastFigures
from ajet_advice.forecast.forecast import ForecastRequest, forecast
from ajet_advice.forecast.steps import probe


def forecast_layers(given: Mapping[str, Any]) -> Layers:
    """The job to forecast: only its training tasks are run, and no weights change. Raises ConfigError."""
    given = {**given, "episodes": None}  # of the forecast, not of a validation
    return job_of(given, {"task.validation": None}, "ajet forecast")


def forecasted(job: Job, given: Mapping[str, Any]) -> ForecastFigures:
    """The forecast of a job. Raises AjetError."""
    if given["probe"] is not None and given.get("answers") is not None:
        raise ConfigError("probe= and answers=", "exclude each other: a probe trains the job's model.")
    minutes, gpus = given["minutes"], given["gpus"]
    asked = ForecastRequest(
        episodes=given["episodes"],
        seconds=None if minutes is None else minutes * 60,
        target=given["target"],
        attack=given["attack"],
        gpus=None if gpus is None else parse_gpus(gpus),
        price=given["price"],
    )
    probed = None if given["probe"] is None else probe(job, given["probe"])
    engine, trainer = _engine(job, given)
    return forecast(job, engine, asked, trainer=trainer, probe=probed)


def _engine(job: Job, given: Mapping[str, Any]) -> tuple[Engine, Trainer | None]:
    """What answers in a forecast, and what measures gradients: a trainer, if the job's backbone gives one to the core and no
    file of ``answers`` is given."""
    if given.get("answers") is not None or type(job.backbone).trainer is Backbone.trainer:
        return checking_engine(job, given), None
    trainer = trainer_of(job)
    return trainer.engine, trainer
