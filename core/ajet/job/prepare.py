"""Prepare a job: resolve every name and check every input before anything expensive starts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ajet.capture.process.importing import refusing_calls
from ajet.interfaces.algorithm import Algorithm
from ajet.interfaces.backbone import OPTIONAL_KEYS, Capabilities
from ajet.interfaces.base import Settings, by_type
from ajet.interfaces.engine import ChatModelPlugin
from ajet.interfaces.filter import Filter
from ajet.interfaces.judge import FunctionJudge, Judge, RewardFromWorkflow, judge_binding
from ajet.interfaces.logger import Logger
from ajet.interfaces.prompts import read_prompts
from ajet.interfaces.reader import Reader, read_all
from ajet.interfaces.service import Command, Service
from ajet.interfaces.workflow import LoadedWorkflow, WorkflowPlugin, load_workflow, make_workflow
from ajet.job.config import BackboneSettings, JobConfig, Layers, TaskSettings
from ajet.job.job import Backbone, Job, TargetPlan
from ajet.job.models import check_model, check_reference
from ajet.job.objects import OBJECT, given_object, given_reader, is_object
from ajet.job.paths import Paths, by_command, changed_fields, is_command, load_named, service_type
from ajet.learning.fork_plans import check_judge
from ajet.learning.task_selector import known_pass_rates
from ajet.plugins import P, Plugins, load_plugins, validated
from ajet.types import ConfigError, Need, Task
from ajet.utils.suggest import nearest

Defaults = Mapping[str, tuple[object, str]]
"""Of a backbone: dotted key of the job -> its value, and the reason for it."""


def prepare(layers: Layers, *, resume: Path | None = None, read_tasks: bool = True) -> Job:
    """Resolve and check everything. Raises ConfigError naming the key, the place and the remedy.

    Without ``read_tasks`` the job has no tasks: for processes that are given them one by one."""
    config = layers.job()
    plugins = load_plugins()
    build = _Builder(plugins, layers)
    if config.workflow is None:
        raise ConfigError("workflow", "is required: pkg.module:Name or path/to/file.py:Name.")
    if config.task is None:
        raise ConfigError(
            "task.reader", "is required, for example task.reader: {type: jsonl, path: tasks.jsonl}."
        )
    config = _with_prompts(Paths(plugins, layers, readers=read_tasks).job(config))
    assert config.workflow is not None and config.task is not None
    backbone = build.backbone(config.backbone)
    workflow = build.workflow(config, config.task.hides(config.judge is not None))
    judge = build.judge(config.judge)
    judge_check = build.judge(config.judge_check, "judge_check") if config.judge_check else None
    algorithm = build.plugin(Algorithm, config.train.algorithm, "train.algorithm")
    filters = tuple(
        build.plugin(Filter, spec, f"train.filters.{i}") for i, spec in enumerate(config.train.filters)
    )
    loggers = [
        build.plugin(Logger, by_type(spec), f"run.loggers.{i}") for i, spec in enumerate(config.run.loggers)
    ]
    for name in config.services:
        build.service(name, config.services)
    targets = _targets(config, build)
    _check_capabilities(config, backbone, targets, algorithm)
    _check_forks(config, judge, algorithm)
    tasks: Sequence[Task] = []
    validation: Sequence[Task] = []
    if read_tasks:
        tasks = read_all(build.reader(config.task.reader, "task.reader"), "task.reader")
        known_pass_rates(tasks, config.task.selector.pass_rates)
    if read_tasks and config.task.validation:
        validation = read_all(build.reader(config.task.validation, "task.validation"), "task.validation")
    _check_reference(config, algorithm)
    if read_tasks and backbone.capabilities.trains:  # other backbones check the model when they load it
        check_model(config.model)
        if config.train.reference is not None:
            check_reference(config.train.reference)
    if read_tasks and (defaults := _unset(layers, backbone.defaults(config))):
        config = _with_defaults(config, layers, defaults, backbone.name)
        backbone = build.backbone(config.backbone)
    return Job(
        config=config,
        layers=layers,
        plugins=plugins,
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


def _with_prompts(config: JobConfig) -> JobConfig:
    """The job with the texts of its prompts in place of their file, which may change while a copy of the job is kept with
    the run."""
    if not isinstance(config.prompts, Path):
        return config
    return config.model_copy(update={"prompts": read_prompts(config.prompts)})


def _unset(layers: Layers, defaults: Defaults) -> Defaults:
    """Those of a backbone's defaults whose keys the user has not set."""
    return {key: default for key, default in defaults.items() if key not in layers.sources}


