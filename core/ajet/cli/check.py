"""``ajet check``: run a few episodes without training and explain what would happen in training."""

from __future__ import annotations

from typing import Annotated

import typer

from ajet.cli.options import Answers, JobFile, Judge, MemoryLimit, Model, Seed, Sets, Tasks, With, Workflow


def check(
    job: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    judge: Judge = None,
    model: Model = None,
    answers: Answers = None,
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
    memory_limit: MemoryLimit = None,
    services: With = None,
    set: Sets = None,
) -> None:
    """Run a few episodes without training: what is captured, what merges, what breaks and why.

    Exit code 0: at least one episode was run and judged; 1: all episodes failed; 2: the job is wrong.
    """
    given = locals()
    from ajet.reports.check import page
    from ajet.reports.progress import make_progress
    from ajet.runs.check import check as run_check
    from ajet.runs.jobs import check_layers, checking_engine, prepared, require_answers

    require_answers(given)
    with make_progress() as progress, prepared(check_layers(given), progress, services) as ready:
        engine = checking_engine(ready, given)
        report = run_check(ready, engine, tasks=task_count, group_size=group_size)
    print(page(ready, report))
    if all(episode.failure is not None for episode in report.episodes):
        raise typer.Exit(1)
