"""``ajet forecast``: whether a job will learn, from a few dozen episodes, and what would stop it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import JobFile, Judge, Model, Seed, Sets, Tasks, With, Workflow


def forecast(
    job: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    judge: Judge = None,
    model: Model = None,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Answers to use instead of the model's, as for `ajet check`."),
    ] = None,
    episodes: Annotated[int, typer.Option(metavar="N", help="Run about so many episodes.", min=8)] = 64,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Cancel the episodes that run after this time.", min=0.1)
    ] = None,
    target: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Estimate the steps to this pass rate.", min=0.01, max=0.98),
    ] = 0.8,
    attack: Annotated[
        bool,
        typer.Option("--attack", help="Also look for answers that the judge rewards without a solution."),
    ] = False,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="GPUS", help="Also estimate the time of a step on GPUs, such as 8xH100."),
    ] = None,
    seed: Seed = None,
    services: With = None,
    set: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a few dozen episodes and say whether the job will learn, what would stop it, and what it would cost.

    Exit code 0: nothing was found that keeps it from learning; 1: something was, or all episodes failed; 2: the job is wrong.
    """
    given = locals()
    import json

    from ajet.reports.forecast import page
    from ajet.reports.progress import make_progress
    from ajet.runs.forecast import Budget
    from ajet.runs.forecast import forecast as make_forecast
    from ajet.runs.jobs import forecast_layers, forecasting_engine, prepared

    layers = forecast_layers(given)
    with make_progress() as progress, prepared(layers, progress, services) as ready:
        engine, trainer = forecasting_engine(ready, given)
        found = make_forecast(
            ready,
            engine,
            budget=Budget(episodes=episodes, seconds=minutes and minutes * 60),
            target=target,
            trainer=trainer,
            attacks=attack,
        )
        planned = None
        if gpus is not None:
            from ajet.estimate.devices import parse_gpus
            from ajet.runs.forecast import planned_step

            planned = planned_step(layers, found, parse_gpus(gpus))
    if as_json:
        print(json.dumps({**found.as_dict(), "gpus": planned}))
    else:
        print(page(ready, found))
        if planned:
            print(
                f"\na step on {gpus}: {planned['low']:.0f} to {planned['high']:.0f} s, without agents and judges"
            )
    if found.causes or found.reward is None:
        raise typer.Exit(1)
