"""``ajet forecast``: whether a job will learn, from a few dozen episodes, and what would stop it."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import Answers, JobFile, Judge, MemoryLimit, Model, Seed, Sets, Tasks, With, Workflow


def forecast(
    job: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    judge: Judge = None,
    model: Model = None,
    answers: Answers = None,
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
    probe: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            help="Also train so many steps, which are thrown away, and try the same tasks before and after: a much closer estimate of "
            "the steps to the target.",
            min=2,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="GPUS", help="Also estimate the time of a step on GPUs, such as 8xH100."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            metavar="PRICE", help="Price of one GPU for an hour: also estimate what the run costs.", min=0
        ),
    ] = None,
    seed: Seed = None,
    memory_limit: MemoryLimit = None,
    services: With = None,
    set: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a few dozen episodes and say whether the job will learn, what would stop it, and what it would cost.

    Exit code 0: nothing was found that keeps it from learning; 1: something was, or all episodes failed; 2: the job is wrong.
    """
    given = locals()
    import json

    from ajet.reports.progress import make_progress
    from ajet.runs.jobs import prepared
    from ajet_advice.api import forecast_layers, forecasted
    from ajet_advice.page import page

    with make_progress() as progress, prepared(forecast_layers(given), progress, services) as ready:
        figures = forecasted(ready, given)
    print(json.dumps(figures.as_dict()) if as_json else page(ready, figures))
    if not figures.ok:
        raise typer.Exit(1)
