"""From the arguments of a command, or of a function of the Python API, to the job that runs.

``given`` are the arguments by name, as `ajet.run` has them, None for those that were left out. Errors name them as Python does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ajet.interfaces.engine import ChatModelPlugin, Engine
from ajet.interfaces.progress import Progress, reporting_to
from ajet.job.arguments import ARGUMENTS, SET, Argument
from ajet.job.checks import check_needs
from ajet.job.config import Layers
from ajet.job.job import Backbone, Job
from ajet.job.layers import import_from_here, job_layers, lay_sets, resumed_layers
from ajet.job.objects import lay_object
from ajet.job.parts import build_backbone
from ajet.job.prepare import prepare
from ajet.learning.algorithms import DPO
from ajet.plugins import load_plugins, validated
from ajet.runs import train
from ajet.runs.run_dir import held, tell_changes
from ajet.runs.runtime import answering_engine, own_engine, scripted_engine
from ajet.services.chat_models import OpenAIChatModel
from ajet.services.supervisor import with_services
from ajet.types import ConfigError
from ajet.utils.terminal import tell

CHAT_KEYS = ("rollout.chat_template", "rollout.tool_prompt", "rollout.call_example")
"""Keys of how a chat is written, which learning from a file takes, too."""

Given = Mapping[str, Any]
AnyPath = str | os.PathLike[str]


@contextmanager
def prepared(
    layers: Layers,
    progress: Progress,
    services: Iterable[str] | None = None,
    resume: AnyPath | None = None,
    *,
    hold: bool = True,
    read_tasks: bool = True,
) -> Iterator[Job]:
    """A block with the job of these layers, while its services run. A run that is resumed is held, so that no other process
    writes into its folder. Errors in the block say where their key was set. Raises AjetError."""
    import_from_here()
    folder = None if resume is None else _path(resume).resolve()
    holding = held(folder, tell) if folder is not None and hold else nullcontext()
    with layers.located(), holding, with_services(layers, services):
        with reporting_to(progress):
            job = prepare(layers, resume=folder, read_tasks=read_tasks)
            if folder is not None and hold:
                tell_changes(folder, job, progress.say)
        yield job.with_progress(progress)


def job_of(
    given: Given,
    own: Mapping[str, Any] | None = None,
    by: str = "",
    table: Mapping[str, Argument] = ARGUMENTS,
) -> Layers:
    """The job to train or to go on with: the ``job`` file, or the run to ``resume``; over it the arguments, then keys that the
    command ``by`` sets itself, and over all ``set``. Raises ConfigError."""
    file, resume = given.get("job"), given.get("resume")
    if file is not None and resume is not None:
        raise ConfigError("resume=", f"uses the job in {resume}; remove {file}.")
    if not isinstance(file, str | os.PathLike | None):
        raise ConfigError(
            "job=", f"is a {type(file).__name__}. Give a job file, or the keys of the job by set={{…}}."
        )
    layers = (
        resumed_layers(_path(resume))
        if resume is not None
        else job_layers(None if file is None else _path(file))
    )
    for name, argument in table.items():
        value = given.get(name)
        if value is not None and argument.key:
            _lay(layers, argument, value)
    for key, value in (own or {}).items():
        layers.set(key, value, by, Path.cwd())
    lay_sets(layers, given.get("set"))
    if (limit := given.get("memory_limit")) is not None:
        if other := next((name for name in ("endpoint", "answers") if given.get(name) is not None), ""):
            raise ConfigError(
                f"memory_limit= and {other}=", "exclude each other, as no model is loaded; leave one out."
            )
        key = f"{_limited(layers)}.memory_limit"
        if layers.source_of(key) != SET:
            layers.set(key, limit, ARGUMENTS["memory_limit"].source, Path.cwd())
    return layers


def evaluate_layers(given: Given, *, several: bool = False) -> Layers:
    """The job to evaluate, with one model or with ``several``, or the comparison of several to go on with. Raises
    ConfigError, also if nothing names the one model: the default one is for training."""
    own: dict[str, Any] = {"backbone": "debug"}  # nothing is trained, so no backbone is needed
    if given.get("tasks") is not None:  # they replace the job's own validation tasks
        own["task.validation"] = None
    if given.get("greedy"):
        own |= {"eval.sampling.temperature": 0.0, "eval.greedy": False}  # one pass is enough
    layers = job_of(given, own, "ajet eval")
    named = several or "model" in layers.values or given.get("endpoint") is not None
    if given.get("job") is None and not named:
        raise ConfigError(
            "model= or endpoint=",
            "is missing: name the checkpoint or the model to evaluate, or give a job file, whose model it is.",
        )
    return layers


def check_layers(given: Given) -> Layers:
    """The job to check: only its training tasks are run, and nothing is trained. Raises ConfigError."""
    return job_of(given, {"task.validation": None, "backbone": "debug"}, "ajet check")


def endpoint_answers(given: Given) -> ChatModelPlugin | None:
    """The model of an OpenAI-compatible endpoint, if one is given. Raises ConfigError."""
    url, name = given.get("endpoint"), given.get("endpoint_model")
    if url is None and name is None:
        return None
    if url is None or name is None:
        raise ConfigError("endpoint= and endpoint_model=", "go together; give both.")
    if given.get("model") is not None:
        raise ConfigError("model= and endpoint=", "exclude each other; leave one out.")
    return validated(OpenAIChatModel, {"base_url": url, "model": name}, "endpoint=")


def require_answers(given: Given) -> None:
    """Raise ConfigError for a ``context_length`` without the ``answers`` that it limits."""
    if given.get("context_length") is not None and given.get("answers") is None:
        raise ConfigError(
            "context_length= applies only with answers=",
            "a model has its own limit. Add the file of answers, or remove the limit.",
        )


def checking_engine(job: Job, given: Given) -> Engine:
    """What answers in a check: the job's model, or the rules of the file ``answers``."""
    answers = given.get("answers")
    if answers is None:
        return answering_engine(job)
    return scripted_engine(job, _path(answers), given.get("context_length"))


