"""`run`, `evaluate`, `check`, `sft` and `dpo`: what the commands of these names do, with objects in place of names."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet.api.calling import anywhere, awaitable
from ajet.api.results import Check, Evaluation, Run
from ajet.interfaces.judge import Judge
from ajet.interfaces.progress import reporting_to
from ajet.interfaces.reader import Reader
from ajet.job import DEFAULT_BACKBONE
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.layers import import_from_here
from ajet.job.objects import ARGUMENTS
from ajet.job.prepare import prepare
from ajet.reports.check import page
from ajet.reports.progress import Lines, make_progress
from ajet.runs.arguments import (
    check_layers,
    checking_engine,
    dpo_parts,
    endpoint_answers,
    evaluate_layers,
    require_answers,
    run_layers,
    sft_backbone,
)
from ajet.runs.check import check as run_check
from ajet.runs.restarts import run_job
from ajet.runs.run_dir import held
from ajet.runs.train import dpo as run_dpo
from ajet.runs.train import evaluate as run_evaluate
from ajet.runs.train import sft as run_sft
from ajet.services.supervisor import with_services
from ajet.types import ConfigError, JudgeOutput, Task
from ajet.utils.terminal import tell

AnyPath = str | os.PathLike[str]
AnyTasks = AnyPath | Reader | type[Reader] | Iterable[Task | Mapping[str, Any]] | Mapping[str, Any]
"""A file, a reader, a list of tasks or of records, or ``{"type": name, …}``."""
Verdict = float | bool | tuple[float, bool] | JudgeOutput
AnyJudge = str | Mapping[str, Any] | Judge | type[Judge] | Callable[..., Verdict | Awaitable[Verdict]]
"""A name, ``{"type": name, …}``, a judge or a class of judges, or a function of (task, output[, episode])."""


@anywhere
def run(
    job: AnyPath | None = None,
    *,
    workflow: object | None = None,
    tasks: AnyTasks | None = None,
    validation: AnyTasks | None = None,
    judge: AnyJudge | None = None,
    model: AnyPath | None = None,
    backbone: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    deterministic: bool | None = None,
    memory_limit: str | None = None,
    run_dir: AnyPath | None = None,
    resume: AnyPath | None = None,
    services: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Run:
    """Run a job, as `ajet run` does: train it, or on the backbone ``debug`` only run a few episodes.

    ``job`` is a job file; the other arguments lie over it, and ``set`` over all: ``{"train.learning_rate": 1e-4}``.
    ``workflow`` is a function, a class with ``execute``, an instance of one, what a plugin knows to run (a compiled
    graph), or a string: ``pkg.module:Name``, ``path/to/file.py:Name``, ``cmd:…``. ``run_dir`` is the folder of run folders,
    ``resume`` a run folder to go on with; functions that no import leads to must be given again. ``services`` are started
    as by ``--with``. Without ``progress`` nothing is printed. Raises AjetError.
    """
    resumed = as_path(resume)
    layers = run_layers(
        argument,
        as_path(job),
        workflow=workflow,
        tasks=tasks,
        validation=validation,
        judge=judge,
        model=as_text(model),
        backbone=backbone,
        steps=steps,
        seed=seed,
        deterministic=deterministic,
        memory_limit=memory_limit,
        run_dir=as_text(run_dir),
        sets=set,
        resume=resumed,
    )
    with prepared(layers, services, progress, resumed) as (ready, _):
        return Run(run_job(ready).run_dir)


@anywhere
def evaluate(
    job: AnyPath | None = None,
    *,
    workflow: object | None = None,
    tasks: AnyTasks | None = None,
    judge: AnyJudge | None = None,
    model: AnyPath | None = None,
    endpoint: str | None = None,
    endpoint_model: str | None = None,
    greedy: bool = False,
    episodes: int | None = None,
    seed: int | None = None,
    run_dir: AnyPath | None = None,
    services: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Score a workflow, as `ajet eval` does: with a checkpoint, a model, or an OpenAI-compatible endpoint.

    ``model`` may be left out with a job file, whose model is then evaluated, or with ``endpoint``. ``tasks`` default to the
    validation tasks of a job, else its tasks; ``episodes`` is the most of them to run. ``greedy``
    sets temperature 0 for calls in which the agent sets none. All else is as in `run`. Raises AjetError.
    """
    layers = evaluate_layers(
        argument,
        as_path(job),
        workflow=workflow,
        tasks=tasks,
        judge=judge,
        model=as_text(model),
        endpoint=endpoint,
        greedy=greedy,
        episodes=episodes,
        seed=seed,
        run_dir=as_text(run_dir),
        sets=set,
    )
    answers = endpoint_answers(argument, endpoint, endpoint_model, as_text(model))
    with prepared(layers, services, progress) as (ready, lines):
        figures = run_evaluate(ready, answers=answers)
        assert lines.run_dir is not None
        return Evaluation(figures, lines.run_dir)


