"""A forecast from the arguments of `ajet forecast` or `ajet.forecast`."""

from __future__ import annotations

from ajet.estimate.devices import parse_gpus
from ajet.job.job import Job
from ajet.runs.forecast.figures import Forecast
from ajet.runs.forecast.forecast import Asked, forecast
from ajet.runs.forecast.steps import probe
from ajet.runs.jobs import Given, forecasting_engine
from ajet.types import ConfigError


def forecasted(job: Job, given: Given) -> Forecast:
    """The forecast of a job. Raises AjetError."""
    if given["probe"] is not None and given.get("answers") is not None:
        raise ConfigError("probe= and answers=", "exclude each other: a probe trains the job's model.")
    minutes, gpus = given["minutes"], given["gpus"]
    asked = Asked(
        episodes=given["episodes"],
        seconds=None if minutes is None else minutes * 60,
        target=given["target"],
        attack=given["attack"],
        gpus=None if gpus is None else parse_gpus(gpus),
    )
    probed = None if given["probe"] is None else probe(job, given["probe"])
    engine, trainer = forecasting_engine(job, given)
    return forecast(job, engine, asked, trainer=trainer, probe=probed)
