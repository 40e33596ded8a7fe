"""Several models on the same tasks, with the same judge and seeds: runs them one after the other into one folder.

Takes a job and candidates, and writes ``models.json`` and a run folder for each candidate into a new run folder. What these
say of the models is in `ajet_selection.comparison`. A model that fails leaves the others as they are, and finished episodes
are not run again when the comparison is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ajet.interfaces.engine import ChatModelPlugin, Engine
from ajet.interfaces.judge import GroupJudge
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.models import check_model
from ajet.job.parts import build_plugin
from ajet.job.prepare import resolved
from ajet.learning.rollouts import plan_validation
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.recorder import JOURNAL, RunRecorder, live_lines
from ajet.rollout.summary import describe_failures
from ajet.runs.run_dir import as_folder, described, held, keep_job, keep_tokenizer, new_run_dir
from ajet.runs.runtime import answering_engine, evaluation_policy, open_runtime
from ajet.types import AjetError, ConfigError
from ajet.utils.asyncrun import run
from ajet.utils.files import write_whole
from ajet.utils.suggest import nearest
from ajet.utils.yaml_file import read_yaml

MODELS = "models.json"
"""The candidates of a comparison, in the order given, each with its folder and its error."""
_SAME = ("workflow", "judge", "task", "prompts", "targets", "eval")
"""Sections of the job on which an episode's reward depends."""


@dataclass(frozen=True, slots=True)
class ModelCandidate:
    """A model to compare: what ``model`` names, served by the job's engine, or a chat model."""

    name: str
    model: str = ""
    answers: ChatModelPlugin | None = None
    spec: Mapping[str, Any] | None = None
    """The chat model's spec, from which a resumed comparison builds it."""


def named_candidates(layers: Layers, names: Iterable[str], written: str) -> list[ModelCandidate]:
    """A candidate for each name: one of the job's ``models``, or a folder, a Hugging Face id or a recipe. ``written`` is the
    flag or argument that gives them. Raises ConfigError."""
    declared = layers.job().models
    return [
        chat_candidate(layers, name, declared[name], f"models.{name}")
        if name in declared
        else ModelCandidate(name, _model(name, declared, written))
        for name in names
    ]


def chat_candidate(layers: Layers, name: str, spec: Mapping[str, Any], where: str) -> ModelCandidate:
    """The candidate of a chat model's spec. Raises ConfigError."""
    if "type" not in spec:
        raise ConfigError(where, "has no `type`. Give a chat model; its name must not contain a dot.")
    return ModelCandidate(name, answers=build_plugin(layers, ChatModelPlugin, spec, where), spec=dict(spec))


def checked(candidates: Sequence[ModelCandidate], written: str) -> list[ModelCandidate]:
    """The candidates. Raises ConfigError unless they are at least two, with different names."""
    names = [candidate.name for candidate in candidates]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(written, f"{twice[0]} is named twice; remove one of the two.")
    if len(names) < 2:
        raise ConfigError(written, "name at least two models, or evaluate one with `ajet eval --model`.")
    return list(candidates)


def resumed_candidates(layers: Layers, run_dir: Path) -> list[ModelCandidate]:
    """The candidates of a comparison that is gone on with. Raises ConfigError if the folder holds none."""
    return [
        chat_candidate(layers, line["name"], line["spec"], str(run_dir / MODELS))
        if line["spec"]
        else ModelCandidate(line["name"], line["model"])
        for line in read_models(run_dir)
    ]


