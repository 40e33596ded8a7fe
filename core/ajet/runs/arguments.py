"""What `run`, `evaluate` and `check` are given, as layers of the job: the same for the command line and the Python API.

``flag`` turns an argument's name into what the user wrote, for errors: ``--workflow`` or ``workflow=``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ajet.interfaces.engine import ChatModelPlugin, Engine
from ajet.job.config import Layers
from ajet.job.job import Backbone, Job
from ajet.job.layers import job_layers, lay_flag, lay_sets, lay_tasks, resumed_layers
from ajet.job.prepare import build_backbone, check_needs
from ajet.learning.algorithms import DPO
from ajet.plugins import load_plugins, validated
from ajet.runs.runtime import answering_engine, own_engine, scripted_engine
from ajet.services.chat_models import OpenAIChatModel
from ajet.types import ConfigError

Flag = Callable[[str], str]
Sets = Iterable[str] | Mapping[str, Any] | None


def run_layers(
    flag: Flag,
    job_file: Path | None,
    *,
    workflow: Any = None,
    tasks: Any = None,
    validation: Any = None,
    judge: Any = None,
    model: str | None = None,
    backbone: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    deterministic: bool | None = None,
    memory_limit: str | None = None,
    run_dir: str | None = None,
    sets: Sets = None,
    resume: Path | None = None,
) -> Layers:
    """The job to train, or to go on with. Raises ConfigError."""
    if resume is not None and job_file is not None:
        raise ConfigError(f"{flag('resume')} uses the job in {resume}; remove {job_file}.")
    layers = resumed_layers(resume, _with(flag, "resume")) if resume is not None else job_layers(job_file)
    lay_flag(layers, flag("workflow"), "workflow", workflow)
    lay_tasks(layers, flag("tasks"), "task.reader", tasks)
    lay_tasks(layers, flag("validation"), "task.validation", validation)
    lay_flag(layers, flag("judge"), "judge", judge)
    lay_flag(layers, flag("model"), "model", model)
    lay_flag(layers, flag("backbone"), "backbone", backbone)
    lay_flag(layers, flag("steps"), "train.steps", steps)
    lay_flag(layers, flag("seed"), "run.seed", seed)
    lay_flag(layers, flag("deterministic"), "run.deterministic", deterministic)
    lay_flag(layers, flag("run_dir"), "run.dir", run_dir)
    lay_sets(layers, sets)
    if memory_limit is not None:
        lay_flag(layers, flag("memory_limit"), f"{_limited(layers, flag)}.memory_limit", memory_limit)
        lay_sets(layers, sets)  # they are stronger
    return layers


def tune_layers(
    flag: Flag,
    job_file: Path | None,
    *,
    reflection: Any = None,
    answers: Any = None,
    reflections: int | None = None,
    episodes: int | None = None,
    cost: float | None = None,
    sets: Sets = None,
    resume: Path | None = None,
    **further: Any,
) -> Layers:
    """The job whose texts to tune, or the search to go on with; ``further`` are arguments of `run_layers`. Raises
    ConfigError."""
    if ("backbone", "prompts") not in load_plugins().classes:
        raise ConfigError(
            "tuning prompts needs the plugin ajet-plugin-prompts: pip install ajet-plugin-prompts."
        )
    layers = run_layers(flag, job_file, sets=sets, resume=resume, **further)
    layers.set("backbone", "prompts", "tune-prompt", Path.cwd())
    for name, value in {
        "reflection": reflection,
        "answers": answers,
        "reflections": reflections,
        "episodes": episodes,
        "cost": cost,
    }.items():
        lay_flag(layers, flag(name), f"backbone.prompts.{name}", value)
    lay_sets(layers, sets)
    return layers


def _limited(layers: Layers, flag: Flag) -> str:
    """The section of the backbone whose memory can be limited: the job's or, if that does not train, the one whose engine
    answers. Raises ConfigError if there is none."""
    plugins, name = load_plugins(), layers.job().backbone.name
    able = [name for name, cls in plugins.of(Backbone).items() if "memory_limit" in cls.model_fields]
    answers = not plugins.get(Backbone, name, "backbone.name").capabilities.trains
    section = own_engine(plugins, name).backbone if answers else name
    if section not in able:
        raise ConfigError(
            f"{flag('memory_limit')}: only the backbone {' or '.join(able)} supports it, but the job uses {name}; remove it."
        )
    return f"backbone.{section}"


def evaluate_layers(
    flag: Flag,
    job_file: Path | None,
    *,
    workflow: Any = None,
    tasks: Any = None,
    judge: Any = None,
    model: str | None = None,
    endpoint: str | None = None,
    greedy: bool = False,
    episodes: int | None = None,
    repeats: int | None = None,
    seed: int | None = None,
    run_dir: str | None = None,
    sets: Sets = None,
    several: bool = False,
    resume: Path | None = None,
) -> Layers:
    """The job to evaluate, with one model or with ``several``, or the comparison of several to go on with. Raises
    ConfigError, also if nothing names the one model: the default one is for training."""
    if resume is not None and job_file is not None:
        raise ConfigError(f"{flag('resume')} uses the job in {resume}; remove {job_file}.")
    layers = resumed_layers(resume, _with(flag, "resume")) if resume is not None else job_layers(job_file)
    if tasks is not None:  # they replace the job's own validation tasks
        layers.set("task.validation", None, flag("tasks"), Path.cwd())
    lay_flag(layers, flag("workflow"), "workflow", workflow)
    lay_tasks(layers, flag("tasks"), "task.reader", tasks)
    lay_flag(layers, flag("judge"), "judge", judge)
    lay_flag(layers, flag("model"), "model", model)
    lay_flag(layers, flag("episodes"), "eval.episodes", episodes)
    lay_flag(layers, flag("repeats"), "eval.repeats", repeats)
    lay_flag(layers, flag("seed"), "run.seed", seed)
    if greedy:
        lay_flag(layers, flag("greedy"), "eval.sampling.temperature", 0.0)
        lay_flag(layers, flag("greedy"), "eval.greedy", False)  # it is greedy already: one pass is enough
    lay_flag(layers, flag("run_dir"), "run.dir", run_dir)
    lay_flag(layers, "ajet eval", "backbone", "debug")  # nothing is trained, so no backbone is needed
    lay_sets(layers, sets)
    if job_file is None and endpoint is None and not several and "model" not in layers.values:
        raise ConfigError(
            f"{flag('model')} is missing: name the checkpoint or the model to evaluate, or give a job file, whose model it is, "
            f"or {flag('endpoint')}."
        )
    return layers


def check_layers(
    flag: Flag,
    job_file: Path | None,
    *,
    workflow: Any = None,
    tasks: Any = None,
    judge: Any = None,
    model: str | None = None,
    seed: int | None = None,
    run_dir: str | None = None,
    sets: Sets = None,
) -> Layers:
    """The job to check. Raises ConfigError."""
    layers = job_layers(job_file)
    lay_flag(layers, flag("workflow"), "workflow", workflow)
    lay_tasks(layers, flag("tasks"), "task.reader", tasks)
    lay_flag(layers, flag("judge"), "judge", judge)
    lay_flag(layers, flag("model"), "model", model)
    lay_flag(layers, flag("seed"), "run.seed", seed)
    layers.set("task.validation", None, "ajet check", Path.cwd())  # the check runs only training tasks
    lay_flag(layers, flag("run_dir"), "run.dir", run_dir)
    lay_flag(layers, "ajet check", "backbone", "debug")  # nothing is trained, so no backbone is needed
    lay_sets(layers, sets)
    return layers


def endpoint_answers(
    flag: Flag, url: str | None, name: str | None, model: str | None
) -> ChatModelPlugin | None:
    """The model of an OpenAI-compatible endpoint, if one is given. Raises ConfigError."""
    if url is None and name is None:
        return None
    if url is None or name is None:
        raise ConfigError(
            f"{_with(flag, 'endpoint')}URL and {_with(flag, 'endpoint_model')}NAME go together; give both."
        )
    if model is not None:
        raise ConfigError(f"{flag('model')} and {flag('endpoint')} exclude each other; leave one out.")
    return validated(OpenAIChatModel, {"base_url": url, "model": name}, flag("endpoint"))


def check_several(flag: Flag, several: bool, **single: str | None) -> None:
    """Raise ConfigError for an argument that names one model beside those that name several."""
    for name, value in single.items():
        if several and value is not None:
            raise ConfigError(f"{flag(name)} names one model, and {flag('models')} several; leave one out.")


def require_answers(flag: Flag, answers: Path | None, context_length: int | None) -> None:
    """Raise ConfigError for a ``context_length`` without the ``answers`` that it limits."""
    if context_length is not None and answers is None:
        raise ConfigError(
            f"{flag('context_length')} applies only with {flag('answers')}; a model has its own limit. Add {flag('answers')}, "
            f"or remove {flag('context_length')}."
        )


def checking_engine(job: Job, answers: Path | None, context_length: int | None) -> Engine:
    """What answers in a check: the job's model, or the rules of a file."""
    return scripted_engine(job, answers, context_length) if answers else answering_engine(job)


