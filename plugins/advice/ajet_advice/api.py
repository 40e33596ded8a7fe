"""`ajet.forecast`: what `ajet forecast` does, with objects in place of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ajet.api.calling import anywhere, awaitable
from ajet.api.jobs import AnyJudge, AnyPath, AnyTasks, shown_or_not
from ajet.api.results import FewEpisodes
from ajet.runs.jobs import prepared
from ajet_advice.forecast.figures import ForecastFigures as Figures
from ajet_advice.given import forecast_layers, forecasted
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
