"""``ajet run``: prepare a job, run it on its backbone, print the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.options import JobFile, JudgeName, Seed, Sets, Tasks, Validation, With, Workflow, flag

if TYPE_CHECKING:
    from ajet.job.config import Layers
    from ajet.job.job import Job


def run(
    job_file: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    validation: Validation = None,
    judge: JudgeName = None,
    model: Annotated[
        str | None, typer.Option(help="Folder, Hugging Face id, or a recipe: `starter` or recipe.py:Name.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="The backbone: debug, local, or another that `ajet plugins` lists.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    seed: Seed = None,
    deterministic: Annotated[bool | None, typer.Option(help="Make runs reproducible bit for bit.")] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Maximum memory of the local backbone, such as 2GiB."),
    ] = None,
    with_: With = None,
    sets: Sets = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the resolved job; run nothing.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Resume a run from its last checkpoint.")
    ] = None,
    break_: Annotated[
        str | None,
        typer.Option("--break", metavar="TAG1,TAG2", help='Stop at ajet.breakpoint("TAG1"); * means all.'),
    ] = None,
) -> None:
    """Run a job: from a file, from flags, or both."""
    from contextlib import ExitStack

    from ajet.cli.layers import services, tell
    from ajet.cli.progress import make_progress
    from ajet.interfaces.progress import told_to
    from ajet.job.layers import import_from_here
    from ajet.job.prepare import prepare
    from ajet.runs.arguments import run_layers
    from ajet.runs.run_dir import held
    from ajet.utils.breakpoints import enable

    layers = run_layers(
        flag,
        job_file,
        workflow=workflow,
        tasks=tasks,
        validation=validation,
        judge=judge,
        model=model,
        backbone=backbone,
        steps=steps,
        seed=seed,
        deterministic=deterministic,
        memory_limit=memory_limit,
        sets=sets,
        resume=resume,
    )
    enable({tag.strip() for tag in (break_ or "").split(",") if tag.strip()})
    import_from_here()
    with ExitStack() as stack:
        if resume is not None and not dry_run:
            stack.enter_context(held(resume.resolve(), tell))
        stack.enter_context(services(layers, with_))  # readers may get tasks from them
        with make_progress() as progress, told_to(progress):
            job = prepare(layers, resume=resume.resolve() if resume is not None else None)
        if dry_run:
            print(describe_job(job, layers))
        else:
            run_prepared(job)


def describe_job(job: Job, layers: Layers) -> str:
    """The resolved job as a job file; its comments list what was set, and where."""
    from ajet.cli.table import table
    from ajet.job.layers import provenance
    from ajet.job.prepare import resolved_yaml

    counts = f"{len(job.tasks)} tasks, {len(job.validation)} validation tasks. Nothing was run."
    given = table(provenance(layers), indent="#   ")
    comment = f"# {counts}\n# Set by the user or derived (everything else is a fixed default):\n{given}"
    foreign = job.backbone.describe(job)
    return f"{comment}\n{resolved_yaml(job)}".rstrip() + (f"\n---\n{foreign}" if foreign else "")


def run_prepared(job: Job) -> Path:
    """Run a job and print its result, or where to find what it has done so far; its run folder."""
    from ajet.cli.progress import make_progress
    from ajet.cli.summary import describe_ended, describe_result
    from ajet.runs.restarts import run_job

    resumable = job.backbone.capabilities.resumes_without_checkpoint
    with make_progress() as progress:
        try:
            result = run_job(job.with_progress(progress))
        except KeyboardInterrupt:
            progress.say(describe_ended("interrupted", progress.run_dir, without_checkpoint=resumable))
            raise
        except Exception:
            if progress.run_dir is not None:
                progress.say(describe_ended("failed", progress.run_dir, without_checkpoint=resumable))
            raise
    print(describe_result(result))
    return result.run_dir