def sft(given: Given, progress: Progress) -> Path:
    """Fine-tune on a file, or a folder of trajectories, of ``transcripts``; the folder of the checkpoint. Raises AjetError."""
    return train.sft(
        transcripts=_file(given, "transcripts", folder=True), **_learning("sft", given, progress)
    )


def dpo(given: Given, progress: Progress) -> Path:
    """Optimize on a file of ``pairs``; the folder of the checkpoint. Raises AjetError."""
    file, learning = _file(given, "pairs"), _learning("dpo", given, progress)
    algorithm = validated(DPO, {name: given[name] for name in ("beta", "label_smoothing")}, "dpo")
    check_needs(algorithm, learning["backbone"], f"backbone= {given['backbone']}")
    return train.dpo(pairs=file, algorithm=algorithm, **learning)


def _file(given: Given, name: str, *, folder: bool = False) -> Path:
    file = _path(given[name])
    if not file.is_file() and not (folder and file.is_dir()):
        raise ConfigError(f"{name}= {file}", "no such file.")
    return file


def _learning(command: str, given: Given, progress: Progress) -> dict[str, Any]:
    """What learning from a file takes from its arguments."""
    output = _path(given["output"]).resolve()
    if output.exists():
        raise ConfigError(f"output= {given['output']}", "already exists; name a new folder.")
    layers = job_of({name: given[name] for name in ("backbone", "memory_limit", "set")})
    for key in layers.sources:
        if not key.startswith(("backbone.", *CHAT_KEYS)):
            raise ConfigError(
                f"{SET} {key}",
                f"`ajet {command}` accepts only keys of the backbone, backbone.{given['backbone']}.…, and of how chats are written: "
                f"{', '.join(CHAT_KEYS)}",
            )
    with layers.located():
        backbone, rollout = build_backbone(layers), layers.job().rollout
    same = ("epochs", "batch_size", "learning_rate", "seed")
    return {
        "backbone": backbone,
        "rollout": rollout,
        "model": os.fspath(given["model"]),
        "output": output,
        "progress": progress,
        **{name: given[name] for name in same},
    }


def _lay(layers: Layers, argument: Argument, value: Any) -> None:
    """Lay an argument's value over its key. If the job reads its tasks from a file already, another file only changes the
    path, and the names of the fields stay."""
    key = argument.key
    if key in ("task.reader", "task.validation") and isinstance(value, str | os.PathLike):
        value = str(_path(value).resolve())
        current = (layers.values.get("task") or {}).get(key.removeprefix("task."))
        if isinstance(current, dict) and current.get("type") == "jsonl":
            key += ".path"
    lay_object(layers, key, value, argument.source)


def _limited(layers: Layers) -> str:
    """The section of the backbone whose memory can be limited: the job's or, if that does not train, the one whose engine
    answers. Raises ConfigError if there is none."""
    plugins, name = load_plugins(), layers.job().backbone.name
    able = [name for name, cls in plugins.of(Backbone).items() if "memory_limit" in cls.model_fields]
    answers = not plugins.get(Backbone, name, "backbone.name").capabilities.trains
    section = own_engine(plugins, name).backbone if answers else name
    if section not in able:
        raise ConfigError(
            "memory_limit=",
            f"only the backbone {' or '.join(able)} supports it, but the job uses {name}; remove it.",
        )
    return f"backbone.{section}"


def _path(path: AnyPath) -> Path:
    return Path(path).expanduser()
