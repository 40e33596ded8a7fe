"""`tune` of AgentScope's tuner, on `ajet.run`."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ajet
from ajet import ConfigError
from ajet.interfaces.helpers import nearest
from ajet.job import DEFAULT_BACKBONE
from ajet.job.config import Layers
from ajet.job.layers import job_layers
from ajet.plugins import load_plugins
from ajet_agentscope.layout import Layout
from ajet_agentscope.trinity_compat import make_importable
from ajet_agentscope.tuner import trinity_file
from ajet_agentscope.tuner.config import (
    AlgorithmConfig,
    DatasetConfig,
    JudgeType,
    TunerModelConfig,
    WorkflowType,
    ours,
)
from ajet_agentscope.tuner.experiment import (
    PROJECT,
    experiment_folder,
    removed_if_nothing_runs,
    run_to_resume,
)
from ajet_agentscope.tuner.functions import TunerJudge, check_judge_function, check_workflow_function
from ajet_agentscope.tuner.keys import (
    TINKER,
    JobKeys,
    algorithm_keys,
    model_keys,
    one_engine,
    refuse,
    steps_key,
    template_reads,
)
from ajet_trinity_files.files import training_file

log = logging.getLogger("ajet")
PROJECTS = ("project", "experiment")
"""Fields of loggers that get the project."""


class TunedModel(ajet.Run):
    """What `tune` has trained: ``before`` and ``after`` are the evaluations on ``eval_dataset``, ``metrics`` the figures of each
    step, ``checkpoint`` the last checkpoint, ``dir`` the run folder."""

    def __init__(self, experiment: Path, dir: Path) -> None:
        super().__init__(dir)
        self.experiment = experiment
        """The folder with ``global_step_N``, ``monitor`` and ``run``."""


def tune(
    *,
    workflow_func: WorkflowType,
    judge_func: JudgeType | None = None,
    train_dataset: DatasetConfig | None = None,
    eval_dataset: DatasetConfig | None = None,
    model: TunerModelConfig | None = None,
    auxiliary_models: Mapping[str, Any] | None = None,
    algorithm: AlgorithmConfig | None = None,
    project_name: str | None = None,
    experiment_name: str | None = None,
    monitor_type: str | None = None,
    config_path: str | os.PathLike[str] | None = None,
    backbone: str | None = None,
    resume: bool = False,
    progress: bool = True,
) -> TunedModel:
    """Train the model of a workflow function, as AgentScope's tuner does.

    ``config_path`` is a job file of AgentJet, or a configuration of Trinity-RFT; the other arguments lie over it. ``backbone`` is
    local (the default), verl, or any other that is installed. With ``resume`` an experiment of this name goes on where it
    ended, or begins. A value of ``auxiliary_models`` may also be ``{"type": "openai", "base_url": …, "model": …}``. Without
    ``progress`` only warnings are printed. `ajet docs agentscope-tuner` says what each field does. Raises AjetError.
    """
    make_importable()
    check_workflow_function(workflow_func)
    if judge_func is not None:
        check_judge_function(judge_func)
    path = None if config_path is None else Path(config_path).expanduser()
    trinity = None if path is None else training_file(path, backbone or _default_backbone(model))
    file = trinity.layers() if trinity else job_layers(path)
    keys = JobKeys(file, trinity)
    chosen = _backbone(backbone, model, file)
    if algorithm is not None or not trinity:  # with Trinity's file, the default algorithm is Trinity's
        algorithm_keys(keys, ours(AlgorithmConfig, algorithm or AlgorithmConfig()))
    if model is not None:
        trained = ours(TunerModelConfig, model)
        model_keys(keys, trained, chosen)
    if trinity:
        project_name, resume = project_name or trinity.project, resume or trinity.resume
        named = experiment_name or trinity.name
        folder = experiment_folder(project_name, named, resume, root=trinity.root, group=trinity.group)
        train_dataset = trinity_file.train_dataset(trinity, train_dataset)
        eval_dataset = trinity_file.eval_dataset(trinity, eval_dataset)
        auxiliary_models = {**trinity_file.auxiliary_models(trinity), **(auxiliary_models or {})}
        monitor_type = monitor_type or (None if trinity.monitor == "tensorboard" else trinity.monitor)
        for line in trinity.warnings():
            log.warning("%s", line)
    else:
        folder = experiment_folder(project_name, experiment_name, resume)
    tasks = _tasks(train_dataset, trinity_file.workflow_args(trinity))
    validation = _tasks(eval_dataset, trinity_file.workflow_args(trinity, evaluation=True))
    if train_dataset is not None and tasks is not None:
        checked = file.job().train.batch_size
        batch_size = int(keys.values.get("train.batch_size", checked))
        steps_key(keys, ours(DatasetConfig, train_dataset), len(tasks), batch_size)
    elif file.job().task is None:
        raise ConfigError(
            "train_dataset", "is missing. Give one, or name the tasks in the file of config_path."
        )
    if eval_dataset is not None and validation is not None:
        _check_evaluation(ours(DatasetConfig, eval_dataset))
        keys.values["eval.episodes"] = len(validation)
    loggers = keys.values["run.loggers"] = loggers_of(monitor_type, project_name or PROJECT, folder, file)
    if monitor_type is not None:
        place = f"run.loggers.{len(loggers) - 2}"
        keys.fields |= {place: "monitor_type"} | {f"{place}.{field}": "project_name" for field in PROJECTS}
    if file.source_of("run.dir") == "default":
        keys.values["run.dir"] = str(folder / "runs")
    with (
        removed_if_nothing_runs(folder),
        served(auxiliary_models or {}) as models,
        keys.named_by_field(),
    ):
        _target_keys(keys, models, file)
        judge = None if judge_func is None else TunerJudge(function=judge_func, models=_addresses(models))
        resumed = run_to_resume(folder) if resume else None
        run = ajet.run(
            None if resumed or trinity else config_path,
            workflow=workflow_func,
            judge=judge,
            tasks=tasks,
            validation=validation,
            backbone=chosen,
            resume=resumed,
            set=keys.values,
            progress=progress,
        )
    return TunedModel(folder, run.dir)


def _default_backbone(model: TunerModelConfig | None) -> str:
    return TINKER if model is not None and model.tinker_config is not None else DEFAULT_BACKBONE


def _backbone(asked: str | None, model: TunerModelConfig | None, file: Layers) -> str:
    """The name of the backbone. Raises ConfigError for one that is not installed."""
    default = _default_backbone(model)
    name = asked or (default if default == TINKER else file.job().backbone.name)
    installed = sorted(load_plugins().of(ajet.Backbone))
    if name not in installed:
        raise ConfigError(
            "backbone",
            f"{name!r} is not installed{nearest(name, installed)}. Installed: {', '.join(installed)}.",
        )
    return name


def _tasks(dataset: DatasetConfig | None, arguments: Mapping[str, Any]) -> list[ajet.Task] | None:
    """A task for each record of a data set, in its order, with the arguments as its column ``workflow_args``."""
    if dataset is None:
        return None
    records = ours(DatasetConfig, dataset).records()
    further = {"workflow_args": dict(arguments)} if arguments else {}
    return [ajet.Task(str(number), metadata=further | record) for number, record in enumerate(records)]


def _check_evaluation(dataset: DatasetConfig) -> None:
    """Raises ConfigError for fields that are only for training."""
    once = "evaluation reads the data once. Remove it; AlgorithmConfig.eval_interval_steps says how often to evaluate."
    refuse(dataset, {"total_epochs": once, "total_steps": once})


def loggers_of(monitor: str | None, project: str, folder: Path, file: Layers) -> list[Any]:
    """The loggers of the job: those of the file, the one that ``monitor_type`` names, with the project where it has projects,
    and the one that keeps the folder. Raises ConfigError."""
    layout = {"type": Layout.name, "folder": str(folder)}
    if monitor is None:  # every run has TensorBoard
        return [*file.job().run.loggers, layout]
    installed = load_plugins().of(ajet.Logger)
    names = sorted(installed.keys() - {Layout.name})
    if monitor not in names:
        raise ConfigError(
            f"monitor_type: {monitor!r}: no logger of this name is installed{nearest(monitor, names)}. Installed: {', '.join(names)}."
        )
    fields = {field: project for field in PROJECTS if field in installed[monitor].model_fields}
    given = [spec for spec in file.job().run.loggers if spec["type"] != monitor]
    return [*given, {"type": monitor, **fields}, layout]


def _target_keys(keys: JobKeys, models: Mapping[str, Mapping[str, Any]], file: Layers) -> None:
    """A target for each auxiliary model, beside the trained one. No agent's name leads to it: calls ask for it."""
    if models and not file.job().targets:
        keys.values["targets.policy.agents"] = ["*"]
    for name, model in models.items():
        keys.values[f"targets.{name}"] = {"agents": [], "frozen_model": dict(model)}


