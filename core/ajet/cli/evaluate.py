"""``ajet eval``: score a workflow with a checkpoint, a model, or any OpenAI-compatible endpoint, or compare several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ajet.cli.options import JobFile, JudgeName, Seed, Sets, Tasks, With, Workflow, flag

if TYPE_CHECKING:
    from ajet.interfaces.engine import ChatModelPlugin
    from ajet.job.config import Layers
    from ajet.job.job import Job
    from ajet.reports.comparison import Comparison


def evaluate(
    job_file: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    judge: JudgeName = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint folder or Hugging Face id, which the engine of eval.engine serves; default: the job's."
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Base URL of an OpenAI-compatible API, including /v1.")
    ] = None,
    endpoint_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model at the endpoint.")
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Temperature 0 for calls in which the agent sets none.")
    ] = False,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Compare models: names of the job's `models`, checkpoint folders or Hugging Face ids.",
        ),
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="Maximum number of tasks.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Episodes of each task; default: 1.")] = None,
    seed: Seed = None,
    with_: With = None,
    sets: Sets = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Resume a comparison; finished episodes are kept.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Score a workflow on the validation tasks of a job, else on its tasks; or compare models on them.

    Exit code of a comparison: 0 if one model is significantly better than the others, 3 if there is no difference, 1 if a
    model failed.
    """
    from ajet.interfaces.progress import reporting_to
    from ajet.job.layers import import_from_here
    from ajet.job.prepare import prepare
    from ajet.reports.progress import make_progress
    from ajet.runs.arguments import check_several, endpoint_answers, evaluate_layers
    from ajet.services.supervisor import with_services

    several = models is not None or resume is not None
    check_several(flag, several, model=model, endpoint=endpoint, endpoint_model=endpoint_model)
    layers = evaluate_layers(
        flag,
        job_file,
        workflow=workflow,
        tasks=tasks,
        judge=judge,
        model=model,
        endpoint=endpoint,
        greedy=greedy,
        episodes=episodes,
        repeats=repeats,
        seed=seed,
        sets=sets,
        several=several,
        resume=resume,
    )
    import_from_here()
    if several:
        _compare(layers, with_, models, resume, as_json)
    answers = endpoint_answers(flag, endpoint, endpoint_model, model)
    with with_services(layers, with_):
        with make_progress() as progress, reporting_to(progress):
            job = prepare(layers)
        _evaluate(job, answers, as_json)


def _evaluate(job: Job, answers: ChatModelPlugin | None, as_json: bool) -> None:
    import json

    from ajet.cli.summary import describe_ended, describe_metrics_table
    from ajet.reports.progress import make_progress
    from ajet.runs.train import evaluate

    with make_progress() as progress:
        try:
            metrics = evaluate(job.with_progress(progress), answers=answers)
        except KeyboardInterrupt:
            progress.say(describe_ended("interrupted", progress.run_dir))
            raise
    print(describe_metrics_table(metrics, greedy=job.config.eval.sampling.temperature == 0))
    if as_json:
        print(
            json.dumps(
                {"model": job.model if answers is None else answers.model_dump(mode="json"), **metrics}
            )
        )


def _compare(
    layers: Layers, with_: list[str] | None, models: str | None, resume: Path | None, as_json: bool
) -> NoReturn:
    import json

    from ajet.interfaces.progress import reporting_to
    from ajet.job.prepare import prepare
    from ajet.reports.comparison import describe_comparison, read_comparison
    from ajet.reports.progress import make_progress
    from ajet.runs.selection import checked, compare_models, named_candidates, resumed_candidates
    from ajet.services.supervisor import with_services

    with with_services(layers, with_), make_progress() as progress:
        with reporting_to(progress):
            folder = resume.resolve() if resume is not None else None
            job = prepare(layers, resume=folder)
            names = [name.strip() for name in (models or "").split(",") if name.strip()]
            candidates = (
                resumed_candidates(layers, folder)
                if models is None and folder is not None
                else checked(named_candidates(layers, names, flag("models")), flag("models"))
            )
        try:
            run_dir = compare_models(job.with_progress(progress), candidates)
        except KeyboardInterrupt:
            progress.say(f"interrupted; resume with: ajet eval --resume {progress.run_dir}")
            raise
    comparison = read_comparison(run_dir)
    print(describe_comparison(comparison))
    if as_json:
        print(json.dumps({"run_dir": str(run_dir), **comparison.as_json()}))
    raise typer.Exit(_exit_code(comparison))


def _exit_code(comparison: Comparison) -> int:
    if not comparison.is_complete:
        return 1
    return 0 if comparison.is_significant else 3