def sft_backbone(flag: Flag, name: str, sets: Sets, transcripts: Path, output: Path) -> Backbone:
    """Whose trainer fine-tunes. Raises ConfigError, also if the files are not as they must be."""
    return _file_backbone("sft", flag, name, sets, "transcripts", transcripts, output)


def dpo_parts(
    flag: Flag,
    name: str,
    sets: Sets,
    pairs: Path,
    output: Path,
    fields: Mapping[str, Any],
) -> tuple[Backbone, DPO]:
    """Whose trainer learns from pairs, and the algorithm with these fields. Raises ConfigError, also if the files are not as
    they must be."""
    backbone = _file_backbone("dpo", flag, name, sets, "pairs", pairs, output)
    algorithm = validated(DPO, fields, "dpo")
    check_needs(algorithm, backbone, f"{_with(flag, 'backbone')}{name}")
    return backbone, algorithm


def _file_backbone(
    command: str, flag: Flag, name: str, sets: Sets, argument: str, file: Path, output: Path
) -> Backbone:
    if not file.is_file():
        raise ConfigError(f"{_with(flag, argument)}{file}: no such file.")
    if output.exists():
        raise ConfigError(f"{_with(flag, 'output')}{output} already exists; name a new folder.")
    layers = job_layers(None)
    lay_flag(layers, flag("backbone"), "backbone", name)
    lay_sets(layers, sets)
    for key in layers.sources:
        if not key.startswith("backbone."):
            raise ConfigError(
                f"{_with(flag, 'set')}{key}: `ajet {command}` accepts only keys of the backbone: backbone.{name}.…"
            )
    return build_backbone(layers)


def _with(flag: Flag, name: str) -> str:
    """A flag before its value: ``--resume `` or ``resume=``."""
    written = flag(name)
    return written if written.endswith("=") else f"{written} "