def _with_defaults(config: JobConfig, layers: Layers, defaults: Defaults, backbone: str) -> JobConfig:
    """The job with a backbone's defaults, which are set in its layers, too. Its paths are absolute already, so that nothing of it is
    resolved again."""
    whole = Layers(config.model_dump(exclude_unset=True), layers.sources, layers.bases, layers.objects)
    for key, (value, why) in defaults.items():
        for each in (layers, whole):
            each.set(key, value, f"default of {backbone}: {why}", Path.cwd())
    return whole.job()


def build_workflow(layers: Layers, settings: TaskSettings, judged: bool) -> LoadedWorkflow:
    """The workflow of a job, without the rest of the job. Raises ConfigError."""
    plugins = load_plugins()
    config = Paths(plugins, layers).job(layers.job())
    return _Builder(plugins, layers).workflow(config, settings.hides(judged))


def build_plugin(layers: Layers, base: type[P], spec: Mapping[str, Any], where: str) -> P:
    """A plugin of a kind, which its base class names, from a spec that stands at ``where`` in the job."""
    plugins = load_plugins()
    return _Builder(plugins, layers).plugin(base, Paths(plugins, layers).spec(base.kind, spec, where), where)


def build_judge(layers: Layers) -> Judge:
    """The judge of a job, without the rest of the job. Raises ConfigError."""
    plugins = load_plugins()
    spec = Paths(plugins, layers).spec("judge", layers.job().judge, "judge")
    return _Builder(plugins, layers).judge(spec)


def build_backbone(layers: Layers) -> Backbone:
    """The backbone that a job chooses, without the rest of the job. Raises ConfigError."""
    plugins = load_plugins()
    return _Builder(plugins, layers).backbone(Paths(plugins, layers).backbone(layers.job().backbone))


def build_service(layers: Layers, name: str) -> Service:
    """A service that the job declares or a plugin brings. Raises ConfigError."""
    plugins, declared = load_plugins(), layers.job().services
    if name in declared:
        spec = Paths(plugins, layers).spec("service", declared[name], f"services.{name}")
        declared = {**declared, name: spec}
    return _Builder(plugins, layers).service(name, declared)


def resolved_yaml(job: Job) -> str:
    """The resolved job as a job file."""
    return yaml.safe_dump(resolved(job), sort_keys=False, allow_unicode=True)


def resolved(job: Job) -> dict[str, Any]:
    """The whole job with every default and absolute paths."""
    return job.config.model_dump(mode="json")


