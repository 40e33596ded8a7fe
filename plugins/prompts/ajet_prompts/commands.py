"""``ajet tune-prompt``: search better texts for an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ajet.cli.options import JobFile, JudgeName, Seed, Sets, Tasks, Validation, With, Workflow, flag


def app(
    job_file: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    validation: Validation = None,
    judge: JudgeName = None,
    model: Annotated[
        str | None, typer.Option(help="The agent's model: a folder, a Hugging Face id, or a recipe.")
    ] = None,
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
    reflections: Annotated[int | None, typer.Option(help="Maximum calls of that model; default: 60.")] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Maximum number of episodes; default: no limit.")
    ] = None,
    cost: Annotated[
        float | None, typer.Option(help="Maximum cost, in the currency of the prices in the job.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the best texts here, too.")
    ] = None,
    then_train: Annotated[
        bool, typer.Option("--then-train", help="Afterwards train the job with the best texts.")
    ] = False,
    seed: Seed = None,
    with_: With = None,
    sets: Sets = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Resume a search; no reply is paid for twice.")
    ] = None,
) -> None:
    """Search better texts for the places where the agent calls ajet.prompt; no weights change."""
    import shutil

    from ajet.interfaces.helpers import check_output
    from ajet.interfaces.prompts import read_prompts
    from ajet.job import DEFAULT_BACKBONE
    from ajet.runs.arguments import run_layers, tune_layers
    from ajet.types import ConfigError

    if bool(reflection) and not endpoint:
        raise ConfigError("--reflection: name the address of the model's API, too: --endpoint URL.")
    if output:
        check_output("--output", output)
    if resume and then_train:
        raise ConfigError(
            "--then-train: cannot be combined with --resume; run the job with --set prompts=FILE."
        )
    proposer = {"type": "openai", "base_url": endpoint, "model": reflection} if reflection else None
    given: dict[str, Any] = {
        "workflow": workflow,
        "tasks": tasks,
        "validation": validation,
        "judge": judge,
        "model": model,
        "seed": seed,
    }
    layers = tune_layers(
        flag,
        job_file,
        reflection=proposer,
        reflections=reflections,
        episodes=episodes,
        cost=cost,
        sets=sets,
        resume=resume,
        **given,
    )
    found = _run(layers, with_, resume) / "prompts.yaml"
    if output:
        shutil.copyfile(found, output)
        print(f"written to {output}")
    if then_train:
        layers = run_layers(flag, job_file, sets=sets, **given)
        layers.set("prompts", read_prompts(found), str(found), Path.cwd())
        if layers.job().backbone.name == "prompts":
            layers.set("backbone", DEFAULT_BACKBONE, "--then-train", Path.cwd())
        _run(layers, with_, None)


def _run(layers: Any, with_: list[str] | None, resume: Path | None) -> Path:
    """Run a job and print its result; its run folder."""
    from contextlib import ExitStack

    from ajet.cli.run import run_prepared
    from ajet.interfaces.progress import reporting_to
    from ajet.job.layers import import_from_here
    from ajet.job.prepare import prepare
    from ajet.reports.progress import make_progress
    from ajet.runs.run_dir import held
    from ajet.services.supervisor import with_services
    from ajet.utils.terminal import tell

    import_from_here()
    with ExitStack() as stack:
        if resume is not None:
            stack.enter_context(held(resume.resolve(), tell))
        stack.enter_context(with_services(layers, with_))
        with make_progress() as progress, reporting_to(progress):
            job = prepare(layers, resume=resume.resolve() if resume is not None else None)
        return run_prepared(job)
