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
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write every episode of the run to this file, so that --replay can run it without a model.",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Run the episodes of a recording again, without a model, and compare rewards and responses.",
        ),
    ] = None,
    break_: Annotated[
        str | None,
        typer.Option("--break", metavar="TAG1,TAG2", help='Stop at ajet.breakpoint("TAG1"); * means all.'),
    ] = None,
) -> None:
    """Run a job: from a file, from flags, or both.

    With --replay, the exit code is 1 if an episode differs from its recording.
    """
    from contextlib import ExitStack

    from ajet.interfaces.progress import reporting_to
    from ajet.job.layers import import_from_here
    from ajet.job.prepare import prepare
    from ajet.reports.progress import make_progress
    from ajet.runs.arguments import run_layers
    from ajet.runs.run_dir import held
    from ajet.services.supervisor import with_services
    from ajet.types import ConfigError
    from ajet.utils.breakpoints import enable
    from ajet.utils.files import check_output
    from ajet.utils.terminal import tell

    enable({tag.strip() for tag in (break_ or "").split(",") if tag.strip()})
    import_from_here()
    if replay is not None:
        for name, value in {
            "tasks": tasks,
            "validation": validation,
            "model": model,
            "backbone": backbone,
            "steps": steps,
            "seed": seed,
            "deterministic": deterministic,
            "memory_limit": memory_limit,
            "resume": resume,
            "record": record,
            "dry_run": dry_run or None,
        }.items():
            if value is not None:
                raise ConfigError(
                    f"{flag(name)} has no effect with --replay, which takes tasks and replies from {replay}; remove it."
                )
        replay_file(replay, job_file, workflow, judge, with_, sets)
        return
    if record is not None:
        check_output("--record", record)
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
    with ExitStack() as stack:
        if resume is not None and not dry_run:
            stack.enter_context(held(resume.resolve(), tell))
        stack.enter_context(with_services(layers, with_))  # readers may get tasks from them
        with make_progress() as progress, reporting_to(progress):
            job = prepare(layers, resume=resume.resolve() if resume is not None else None)
        if dry_run:
            print(describe_job(job, layers))
        else:
            run_prepared(job, record)


def describe_job(job: Job, layers: Layers) -> str:
    """The resolved job as a job file; its comments list what was set, and where."""
    from ajet.job.layers import provenance
    from ajet.job.prepare import resolved_yaml
    from ajet.utils.terminal import table

    counts = f"{len(job.tasks)} tasks, {len(job.validation)} validation tasks. Nothing was run."
    given = table(provenance(layers), indent="#   ")
    comment = f"# {counts}\n# Set by the user or derived (everything else is a fixed default):\n{given}"
    foreign = job.backbone.describe(job)
    return f"{comment}\n{resolved_yaml(job)}".rstrip() + (f"\n---\n{foreign}" if foreign else "")


def replay_file(
    file: Path,
    job_file: Path | None,
    workflow: str | None,
    judge: str | None,
    with_: list[str] | None,
    sets: list[str] | None,
) -> None:
    """Replay a recording and print how each episode compares. Raises typer.Exit(1) if one differs."""
    from ajet.interfaces.progress import reporting_to
    from ajet.job.prepare import prepare
    from ajet.reports.progress import make_progress
    from ajet.reports.token_text import readable
    from ajet.rollout.recording import Recording
    from ajet.runs.replay import replay, replay_layers
    from ajet.services.supervisor import with_services

    episodes = Recording.read(file).episodes
    layers = replay_layers(flag, job_file, episodes, workflow=workflow, judge=judge, sets=sets)
    with with_services(layers, with_), make_progress() as progress, reporting_to(progress):
        job = prepare(layers).with_progress(progress)
        replayed = replay(job, episodes)
    for one in replayed:
        e = one.episode
        outcome = f"failed: {e.failure}" if e.failure else f"reward {e.reward:g}"
        calls = _counted(e.record.answered, "call")
        print(readable(f"{'differs' if one.differences else 'same   '}  {e.id}  {outcome}  {calls}"))
        for line in one.differences:
            print(readable(f"         {line}"))
    different = sum(bool(one.differences) for one in replayed)
    print(f"{_counted(len(replayed), 'episode')} replayed from {file}, {different} different")
    if different:
        raise typer.Exit(1)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def write_recording(run_dir: Path, file: Path, episode: str | None = None) -> None:
    """Write the recording of a run folder's episodes, or of one of them. Raises AjetError."""
    from ajet.reports.folder import read_run
    from ajet.reports.recording import record

    run = read_run(run_dir)
    entries = run.entries if episode is None else [run.find(episode)]
    record(run.dir, map(run.line, entries)).write(file)
    print(f"recorded: {file}, with {_counted(len(entries), 'episode')}")


def run_prepared(job: Job, recording: Path | None = None) -> Path:
    """Run a job and print its result, or where to find what it has done so far; its run folder. With ``recording``, write its
    episodes to that file, however the run ends."""
    from ajet.cli.summary import describe_ended, describe_result
    from ajet.reports.progress import make_progress
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
        finally:
            if recording is not None and progress.run_dir is not None:
                write_recording(progress.run_dir, recording)
    print(describe_result(result))
    return result.run_dir
