"""``ajet eval``: score a workflow with a checkpoint, a model, or any OpenAI-compatible endpoint, or compare several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ajet.cli.options import (
    Episodes,
    JobFile,
    Judge,
    MemoryLimit,
    Model,
    Seed,
    Sets,
    Tasks,
    With,
    Workflow,
    option,
)

if TYPE_CHECKING:
    from ajet.job.config import Layers


def evaluate(
    job: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    judge: Judge = None,
    model: Model = None,
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
    episodes: Episodes = None,
    repeats: Annotated[int | None, option("repeats")] = None,
    seed: Seed = None,
    memory_limit: MemoryLimit = None,
    services: With = None,
    set: Sets = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Resume a comparison; finished episodes are kept.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Score a workflow on the validation tasks of a job, else on its tasks; or compare models on them.

    Exit code of a comparison: 0 if one model is significantly better than the others, 3 if there is no difference, 1 if a
    model failed.
    """
    given = locals()
    from ajet.runs.jobs import evaluate_layers
    from ajet.types import ConfigError

    several = models is not None or resume is not None
    for name in ("model", "endpoint", "endpoint_model"):
        if several and given[name] is not None:
            raise ConfigError(
                f"{name}= and models=", "one names one model, the other several; leave one out."
            )
    if several:
        _compare(given)
    _evaluate(evaluate_layers(given), given)


def _evaluate(layers: Layers, given: Mapping[str, Any]) -> None:
    import json

    from ajet.cli.summary import describe_metrics_table
    from ajet.reports.progress import describe_ended, make_progress
    from ajet.runs.jobs import endpoint_answers, prepared
    from ajet.runs.train import evaluate

    answers = endpoint_answers(given)
    with make_progress() as progress, prepared(layers, progress, given["services"]) as job:
        try:
            metrics = evaluate(job, answers=answers)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(describe_ended("interrupted", progress.run_dir)) from None
    print(describe_metrics_table(metrics, greedy=job.config.eval.sampling.temperature == 0))
    if given["as_json"]:
        model = job.model if answers is None else answers.model_dump(mode="json")
        print(json.dumps({"model": model, **metrics}))


def _compare(given: Mapping[str, Any]) -> NoReturn:
    import json

    from ajet.plugin_names import select_model

    same = ("job", "workflow", "tasks", "judge", "greedy", "episodes", "repeats", "seed", "memory_limit")
    names = [name.strip() for name in (given["models"] or "").split(",") if name.strip()]
    selection = select_model(
        **{name: given[name] for name in (*same, "resume", "set")},
        models=names,
        services=given["services"] or (),
    )
    print(selection.table())
    if given["as_json"]:
        print(json.dumps({"run_dir": str(selection.dir), **selection.comparison.as_json()}))
    raise typer.Exit(1 if not selection.comparison.is_complete else 0 if selection.is_significant else 3)