def _addresses(models: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Where a judge reaches the auxiliary models that have an address."""
    named = {name: {"api_key_env": "OPENAI_API_KEY", **model} for name, model in models.items()}
    return {
        name: {k: str(v) for k, v in model.items()} for name, model in named.items() if "base_url" in model
    }


@contextmanager
def served(models: Mapping[str, Any]) -> Iterator[dict[str, dict[str, Any]]]:
    """A block in which the models answer: name -> the chat model of a target, as in ``targets.NAME.frozen_model``. A model is a
    TunerModelConfig, or such a mapping, for one that is served elsewhere. Raises AjetError."""
    with ExitStack() as stack:
        yield {name: _served(name, model, stack) for name, model in models.items()}


def _served(name: str, model: Any, stack: ExitStack) -> dict[str, Any]:
    if not re.fullmatch(r"[\w-]+", name) or name == "policy":
        raise ConfigError(
            f"auxiliary_models: {name!r}: use letters, digits, _ and - in the name; 'policy' is the trained model."
        )
    if isinstance(model, Mapping):
        return dict(model)
    config = ours(TunerModelConfig, model)
    refuse(config, {"tinker_config": "an auxiliary model is not trained. Remove it."})
    template_reads(config)
    one_engine(config, "an auxiliary model is served with one engine on one device")
    template = {} if config.enable_thinking is None else {"enable_thinking": config.enable_thinking}
    server = stack.enter_context(
        ajet.serve(
            config.model_path,
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=min(config.max_tokens, config.max_model_len),
            context_length=config.max_model_len,
            chat_template=template,
        )
    )
    # The job names the variable, because a copy of the job is kept with the run.
    variable = f"AJET_AUXILIARY_{re.sub(r'[^A-Z0-9]', '_', name.upper())}_KEY"
    os.environ[variable] = server.api_key
    stack.callback(os.environ.pop, variable, None)
    return {"type": "openai", "base_url": server.base_url, "model": server.model, "api_key_env": variable}
