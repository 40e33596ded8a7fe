"""``ajet eval``: score a workflow with a checkpoint, a model, or any OpenAI-compatible endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.options import JobFile, JudgeName, Seed, Sets, Tasks, With, Workflow, flag

if TYPE_CHECKING:
    from ajet.interfaces.engine import ChatModelPlugin
    from ajet.job.job import Job


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
    episodes: Annotated[int | None, typer.Option(help="Maximum number of tasks, one episode each.")] = None,
    seed: Seed = None,
    with_: With = None,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Score a workflow on the validation tasks of a job, else on its tasks."""
    from ajet.cli.layers import services
    from ajet.cli.progress import make_progress
    from ajet.interfaces.progress import told_to
    from ajet.job.layers import import_from_here
    from ajet.job.prepare import prepare
    from ajet.runs.arguments import endpoint_answers, evaluate_layers

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
        seed=seed,
        sets=sets,
    )
    import_from_here()
    answers = endpoint_answers(flag, endpoint, endpoint_model, model)
    with services(layers, with_):
        with make_progress() as progress, told_to(progress):
            job = prepare(layers)
        _evaluate(job, answers, as_json)


def _evaluate(job: Job, answers: ChatModelPlugin | None, as_json: bool) -> None:
    import json

    from ajet.cli.progress import make_progress
    from ajet.cli.summary import describe_ended, describe_metrics_table
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
