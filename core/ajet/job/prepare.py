"""Prepare a job: resolve every name and check every input before anything expensive starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ajet.interfaces.algorithm import Algorithm
from ajet.interfaces.base import by_type
from ajet.interfaces.engine import ChatModelPlugin
from ajet.interfaces.filter import Filter
from ajet.interfaces.logger import Logger
from ajet.interfaces.reader import read_all
from ajet.job.checks import check_job, target_plans
from ajet.job.config import JobConfig, Layers
from ajet.job.job import Job
from ajet.job.models import check_model, check_reference
from ajet.job.parts import JobParts
from ajet.learning.task_selector import known_pass_rates
from ajet.types import ConfigError, Task


def prepare(layers: Layers, *, resume: Path | None = None, read_tasks: bool = True) -> Job:
    """Resolve and check everything. Raises ConfigError naming the key, the place and the remedy.

    Without ``read_tasks`` the job has no tasks: for processes that are given them one by one."""
    parts = JobParts(layers, readers=read_tasks)
    config = parts.job()
    if config.workflow is None:
        raise ConfigError("workflow", "is required: pkg.module:Name or path/to/file.py:Name.")
    if config.task is None:
        raise ConfigError(
            "task.reader", "is required, for example task.reader: {type: jsonl, path: tasks.jsonl}."
        )
    backbone = parts.backbone(config.backbone)
    workflow = parts.workflow(config.workflow, config.rollout, config.task.hides(config.judge is not None))
    judge = parts.judge(config.judge)
    judge_check = parts.judge(config.judge_check, "judge_check") if config.judge_check else None
    algorithm = parts.plugin(Algorithm, config.train.algorithm, "train.algorithm")
    filters = tuple(
        parts.plugin(Filter, spec, f"train.filters.{i}") for i, spec in enumerate(config.train.filters)
    )
    loggers = [
        parts.plugin(Logger, by_type(spec), f"run.loggers.{i}") for i, spec in enumerate(config.run.loggers)
    ]
    for name in config.services:
        parts.service(name, config.services)
    frozen = {
        name: parts.plugin(ChatModelPlugin, target.frozen_model, f"targets.{name}.frozen_model")
        for name, target in config.targets.items()
        if target.frozen_model is not None
    }
    targets = target_plans(config.targets, config.train.targets, frozen)
    check_job(config, backbone, judge, algorithm, targets)
    tasks: Sequence[Task] = []
    validation: Sequence[Task] = []
    if read_tasks:
        tasks = read_all(parts.reader(config.task.reader, "task.reader"), "task.reader")
        known_pass_rates(tasks, config.task.selector.pass_rates)
        if config.task.validation:
            validation = read_all(parts.reader(config.task.validation, "task.validation"), "task.validation")
        if backbone.capabilities.trains:  # other backbones check the model when they load it
            check_model(config.model)
            if config.train.reference is not None:
                check_reference(config.train.reference)
        if defaults := {k: v for k, v in backbone.defaults(config).items() if k not in layers.sources}:
            config = _with_defaults(config, layers, defaults, backbone.name)
            backbone = parts.backbone(config.backbone)
    return Job(
        config=config,
        layers=layers,
        plugins=parts.plugins,
        backbone=backbone,
        workflow=workflow,
        judge=judge,
        judge_check=judge_check,
        tasks=tasks,
        validation=validation,
        targets=targets,
        algorithm=algorithm,
        filters=filters,
        loggers=loggers,
        model=config.model,
        prompts=config.prompts if isinstance(config.prompts, dict) else {},
        resume=resume,
    )


def _with_defaults(
    config: JobConfig, layers: Layers, defaults: Mapping[str, tuple[object, str]], backbone: str
) -> JobConfig:
    """The job with a backbone's defaults, each a value with its reason, which are set in its layers, too. Its paths are absolute
    already, so that nothing of it is resolved again."""
    whole = Layers(config.model_dump(exclude_unset=True), layers.sources, layers.bases, layers.objects)
    for key, (value, why) in defaults.items():
        for each in (layers, whole):
            each.set(key, value, f"default of {backbone}: {why}", Path.cwd())
    return whole.job()


def resolved_yaml(job: Job) -> str:
    """The resolved job as a job file."""
    return yaml.safe_dump(resolved(job), sort_keys=False, allow_unicode=True)


def resolved(job: Job) -> dict[str, Any]:
    """The whole job with every default and absolute paths."""
    return job.config.model_dump(mode="json")
