"""``ajet run``: prepare a job, run it on its backbone, print the result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ajet.cli.options import (
    Backbone,
    JobFile,
    Judge,
    MemoryLimit,
    Model,
    Seed,
    Sets,
    Tasks,
    Validation,
    With,
    Workflow,
    option,
    with_options,
)

if TYPE_CHECKING:
    from ajet.interfaces.backbone import RunResult
    from ajet.job.config import Layers
    from ajet.job.job import Job
    from ajet.reports.progress import Lines


def run(
    job: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    validation: Validation = None,
    judge: Judge = None,
    model: Model = None,
    backbone: Backbone = None,
    steps: Annotated[int | None, option("steps")] = None,
    learning_rate: Annotated[float | None, option("learning_rate")] = None,
    seed: Seed = None,
    deterministic: Annotated[bool | None, option("deterministic")] = None,
    memory_limit: MemoryLimit = None,
    name: Annotated[str | None, option("name")] = None,
    tags: Annotated[list[str] | None, option("tags", flag="--tag")] = None,
    services: With = None,
    set: Sets = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the resolved job; run nothing.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Resume a run from its last checkpoint.")
    ] = None,
    from_: Annotated[
        Literal["clean"] | None,
        typer.Option(
            "--from",
            metavar="clean",
            help="With --resume and --judge: go on, in a new folder beside the run's, from before the first update that its judge made "
            "wrong.",
        ),
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
    given = locals()
    from ajet.cli.summary import describe_result
    from ajet.reports.progress import make_progress
    from ajet.runs.jobs import job_of, prepared
    from ajet.utils.breakpoints import enable
    from ajet.utils.files import check_output

    enable({tag.strip() for tag in (break_ or "").split(",") if tag.strip()})
    if replay is not None:
        replay_file(given)
        return
    if record is not None:
        check_output("--record", record)
    if from_ is not None:
        given["resume"] = resume = clean_run(resume, judge, dry_run)
    layers = job_of(given)
    with (
        make_progress() as progress,
        prepared(layers, progress, services, resume, hold=not dry_run) as ready,
    ):
        if dry_run:
            said = describe_job(ready, layers)
        else:
            said = describe_result(run_and_tell(ready, progress, record))
            progress.keep(said)
    print(said)


def clean_run(run: Path | None, judge: str | None, dry_run: bool) -> Path:
    """A new run folder beside that of a run, which goes on from before the first wrong update. Prints what was wrong. Raises
    AjetError."""
    from ajet import plugin_names
    from ajet.reports.folder import find_run
    from ajet.types import AjetError, ConfigError

    if run is None or dry_run:
        fault = "writes a folder; remove dry_run=" if dry_run else "needs resume=, the run to go on with"
        raise ConfigError("from=", f"{fault}.")
    run = find_run(run)
    folder = run.with_name(f"{run.name}-clean")
    if folder.exists():
        raise ConfigError(
            "from=", f"has been used with this run. Go on: ajet run --resume {shlex.quote(str(folder))}"
        )
    rejudged = plugin_names.rejudge(run, judge, clean=folder)
    print(f"{rejudged}\n")
    if rejudged.first_wrong_step is None:
        raise AjetError(f"{run}: no update was wrong by this judge, so there is nothing to go back from.")
    return folder


def describe_job(job: Job, layers: Layers) -> str:
    """The resolved job as a job file; its comments list what was set, and where."""
    from ajet.job.layers import provenance
    from ajet.job.prepare import resolved_yaml
    from ajet.utils.terminal import table

    counts = f"{len(job.tasks)} tasks, {len(job.validation)} validation tasks. Nothing was run."
    given = [(key, value, with_options(source)) for key, value, source in provenance(layers)]
    comment = (
        f"# {counts}\n# Set by the user or derived (everything else is a fixed default):\n"
        f"{table(given, indent='#   ')}"
    )
    foreign = job.backbone.describe(job)
    return f"{comment}\n{resolved_yaml(job)}".rstrip() + (f"\n---\n{foreign}" if foreign else "")


_REPLAYED = ("job", "workflow", "judge", "services", "set", "replay", "break_")
"""What `ajet run --replay` takes; all else comes from the recording."""


def replay_file(given: Mapping[str, Any]) -> None:
    """Replay a recording and print how each episode compares. Raises typer.Exit(1) if one differs."""
    from ajet.reports.progress import make_progress
    from ajet.rollout.recording import Recording
    from ajet.runs.jobs import prepared
    from ajet.runs.replay import replay, replay_layers
    from ajet.types import ConfigError
    from ajet.utils.terminal import readable

    file = given["replay"]
    for name, value in given.items():
        if name not in _REPLAYED and value not in (None, False):
            raise ConfigError(
                f"{name}= has no effect with replay=",
                f"tasks and replies are those of {file}; remove it.",
            )
    episodes = Recording.read(file).episodes
    layers = replay_layers(given, episodes)
    with make_progress() as progress, prepared(layers, progress, given["services"]) as job:
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


def run_and_tell(job: Job, progress: Lines, recording: Path | None = None) -> RunResult:
    """Run a prepared job, as `run_told` does. With ``recording``, write its episodes to that file, however the run ends."""
    from ajet.reports.progress import run_told

    try:
        return run_told(job, progress)
    finally:
        if recording is not None and progress.run_dir is not None:
            write_recording(progress.run_dir, recording)