class _Builder:
    """Makes plugins from the job's values, whose paths are absolute."""

    def __init__(self, plugins: Plugins, layers: Layers) -> None:
        self.plugins = plugins
        self.layers = layers

    def plugin(self, base: type[P], spec: Mapping[str, Any], where: str) -> P:
        name = spec.get("type")
        if isinstance(name, str) and ":" in name:
            fields = {key: value for key, value in spec.items() if key != "type"}
            cls = self.own(base, name, f"{where}.type")
            return validated(cls, changed_fields(cls, fields, where, self.judges), where)
        if isinstance(name, str):
            spec = changed_fields(self.plugins.get(base, name, f"{where}.type"), spec, where, self.judges)
        return self.plugins.build(base, spec, where)

    def own(self, base: type[P], spec: str, where: str) -> type[P]:
        """A class that the job names itself, as ``pkg.module:Name`` or ``path/to/file.py:Name``."""
        found = load_named(spec, where)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ConfigError(
                f"{where} {spec}",
                f"is not a {base.kind}; name a subclass of ajet.{base.__name__}, or a {base.kind} that "
                "`ajet plugins` lists.",
            )
        return found

    def reader(self, spec: Mapping[str, Any], where: str) -> Reader:
        if is_object(spec.get("type")):
            return given_reader(given_object(self.layers, where, spec["type"]), where)
        return self.plugin(Reader, spec, where)

    def service(self, name: str, declared: Mapping[str, Mapping[str, Any]]) -> Service:
        """See `service_type`."""
        where, known = f"services.{name}", self.plugins.of(Service)
        if name not in declared and (name not in known or name == Command.name):
            names = sorted({*declared, *known} - {Command.name})
            raise ConfigError(
                where,
                f"no such service{nearest(name, names)}. Declare it, {{command: […], health: URL}}. "
                f"Known: {', '.join(names) or 'none'}.",
            )
        own = declared.get(name, {})
        service = self.plugin(Service, {**own, "type": service_type(self.plugins, name, own)}, where)
        for variable in service.likely_secrets():
            raise ConfigError(
                f"{where}.environment",
                f"{variable} looks like a secret, and a copy of the job is kept with each run. Set it "
                "where you start ajet, and name it under `secrets`.",
            )
        return service

    def workflow(self, config: JobConfig, hidden: Collection[str]) -> LoadedWorkflow:
        """The job's workflow; a program of its own gets tasks without the ``hidden`` fields of their metadata."""
        found = self._workflow(config)
        if not isinstance(found.target, WorkflowPlugin):
            return found
        if found.target.is_remote and not config.rollout.gateway_address.url:
            raise ConfigError(
                "rollout.gateway_address",
                f"the agents of the workflow {found.spec} run where 127.0.0.1 is not this machine, so they cannot reach their model. "
                "Say where they do, rollout.gateway_address: {host: 0.0.0.0, port: 8900, url: http://ADDRESS:8900}, or give them this "
                "machine's network.",
            )
        seconds, limit = found.target.seconds, config.rollout.timeout
        if seconds is not None and seconds >= limit:
            raise ConfigError(
                "rollout.timeout",
                f"{limit:g}s is not longer than the {seconds:g}s that an episode may take by the settings of the workflow, so one that "
                f"takes as long would not be judged. Set it to more, such as {seconds + 60:g}s.",
            )
        return replace(found, withheld=hidden)

    def _workflow(self, config: JobConfig) -> LoadedWorkflow:
        spec, hook = config.workflow or "", self.plugins.manager.hook
        workdir = config.rollout.workdir
        if workdir is not None and not workdir.is_dir():
            raise ConfigError("rollout.workdir", f"{workdir} is not a directory.")
        if not isinstance(spec, str):
            if workdir is not None:
                raise ConfigError(
                    "rollout.workdir", "is for cmd: workflows; this one takes workflow.workdir."
                )
            return make_workflow(self.plugin(WorkflowPlugin, spec, "workflow"), str(spec.get("type")))
        if is_command(spec):
            folder = workdir or self.layers.base_of("workflow")
            return make_workflow(self.plugin(WorkflowPlugin, by_command(spec, folder), "workflow"), spec)
        if is_object(spec):
            given = given_object(self.layers, "workflow", spec)
            return make_workflow(given, spec.removeprefix(OBJECT), hook)
        with refusing_calls(f"workflow {spec}"):
            return load_workflow(spec, hook)

    def judge(self, spec: Mapping[str, Any] | None, where: str = "judge") -> Judge:
        if spec is None:
            return RewardFromWorkflow()
        kind = spec.get("type")
        if not isinstance(kind, str) or ":" not in kind:
            return self.plugin(Judge, spec, where)
        if is_object(kind):
            found, kind = given_object(self.layers, where, kind), kind.removeprefix(OBJECT)
        else:
            found = load_named(kind, where)
        fields = {k: v for k, v in spec.items() if k != "type"}
        if isinstance(found, Judge):
            return found
        if isinstance(found, type) and issubclass(found, Judge):
            return validated(found, changed_fields(found, fields, where, self.judges), where)
        made: Judge | None = self.plugins.manager.hook.ajet_as_judge(judge=found)
        if made is not None and not fields:
            return made
        if isinstance(found, type) or not callable(found):
            what = (
                "the class is not a subclass of ajet.Judge" if isinstance(found, type) else "is not callable"
            )
            raise ConfigError(f"{where} {kind}", f"{what}; name a function or a subclass of ajet.Judge.")
        if fields:
            raise ConfigError(
                f"{where}.{next(iter(fields))}",
                "a plain function takes no settings; write a Judge class for that.",
            )
        try:
            judge_binding(found)
        except TypeError as error:
            raise ConfigError(f"{where} {kind}", f"{error}.") from None
        return FunctionJudge(function=found)

    def backbone(self, settings: BackboneSettings) -> Backbone:
        name, installed = settings.name, sorted(self.plugins.of(Backbone))
        cls = self.plugins.get(Backbone, name, "backbone.name")
        for other, value in (settings.model_extra or {}).items():
            hint = nearest(other, [*installed, "name"])
            if other not in installed and (
                hint or other in cls.model_fields or not isinstance(value, Mapping)
            ):
                hint = (
                    hint
                    or f". backbone.name names the backbone, and its own settings are below backbone.{name}"
                )
                raise ConfigError(f"backbone.{other}", f"unknown key{hint}.")
            if other in installed and other != name:
                where = f"backbone.{other}"
                validated(self.plugins.get(Backbone, other, where), settings.section(other), where)
        return validated(cls, settings.section(name), f"backbone.{name}")

    def judges(self, hint: Any, value: Any, where: str) -> Any:
        """A judge inside another plugin, built from its spec or name (see `changed`)."""
        if isinstance(hint, type) and issubclass(hint, Judge) and isinstance(value, Mapping | str):
            return self.judge(by_type(value), where)
        return None


