"""``ajet check``: run a few episodes without training and explain what would happen in training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import JobFile, JudgeName, Seed, Sets, Tasks, With, Workflow, flag


def check(
    job_file: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    judge: JudgeName = None,
    model: Annotated[
        str | None, typer.Option(help="Folder, Hugging Face id, or a recipe: `starter` or recipe.py:Name.")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Answers to use instead of the model's: a YAML list of rules with `say` or `call`, and `turn`, the "
            "number of the call in its episode, from 0.",
        ),
    ] = None,
    context_length: Annotated[
        int | None,
        typer.Option(metavar="N", help="Maximum tokens of a call with --answers; default: no limit.", min=1),
    ] = None,
    task_count: Annotated[
        int, typer.Option("--first", metavar="N", help="Run the first N tasks.", min=1)
    ] = 4,
    group_size: Annotated[
        int, typer.Option(help="Episodes per task, in place of rollout.group_size.", min=1)
    ] = 4,
    seed: Seed = None,
    with_: With = None,
    sets: Sets = None,
) -> None:
    """Run a few episodes without training: what is captured, what merges, what breaks and why.

    Exit code 0: at least one episode was run and judged; 1: all episodes failed; 2: the job is wrong.
    """
    from ajet.interfaces.progress import reporting_to
    from ajet.job.layers import import_from_here
    from ajet.job.prepare import prepare
    from ajet.reports.check import page
    from ajet.reports.progress import make_progress
    from ajet.runs.arguments import check_layers, checking_engine, require_answers
    from ajet.runs.check import check as run_check
    from ajet.services.supervisor import with_services

    require_answers(flag, answers, context_length)
    layers = check_layers(
        flag, job_file, workflow=workflow, tasks=tasks, judge=judge, model=model, seed=seed, sets=sets
    )
    import_from_here()
    with with_services(layers, with_), make_progress() as progress, reporting_to(progress):
        job = prepare(layers).with_progress(progress)
        engine = checking_engine(job, answers, context_length)
        report = run_check(job, engine, tasks=task_count, group_size=group_size)
    print(page(job, report))
    if all(episode.failure is not None for episode in report.episodes):
        raise typer.Exit(1)
