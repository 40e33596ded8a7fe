"""`ajet.forecast`: what `ajet forecast` does, with objects in place of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ajet import Backbone, ConfigError, Engine, Job, Trainer
from ajet.api.calling import anywhere, awaitable
from ajet.api.jobs import AnyJudge, AnyPath, AnyTasks, shown_or_not
from ajet.api.results import FewEpisodes
from ajet.job.config import Layers
from ajet.runs.jobs import checking_engine, job_of, prepared
from ajet.runs.runtime import trainer_of
from ajet_advice.forecast.figures import ForecastFigures
from ajet_advice.forecast.figures import ForecastFigures as Figures
from ajet_advice.forecast.forecast import ForecastRequest
from ajet_advice.forecast.forecast import forecast as run_forecast
from ajet_advice.forecast.steps import probe
from ajet_advice.known import parse_gpus
from ajet_advice.page import page


class Forecast(FewEpisodes):
    """What `ajet.forecast` found. ``figures`` holds the numbers: ``signal``, ``pass_at``, ``steps``, …"""

    def __init__(self, figures: Figures, text: str) -> None:
        super().__init__(figures.report, text)
        self.figures = figures

    @property
    def ok(self) -> bool:
        """Whether nothing was found that keeps the job from learning: the command's exit code 0."""
        return self.figures.ok

    @property
    def causes(self) -> Sequence[tuple[str, str, str]]:
        """(name, what keeps the job from learning, what helps), worst first."""
        return self.figures.causes

    @property
    def suggestions(self) -> Sequence[tuple[str, str]]:
        """(setting, why it is worth a try)"""
        return self.figures.suggestions

    def __repr__(self) -> str:
        named = ", ".join(name for name, _, _ in self.causes) or "nothing in the way"
        return f"<Forecast {len(self.report.episodes)} episodes, {named}>"


@anywhere
def forecast(
    job: AnyPath | None = None,
    *,
    workflow: object | None = None,
    tasks: AnyTasks | None = None,
    judge: AnyJudge | None = None,
    model: AnyPath | None = None,
    answers: AnyPath | None = None,
    episodes: int = 64,
    minutes: float | None = None,
    target: float = 0.8,
    attack: bool = False,
    probe: int | None = None,
    gpus: str | None = None,
    price: float | None = None,
    seed: int | None = None,
    memory_limit: str | None = None,
    run_dir: AnyPath | None = None,
    services: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Forecast:
    """Say from a few dozen episodes whether a job will learn, as `ajet forecast` does, and what would stop it.

    About ``episodes`` are run, for at most so many ``minutes``; no weights change. ``attack`` looks for answers that the judge rewards
    without a solution. ``probe`` trains so many steps first, which are thrown away, for a closer estimate of the steps to the pass
    rate ``target``. ``gpus``, such as ``8xH100``, adds the time of a step there, and ``price``, that of one GPU for
    an hour, the cost of the run. All else is as in `check`. Raises AjetError.
    """
    given = locals()
    with shown_or_not(progress) as lines, prepared(forecast_layers(given), lines, services) as ready:
        figures = forecasted(ready, given)
        return Forecast(figures, page(ready, figures))


aforecast = awaitable(forecast)


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
    probed = None if given["probe"] is None else probe(job, given["probe"], given["episodes"])
    engine, trainer = _engine(job, given)
    return run_forecast(job, engine, asked, trainer=trainer, probe=probed)


def _engine(job: Job, given: Mapping[str, Any]) -> tuple[Engine, Trainer | None]:
    """What answers in a forecast, and what measures gradients: a trainer, if the job's backbone gives one to the core and no
    file of ``answers`` is given."""
    if given.get("answers") is not None or type(job.backbone).trainer is Backbone.trainer:
        return checking_engine(job, given), None
    trainer = trainer_of(job)
    return trainer.engine, trainer
