"""`run`, `evaluate`, `check`, `sft` and `dpo`: what the commands of these names do, with objects in place of names."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet.api.calling import anywhere, awaitable
from ajet.api.results import Check, Evaluation, Run
from ajet.interfaces.engine import ChatModelPlugin
from ajet.interfaces.judge import Judge
from ajet.interfaces.reader import Reader
from ajet.job import DEFAULT_BACKBONE
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.reports import check as check_page
from ajet.reports.progress import Lines, make_progress, run_told
from ajet.runs import jobs
from ajet.runs.check import check as run_check
from ajet.runs.jobs import (
    check_layers,
    checking_engine,
    endpoint_answers,
    evaluate_layers,
    job_of,
    require_answers,
)
from ajet.runs.train import evaluate as run_evaluate
from ajet.types import JudgeOutput, Task

AnyPath = jobs.AnyPath
AnyTasks = AnyPath | Reader | type[Reader] | Iterable[Task | Mapping[str, Any]] | Mapping[str, Any]
"""A file, a reader, a list of tasks or of records, or ``{"type": name, …}``."""
Verdict = float | bool | tuple[float, bool] | JudgeOutput
AnyJudge = str | Mapping[str, Any] | Judge | type[Judge] | Callable[..., Verdict | Awaitable[Verdict]]
"""A name, ``{"type": name, …}``, a judge or a class of judges, or a function of (task, output[, episode])."""
AnyChatModel = Mapping[str, Any] | ChatModelPlugin
"""``{"type": "openai", "base_url": …, "model": …}``, or a chat model."""


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
    learning_rate: float | None = None,
    seed: int | None = None,
    deterministic: bool | None = None,
    memory_limit: str | None = None,
    run_dir: AnyPath | None = None,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    resume: AnyPath | None = None,
    services: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Run:
    """Run a job, as `ajet run` does: train it, or on the backbone ``debug`` only run a few episodes.

    ``job`` is a job file; the other arguments lie over it, and ``set`` over all: ``{"train.batch_size": 4}``.
    ``workflow`` is a function, a class with ``execute``, an instance of one, what a plugin knows to run (a compiled
    graph), or a string: ``pkg.module:Name``, ``path/to/file.py:Name``, ``cmd:…``. ``run_dir`` is the folder of run folders,
    ``name`` and ``tags`` are the run's, ``resume`` is a run folder to go on with; functions that no import leads to must be
    given again. ``services`` are started as by ``--with``. Without ``progress`` nothing is printed. Raises AjetError.
    """
    given = locals()
    with prepared(job_of(given), given) as (ready, lines):
        return Run(run_told(ready, lines).run_dir)


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
    memory_limit: str | None = None,
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
    given = locals()
    layers, answers = evaluate_layers(given), endpoint_answers(given)
    with prepared(layers, given) as (ready, lines):
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
    memory_limit: str | None = None,
    run_dir: AnyPath | None = None,
    services: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Check:
    """Run a few episodes without training, as `ajet check` does: what is captured, what merges, what breaks and why.

    ``group_size`` episodes of each of the ``first`` tasks are run. ``answers`` is a file of rules that answer in place of
    the model. All else is as in `run`. Raises AjetError; episodes that fail are in the report.
    """
    given = locals()
    require_answers(given)
    with prepared(check_layers(given), given) as (ready, _):
        report = run_check(ready, checking_engine(ready, given), tasks=first, group_size=group_size)
        return Check(report, check_page.page(ready, report))


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
    memory_limit: str | None = None,
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Run:
    """Fine-tune a model on transcripts, as `ajet sft` does: every assistant turn of a file with one
    ``{"messages": […], "tools": […]}`` a line, or of trajectories in ATIF, is learned. ``output`` is a new folder. Raises AjetError."""
    given = locals()
    with shown_or_not(progress) as lines:
        jobs.sft(given, lines)
    return Run(Path(output).expanduser().resolve())


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
    memory_limit: str | None = None,
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Run:
    """Optimize a model on preferences, as `ajet dpo` does: of a file with one ``{"prompt": […], "chosen": […], "rejected": […]}``
    a line, the chosen answers become likelier than the rejected ones. ``output`` is a new folder. Raises AjetError."""
    given = locals()
    with shown_or_not(progress) as lines:
        jobs.dpo(given, lines)
    return Run(Path(output).expanduser().resolve())


arun = awaitable(run)
aevaluate = awaitable(evaluate)
acheck = awaitable(check)


class _Quiet(Lines):
    """Prints nothing, and keeps the run folder."""

    def _print(self, text: str) -> None: ...


@contextmanager
def prepared(layers: Layers, given: jobs.Given, *, read_tasks: bool = True) -> Iterator[tuple[Job, Lines]]:
    """`ajet.runs.jobs.prepared` for the arguments of a function, with its progress."""
    with (
        shown_or_not(given["progress"]) as lines,
        jobs.prepared(
            layers, lines, given.get("services"), given.get("resume"), read_tasks=read_tasks
        ) as job,
    ):
        yield job, lines


def shown_or_not(shown: bool) -> Lines:
    """The progress of a function that was called with this ``progress``."""
    return make_progress() if shown else _Quiet(sys.stderr)