def read_models(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of ``models.json``: name, folder, model or spec, and error: text, or None after success. Raises
    ConfigError."""
    try:
        lines: list[dict[str, Any]] = json.loads((run_dir / MODELS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{run_dir}: holds no {MODELS}, so no models were compared there.") from None
    return lines


def compare_models(job: Job, candidates: Sequence[ModelCandidate]) -> Path:
    """Evaluate each candidate on the job's validation tasks, else its tasks; returns the run folder. With ``job.resume``
    only episodes that have not ended well are run. Raises ConfigError if the job was changed meanwhile."""
    job = replace(job, validation=job.validation or job.tasks)
    run_dir = job.resume or new_run_dir(job, "eval")
    with held(run_dir, job.progress.say):
        if job.resume:
            _check_same(job, candidates, run_dir)
            job.progress.started(run_dir)
        tasks = described(job.validation)
        names = [f"{number}-{as_folder(c.name)}" for number, c in enumerate(candidates, 1)]
        lines = [
            {
                "name": c.name,
                "folder": name,
                "model": c.model,
                "spec": c.spec,
                "error": "it has not finished",
                "tasks": tasks,
            }
            for name, c in zip(names, candidates, strict=True)
        ]
        for line, candidate in zip(lines, candidates, strict=True):
            write_whole(run_dir / MODELS, json.dumps(lines, indent=2))
            line["error"] = _error_of(job, candidate, run_dir / str(line["folder"]))
            said = f"failed: {line['error']}" if line["error"] else "finished"
            job.progress.say(f"{candidate.name}: {said}")
        write_whole(run_dir / MODELS, json.dumps(lines, indent=2))
    return run_dir


def _error_of(job: Job, candidate: ModelCandidate, folder: Path) -> str | None:
    """Run what is left of a candidate's episodes; in words why it failed, or None."""
    try:
        return _evaluate(job, candidate, folder)
    except Exception as error:
        name = "" if isinstance(error, AjetError) else f"{type(error).__name__}: "
        return " ".join(f"{name}{error}".splitlines())


def _evaluate(job: Job, candidate: ModelCandidate, folder: Path) -> str | None:
    if candidate.answers is None:
        job = job.with_model(candidate.model)
    folder.mkdir(exist_ok=True)
    keep_job(folder, job)
    settings = job.config.eval
    plans = plan_validation(
        job.validation,
        0,
        "validation",
        limit=settings.episodes,
        repeats=settings.repeats,
        seed=job.config.run.seed,
    )
    with closing(RunRecorder(folder)) as recorder:
        kept = _finished(folder, plans, whole_groups=isinstance(job.judge, GroupJudge))
        recorder.supersede(0, dict.fromkeys(kept))
        left = [plan for plan in plans if plan.id not in kept]
        if not left:
            return None
        engine = None if candidate.answers else answering_engine(job)
        ended = run(_episodes(job, candidate, engine, recorder, left), job.progress.say)
    if not kept and all(episode.failure for episode in ended):
        return f"all {len(ended)} episodes failed: {describe_failures(ended)}"
    return None


async def _episodes(
    job: Job, candidate: ModelCandidate, engine: Engine | None, recorder: RunRecorder, plans: Sequence[Plan]
) -> list[Episode]:
    if engine:
        keep_tokenizer(recorder.dir, engine.tokenizer, job.progress)
    finished: list[str] = []

    def done(episode: Episode) -> None:
        finished.append(episode.id)
        recorder.episode(episode, phase="validation", step=0)
        job.progress.episodes(candidate.name, len(finished), len(plans))

    async with open_runtime(job, engine=engine, answers=candidate.answers) as runtime:
        policy = evaluation_policy(job, job.config.eval.sampling.temperature)
        return await runtime.rollout(policy).run(plans, done)


def _finished(folder: Path, plans: Sequence[Plan], *, whole_groups: bool) -> set[str]:
    """The ids of episodes that need not run again: judged ones, with a group judge those of groups without a failure."""
    done = {line["id"] for line in live_lines(folder / JOURNAL) if line["failure"] is None}
    if not whole_groups:
        return done
    broken = {plan.group for plan in plans if plan.id not in done}
    return {plan.id for plan in plans if plan.group not in broken}


def _model(name: str, declared: Mapping[str, Any], written: str) -> str:
    """What a job's ``model`` would be. Raises ConfigError."""
    try:
        check_model(name, written)
    except ConfigError as error:
        if declared:
            error.text += f" The job's `models` are {', '.join(declared)}{nearest(name, declared)}."
        raise
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


def _check_same(job: Job, candidates: Sequence[ModelCandidate], run_dir: Path) -> None:
    """Raise ConfigError if finished episodes were run with another job or other models."""
    lines = read_models(run_dir)
    names = [line["name"] for line in lines]
    if [candidate.name for candidate in candidates] != names:
        raise ConfigError(f"{run_dir}: compares {', '.join(names)}; name the same models, or none.")
    began, goes_on = read_yaml(run_dir / "job.yaml"), resolved(job)
    seeds = [job_values["run"]["seed"] for job_values in (began, goes_on)]
    changed = next((key for key in _SAME if began.get(key) != goes_on.get(key)), None)
    if seeds[0] != seeds[1]:
        changed = "run.seed"
    tasks = described(job.validation)
    for line, candidate in zip(lines, candidates, strict=True):
        if _named(line["model"], line["spec"]) != _named(candidate.model, candidate.spec):
            changed = f"the model {candidate.name}"
        elif line.get("tasks", tasks) != tasks:
            changed = "the content of the tasks"
    if changed:
        raise ConfigError(
            f"{changed}: differs from the job in {run_dir}, with which the finished episodes were run. Leave it as it was, or "
            "start a new comparison."
        )


def _named(model: str, spec: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """What says which model a candidate is. The rest of its spec, such as the address, may change when a comparison is resumed."""
    return model, (spec or {}).get("type"), (spec or {}).get("model")
