"""``ajet tune-prompt``: search better texts for an agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.options import JobFile, Judge, Model, Seed, Sets, Tasks, Validation, With, Workflow, option
from ajet.job.arguments import TUNING

if TYPE_CHECKING:
    from ajet.job.config import Layers


def app(
    job: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    validation: Validation = None,
    judge: Judge = None,
    model: Model = None,
    reflection: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the model that proposes texts, at --endpoint."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="OPENAI_BASE_URL",
            help="Base URL of the OpenAI-compatible API of that model, including /v1.",
        ),
    ] = None,
    reflections: Annotated[int | None, option("reflections", TUNING)] = None,
    episodes: Annotated[int | None, option("episodes", TUNING)] = None,
    cost: Annotated[float | None, option("cost", TUNING)] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the best texts here, too.")
    ] = None,
    then_train: Annotated[
        bool, typer.Option("--then-train", help="Afterwards train the job with the best texts.")
    ] = False,
    seed: Seed = None,
    services: With = None,
    set: Sets = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Resume a search; no reply is paid for twice.")
    ] = None,
) -> None:
    """Search better texts for the places where the agent calls ajet.prompt; no weights change."""
    given = locals()
    import shutil

    from ajet import ConfigError
    from ajet.interfaces.helpers import check_output
    from ajet.interfaces.prompts import read_prompts
    from ajet.job import DEFAULT_BACKBONE
    from ajet.runs.jobs import job_of
    from ajet_prompts.api import tune_layers

    if bool(reflection) and not endpoint:
        raise ConfigError("--reflection: name the address of the model's API, too: --endpoint URL.")
    if output:
        check_output("--output", output)
    if resume and then_train:
        raise ConfigError(
            "--then-train: cannot be combined with --resume; run the job with --set prompts=FILE."
        )
    proposer = {"type": "openai", "base_url": endpoint, "model": reflection} if reflection else None
    file = _run(tune_layers({**given, "reflection": proposer}), services, resume) / "prompts.yaml"
    if output:
        shutil.copyfile(file, output)
        print(f"written to {output}")
    if then_train:
        layers = job_of({name: value for name, value in given.items() if name not in TUNING})
        layers.set("prompts", read_prompts(file), str(file), Path.cwd())
        if layers.job().backbone.name == "prompts":
            layers.set("backbone", DEFAULT_BACKBONE, "--then-train", Path.cwd())
        _run(layers, services, None)


def _run(layers: Layers, services: list[str] | None, resume: Path | None) -> Path:
    """Run a job and print its result; its run folder."""
    from ajet.cli.run import run_and_tell
    from ajet.cli.summary import describe_result
    from ajet.reports.progress import make_progress
    from ajet.runs.jobs import prepared

    with make_progress() as progress, prepared(layers, progress, services, resume) as job:
        result = run_and_tell(job, progress)
    print(describe_result(result))
    return result.run_dir