def _targets(config: JobConfig, build: _Builder) -> list[TargetPlan]:
    if not config.targets:
        if config.train.targets not in (None, ("policy",)):
            raise ConfigError(
                "train.targets",
                f"unknown target {config.train.targets[0]!r}; the job has only the default one, 'policy'.",
            )
        return [TargetPlan("policy", ("*",), None, True)]
    named = config.train.targets
    for name in named or ():
        if name not in config.targets:
            raise ConfigError(
                "train.targets",
                f"unknown target {name!r}{nearest(name, config.targets)}. Known: {', '.join(config.targets)}.",
            )
    plans = []
    for name, target in config.targets.items():
        where = f"targets.{name}.frozen_model"
        is_side = not target.train and target.frozen_model is None
        trained = target.frozen_model is None and target.train and (named is None or name in named)
        if target.frozen_model is not None and name in (named or ()):
            raise ConfigError(
                "train.targets",
                f"{name!r} has a frozen_model, so it cannot be trained. Remove one of the two.",
            )
        if target.frozen_model is not None and target.lora:
            raise ConfigError(
                f"targets.{name}",
                "a frozen_model answers it, so its lora has no effect. Remove one of the two.",
            )
        if is_side and name in (named or ()):
            raise ConfigError("train.targets", f"{name!r} has train: false. Remove one of the two.")
        if is_side and target.lora:
            raise ConfigError(
                f"targets.{name}",
                "has train: false, so its lora would never be trained. Remove one of the two.",
            )
        if target.lora and not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(
                f"targets.{name}",
                "its lora is a folder of the checkpoint; use only letters, digits, _ and - in its name.",
            )
        if target.frozen_model is None and not trained and not target.lora and not is_side:
            raise ConfigError(
                f"targets.{name}",
                f"is neither trained nor has a frozen_model. Add it to train.targets, or give it {where} or train: false.",
            )
        model = (
            build.plugin(ChatModelPlugin, target.frozen_model, where)
            if target.frozen_model is not None
            else None
        )
        plans.append(TargetPlan(name, target.agents, model, trained, target.lora, target.models, is_side))
    if not any(plan.trained for plan in plans):
        raise ConfigError(
            "targets", "none is trained; leave at least one without a frozen_model and train: false."
        )
    own = [plan for plan in plans if plan.model is None and not plan.side]
    whole = [plan.name for plan in own if not plan.lora]
    if whole and len(own) > 1:
        raise ConfigError(
            f"targets.{whole[0]}",
            "trains all weights, on which the adapters of the other targets stand. Give it a lora of its "
            "own, or a frozen_model, or let one target have all agents.",
        )
    return plans


def _check_reference(config: JobConfig, algorithm: Algorithm) -> None:
    """ConfigError if ``train.reference`` is missing or has no effect."""
    if config.train.reference is None:
        if algorithm.teacher:
            raise ConfigError(
                "train.reference",
                f"the algorithm {algorithm.name!r} needs a teacher; name a model of the same tokenizer.",
            )
    elif not config.train.kl and not algorithm.needs & {"reference", "teacher"}:
        raise ConfigError(
            "train.reference", f"the algorithm {algorithm.name!r} does not use it; remove it or set train.kl."
        )


_MEANING: Mapping[Need, str] = {
    "before": "the logprobs before an update",
    "reference": "a reference model",
    "entropy": "the entropy of each token",
    "pairs": "both episodes of a pair in one pass of the model",
    "values": "a critic",
    "teacher": "the model itself as a teacher that reads feedback",
}
"""What an algorithm needs, in words."""


def check_needs(algorithm: Algorithm, backbone: Backbone, where: str) -> None:
    """Raise ConfigError if the backbone does not have what the algorithm needs, which is named at ``where``."""
    for need in sorted(algorithm.needs - backbone.capabilities.needs):
        raise ConfigError(
            where,
            f"{algorithm.name!r} needs {_MEANING[need]}, which the backbone {backbone.name!r} does not have. Name another "
            "algorithm, or another backbone, such as local.",
        )