@anywhere
def check(
    job: AnyPath | None = None,
    *,
    workflow: object | None = None,
    tasks: AnyTasks | None = None,
    judge: AnyJudge | None = None,
    model: AnyPath | None = None,
    answers: AnyPath | None = None,
    context_length: int | None = None,
    first: int = 4,
    group_size: int = 4,
    seed: int | None = None,
    run_dir: AnyPath | None = None,
    services: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Check:
    """Run a few episodes without training, as `ajet check` does: what is captured, what merges, what breaks and why.

    ``group_size`` episodes of each of the ``first`` tasks are run. ``answers`` is a file of rules that answer in place of
    the model. All else is as in `run`. Raises AjetError; episodes that fail are in the report.
    """
    require_answers(argument, as_path(answers), context_length)
    layers = check_layers(
        argument,
        as_path(job),
        workflow=workflow,
        tasks=tasks,
        judge=judge,
        model=as_text(model),
        seed=seed,
        run_dir=as_text(run_dir),
        sets=set,
    )
    with prepared(layers, services, progress) as (ready, _):
        engine = checking_engine(ready, as_path(answers), context_length)
        report = run_check(ready, engine, tasks=first, group_size=group_size)
        return Check(report, page(ready, report))


@anywhere
def sft(
    *,
    model: AnyPath,
    transcripts: AnyPath,
    output: AnyPath,
    backbone: str = DEFAULT_BACKBONE,
    epochs: int = 1,
    batch_size: int = 32,
    learning_rate: float = 1e-5,
    seed: int = 0,
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Run:
    """Fine-tune a model on transcripts, as `ajet sft` does: every assistant turn of a file with one
    ``{"messages": […], "tools": […]}`` a line is learned. ``output`` is a new folder. Raises AjetError."""
    file, folder = Path(transcripts).expanduser(), Path(output).expanduser().resolve()
    chosen = sft_backbone(argument, backbone, set, file, folder)
    with _progress(progress) as lines:
        run_sft(
            backbone=chosen,
            model=str(model),
            transcripts=file,
            output=folder,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
            progress=lines,
        )
    return Run(folder)


@anywhere
def dpo(
    *,
    model: AnyPath,
    pairs: AnyPath,
    output: AnyPath,
    backbone: str = DEFAULT_BACKBONE,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    epochs: int = 1,
    batch_size: int = 32,
    learning_rate: float = 1e-6,
    seed: int = 0,
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Run:
    """Optimize a model on preferences, as `ajet dpo` does: of a file with one ``{"prompt": […], "chosen": […], "rejected": […]}``
    a line, the chosen answers become likelier than the rejected ones. ``output`` is a new folder. Raises AjetError."""
    file, folder = Path(pairs).expanduser(), Path(output).expanduser().resolve()
    fields = {"beta": beta, "label_smoothing": label_smoothing}
    chosen, algorithm = dpo_parts(argument, backbone, set, file, folder, fields)
    with _progress(progress) as lines:
        run_dpo(
            backbone=chosen,
            model=str(model),
            pairs=file,
            output=folder,
            algorithm=algorithm,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
            progress=lines,
        )
    return Run(folder)


arun = awaitable(run)
aevaluate = awaitable(evaluate)
acheck = awaitable(check)


class _Quiet(Lines):
    """Prints nothing, and keeps the run folder."""

    def _print(self, text: str) -> None: ...


@contextmanager
def prepared(
    layers: Layers, services: Sequence[str], shown: bool, resume: Path | None = None, read_tasks: bool = True
) -> Iterator[tuple[Job, Lines]]:
    """A block with the job of these layers, its services and its progress. Raises ConfigError that names the argument."""
    import_from_here()
    with _progress(shown) as lines, _held(resume), with_services(layers, services):
        with reporting_to(lines):
            try:
                job = prepare(layers, resume=resume, read_tasks=read_tasks)
            except ConfigError as error:
                raise type(error)(_by_argument(str(error), layers)) from error.__cause__
        yield job.with_progress(lines), lines


@contextmanager
def _held(run_dir: Path | None) -> Iterator[None]:
    if run_dir is None:
        yield
        return
    with held(run_dir, tell):
        yield


@contextmanager
def _progress(shown: bool) -> Iterator[Lines]:
    with make_progress() if shown else _Quiet(sys.stderr) as lines:
        yield lines


def _by_argument(message: str, layers: Layers) -> str:
    """An error with the argument in place of its key, where the value came from that argument."""
    for key, written in {**ARGUMENTS, "model": "model="}.items():
        rest = message.removeprefix(key)
        if rest != message and rest[0] in " :." and layers.source_of(key) == written:
            return f"{written}{rest.removeprefix('.type')}"
    return message


def argument(name: str) -> str:
    """An argument as it is written in a call."""
    return f"{name}="


def as_text(path: AnyPath | None) -> str | None:
    """A path or a name as a job file holds it."""
    return None if path is None else os.fspath(path)


def as_path(path: AnyPath | None) -> Path | None:
    """An absolute path."""
    return None if path is None else Path(path).expanduser().resolve()
