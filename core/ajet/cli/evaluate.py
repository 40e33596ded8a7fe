"""``ajet eval``: score a workflow with a checkpoint, a model, or any OpenAI-compatible endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.options import JobFile, JudgeName, Seed, Sets, Tasks, With, Workflow

if TYPE_CHECKING:
    from ajet.interfaces.engine import ChatModelPlugin
    from ajet.job.prepare import Job


def evaluate(
    job_file: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    judge: JudgeName = None,
    model: Annotated[
        str | None,
        typer.Option(help="Checkpoint folder or Hugging Face id; the engine of eval.engine serves it."),
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
    from ajet.cli.layers import import_from_here, job_layers, lay_flag, lay_sets, lay_tasks, services
    from ajet.cli.progress import make_progress
    from ajet.interfaces.progress import told_to
    from ajet.job.prepare import prepare

    layers = job_layers(job_file)
    if tasks is not None:  # they replace the job's own validation tasks
        layers.set("task.validation", None, "--tasks", Path.cwd())
    lay_flag(layers, "--workflow", "workflow", workflow)
    lay_tasks(layers, "--tasks", "task.reader", tasks)
    lay_flag(layers, "--judge", "judge", judge)
    lay_flag(layers, "--model", "model", model)
    lay_flag(layers, "--episodes", "eval.episodes", episodes)
    lay_flag(layers, "--seed", "run.seed", seed)
    if greedy:
        lay_flag(layers, "--greedy", "eval.sampling.temperature", 0.0)
        lay_flag(layers, "--greedy", "eval.greedy", False)  # it is greedy already: one pass is enough
    lay_flag(
        layers, "ajet eval", "backbone", "debug"
    )  # nothing is trained, so no backbone needs to be installed
    lay_sets(layers, sets)
    import_from_here()
    answers = _endpoint(endpoint, endpoint_model, model)
    with services(layers, with_):
        with make_progress() as progress, told_to(progress):
            job = prepare(layers)
        _evaluate(job, answers, as_json)


def _endpoint(url: str | None, name: str | None, model: str | None) -> ChatModelPlugin | None:
    from ajet.plugins import validated
    from ajet.services.chat_models import OpenAIChatModel
    from ajet.types import ConfigError

    if url is None and name is None:
        return None
    if url is None or name is None:
        raise ConfigError("--endpoint URL and --endpoint-model NAME go together; give both.")
    if model is not None:
        raise ConfigError("--model and --endpoint exclude each other; leave one out.")
    return validated(OpenAIChatModel, {"base_url": url, "model": name}, "--endpoint")


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