def learns_nothing(group_size: int, algorithm: Algorithm) -> str:
    """Why groups of this size teach nothing, and the remedy; "" if they do."""
    if group_size > 1 or any(
        algorithm.advantages(np.array([reward])).any() for reward in (-1e6, 0.0, 1.0, 1e6)
    ):
        return ""
    return (
        f"the algorithm {algorithm.name!r} compares the episodes of a task, so it learns nothing from a group of 1. Set it "
        "to 2 or more, such as 8, or name an algorithm without groups: ppo, or {type: reinforce++, group_baseline: false}."
    )


def _check_capabilities(
    config: JobConfig, backbone: Backbone, targets: Sequence[TargetPlan], algorithm: Algorithm
) -> None:
    can: Capabilities = backbone.capabilities
    if not can.trains:
        return  # it accepts everything and says what it skipped
    trained = [t.name for t in targets if t.trained]
    if len(trained) > 1 and not can.several_targets:
        raise ConfigError(
            "targets",
            f"the backbone {backbone.name!r} trains one target, but {', '.join(trained)} are trained. Give all but one "
            "a frozen_model, or let them share one target.",
        )
    for target in targets:
        if target.lora and not can.lora:
            raise ConfigError(
                f"targets.{target.name}.lora",
                f"the backbone {backbone.name!r} cannot honour it; remove the key.",
            )
    sampling = config.rollout.sampling
    if sampling.truncating and not can.truncated_sampling and (sampling.exact or sampling.min_p):
        raise ConfigError(
            "rollout.sampling",
            f"{sampling.truncating}: the backbone {backbone.name!r} does not learn among which tokens its engine has drawn, so "
            "probabilities would be wrong for training; remove it, use the backbone local, or accept that for top_p and top_k with "
            "rollout.sampling.allow_truncated: true.",
        )
    if config.run.deterministic and not can.deterministic:
        raise ConfigError(
            "run.deterministic",
            f"the backbone {backbone.name!r} cannot repeat runs bit for bit; remove the key.",
        )
    if config.run.restarts and not can.restarts:
        raise ConfigError(
            "run.restarts",
            f"the backbone {backbone.name!r} ends together with the process or machine that fails; remove the key, and "
            "continue with `ajet run --resume RUN_DIR`.",
        )
    check_needs(algorithm, backbone, "train.algorithm")
    if config.train.steps and (why := learns_nothing(config.rollout.group_size, algorithm)):
        raise ConfigError("rollout.group_size", why)
    for key in sorted(OPTIONAL_KEYS - can.keys):
        section, _, name = key.partition(".")
        settings: Settings = getattr(config, section)
        if getattr(settings, name) != type(settings).model_fields[name].default:
            raise ConfigError(key, f"the backbone {backbone.name!r} cannot honour it; remove the key.")
    clocked = {
        "rollout.oversample": (config.rollout.oversample > 1, "which groups are complete first"),
        "train.asynchronous": (config.train.asynchronous, "which weights sample a token"),
    }
    for key, (asked, what) in clocked.items():
        if config.run.deterministic and asked:
            raise ConfigError(
                key,
                f"{what} depends on the clock, so a run cannot be repeated bit for bit; remove it or run.deterministic.",
            )


def _check_forks(config: JobConfig, judge: Judge, algorithm: Algorithm) -> None:
    fork, train = config.rollout.fork, config.train
    for key, asked in {
        "train.credit": train.credit == "tree",
        "train.call_discount": train.call_discount != 1,
    }.items():
        if asked and not algorithm.relative:
            raise ConfigError(
                key,
                f"the algorithm {algorithm.name!r} has no advantages of single calls; remove the key, or name another algorithm, "
                "such as grpo.",
            )
    if fork is None:
        if train.credit == "tree":
            raise ConfigError("train.credit", "tree has no effect without forks; set rollout.fork: {} too.")
        return
    if algorithm.needs & {"pairs", "values"}:
        raise ConfigError(
            "rollout.fork",
            f"the algorithm {algorithm.name!r} cannot learn from tokens that several episodes share; remove the key, or name another "
            "algorithm, such as grpo.",
        )
    check_judge(judge)
    if fork.where != "uniform" and config.train.credit != "tree":
        raise ConfigError(
            "rollout.fork.where",
            f"{fork.where} chooses forks by what was sampled, so the mean reward of a group is no longer that of the model, with "
            "which train.credit: episode compares. Set train.credit: tree, or where: uniform.",
        )
