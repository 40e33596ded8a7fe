"""Prepare a job: resolve every name and check every input before anything expensive starts."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ajet.capture.process.importing import refusing_calls
from ajet.interfaces.algorithm import Algorithm
from ajet.interfaces.backbone import OPTIONAL_KEYS, Backbone, Capabilities
from ajet.interfaces.base import PathOrName, Plugin, Settings
from ajet.interfaces.engine import ChatModelPlugin
from ajet.interfaces.filter import Filter
from ajet.interfaces.judge import FunctionJudge, Judge, RewardFromWorkflow, judge_binding
from ajet.interfaces.logger import Logger
from ajet.interfaces.progress import Progress, Silent
from ajet.interfaces.reader import Reader, read_all
from ajet.interfaces.service import Command, Service
from ajet.interfaces.workflow import Workflow, load_object, load_workflow, make_workflow
from ajet.job.config import JobConfig, Layers, LoraSettings, leaves
from ajet.job.models import check_model
from ajet.job.objects import OBJECT, given_object, given_reader, is_object
from ajet.plugins import Plugins, load_plugins, validated
from ajet.types import ConfigError, Task
from ajet.utils.suggest import nearest


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """A target before its model is opened."""

    name: str
    agents: tuple[str, ...]
    model: ChatModelPlugin | None
    trained: bool
    lora: LoraSettings | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A prepared job, as a backbone runs it."""

    config: JobConfig
    layers: Layers
    plugins: Plugins
    backbone: Backbone
    workflow: Workflow
    judge: Judge
    tasks: Sequence[Task]
    validation: Sequence[Task]
    targets: Sequence[TargetPlan]
    algorithm: Algorithm
    filters: tuple[Filter, ...]
    loggers: Sequence[Logger]
    model: str
    progress: Progress = field(default_factory=Silent)
    resume: Path | None = None
    """The run folder to resume."""

    def with_progress(self, progress: Progress) -> Job:
        """The same job with another progress."""
        return replace(self, progress=progress)


def prepare(layers: Layers, *, resume: Path | None = None, read_tasks: bool = True) -> Job:
    """Resolve and check everything. Raises ConfigError naming the key, the place and the remedy.

    Without ``read_tasks`` the job has no tasks: for processes that are given them one by one."""
    config = layers.job()
    plugins = load_plugins()
    build = _Builder(plugins, layers)
    backbone = build.backbone(config)
    if config.workflow is None:
        raise ConfigError("workflow: is required: pkg.module:Name or path/to/file.py:Name.")
    if config.task is None:
        raise ConfigError(
            "task.reader: is required, for example task.reader: {type: jsonl, path: tasks.jsonl}."
        )
    workflow = build.workflow(config)
    judge = build.judge(config.judge)
    algorithm = build.plugin("algorithm", config.train.algorithm, "train.algorithm")
    assert isinstance(algorithm, Algorithm)
    filters = tuple(build.filter(spec, i) for i, spec in enumerate(config.train.filters))
    loggers = [build.logger(spec, i) for i, spec in enumerate(config.run.loggers)]
    for name in config.services:
        build.service(name, config.services)
    targets = _targets(config, build)
    _check_capabilities(config, backbone, targets)
    tasks: Sequence[Task] = []
    validation: Sequence[Task] = []
    if read_tasks:
        tasks = read_all(build.reader(config.task.reader, "task.reader"), "task.reader")
    if read_tasks and config.task.validation:
        validation = read_all(build.reader(config.task.validation, "task.validation"), "task.validation")
    model = build.place("model", config.model, must_exist=True)
    referring = _with_reference(config, build, algorithm)
    if read_tasks and backbone.capabilities.trains:  # other backbones check the model when they load it
        check_model(model)
        if referring.train.reference is not None:
            check_model(referring.train.reference, "train.reference")
    return Job(
        referring,
        layers,
        plugins,
        backbone,
        workflow,
        judge,
        tasks,
        validation,
        targets,
        algorithm,
        filters,
        loggers,
        model,
        resume=resume,
    )


def build_plugin(layers: Layers, kind: str, spec: Mapping[str, Any], where: str) -> Plugin:
    """A plugin from a spec that stands at ``where`` in the job."""
    return _Builder(load_plugins(), layers).plugin(kind, spec, where)


def build_judge(layers: Layers) -> Judge:
    """The judge of a job, without the rest of the job. Raises ConfigError."""
    return _Builder(load_plugins(), layers).judge(layers.job().judge)


def build_backbone(layers: Layers) -> Backbone:
    """The backbone that a job chooses, without the rest of the job. Raises ConfigError."""
    return _Builder(load_plugins(), layers).backbone(layers.job())


def build_service(layers: Layers, name: str) -> Service:
    """A service that the job declares or a plugin brings. Raises ConfigError."""
    return _Builder(load_plugins(), layers).service(name, layers.job().services)


def resolved_yaml(job: Job) -> str:
    """The whole job with every default and absolute paths, as a job file."""
    data = job.config.model_dump(mode="json")
    data["model"] = job.model
    if not is_object(data["workflow"]):
        data["workflow"] = job.workflow.spec
    for key, value in leaves(job.layers.values):  # also of plugins that are built only when they run
        if key.rpartition(".")[2] == "path" and isinstance(value, str):
            _put(data, key, str(_absolute(value, job.layers.base_of(key))))
    for key, path in job.layers.absolute.items():
        _put(data, key, path)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


class _Builder:
    """Makes plugins from the job's values, with paths made absolute by where each was written."""

    def __init__(self, plugins: Plugins, layers: Layers) -> None:
        self.plugins = plugins
        self.layers = layers

    def plugin(self, kind: str, spec: Mapping[str, Any], where: str) -> Plugin:
        name = spec.get("type")
        if isinstance(name, str) and ":" in name:
            fields = {key: value for key, value in spec.items() if key != "type"}
            cls = self.own(kind, name, f"{where}.type")
            return validated(cls, self.fields(cls, fields, where), where)
        if isinstance(name, str):
            spec = self.fields(self.plugins.get(kind, name, f"{where}.type"), spec, where)
        return self.plugins.build(kind, spec, where)

    def own(self, kind: str, spec: str, where: str) -> type[Plugin]:
        """A class that the job names itself, as ``pkg.module:Name`` or ``path/to/file.py:Name``."""
        with refusing_calls(f"{where} {spec}"):
            found, base = load_object(self.lasting(where, spec), where), _BASES[kind]
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ConfigError(
                f"{where} {spec}: is not a {kind}; name a subclass of ajet.{base.__name__}, or a {kind} that `ajet plugins` lists."
            )
        return found

    def lasting(self, key: str, value: str) -> str:
        """`place`, kept for a run that is resumed: its job file lies elsewhere."""
        place = self.place(key, value)
        if place != value:
            self.layers.absolute[key] = place
        return place

    def reader(self, spec: Mapping[str, Any], where: str) -> Reader:
        if is_object(spec.get("type")):
            return given_reader(given_object(self.layers, where, spec["type"]), where)
        reader = self.plugin("reader", spec, where)
        assert isinstance(reader, Reader)
        return reader

    def filter(self, spec: Mapping[str, Any], index: int) -> Filter:
        found = self.plugin("filter", spec, f"train.filters.{index}")
        assert isinstance(found, Filter)
        return found

    def logger(self, spec: Any, index: int) -> Logger:
        logger = self.plugin(
            "logger", {"type": spec} if isinstance(spec, str) else spec, f"run.loggers.{index}"
        )
        assert isinstance(logger, Logger)
        return logger

    def service(self, name: str, declared: Mapping[str, Mapping[str, Any]]) -> Service:
        """By its ``type``; else a command, if it names one; else the plugin of its name."""
        where, known = f"services.{name}", [n for kind, n in self.plugins.classes if kind == "service"]
        if name not in declared and (name not in known or name == Command.name):
            names = sorted({*declared, *known} - {Command.name})
            raise ConfigError(
                f"{where}: no such service{nearest(name, names)}. Declare it, {{command: […], health: URL}}. "
                f"Known: {', '.join(names) or 'none'}."
            )
        own = declared.get(name, {})
        spec = {"type": Command.name if "command" in own or name not in known else name, **own}
        if spec.get("workdir") is None and name in declared:
            bases = [base for key, base in self.layers.bases.items() if key.startswith(f"{where}.")]
            spec["workdir"] = str(bases[0] if bases else Path.cwd())
            self.layers.absolute[f"{where}.workdir"] = spec["workdir"]  # a resumed run has another job file
        service = self.plugin("service", spec, where)
        assert isinstance(service, Service)
        for variable in service.likely_secrets():
            raise ConfigError(
                f"{where}.environment: {variable} looks like a secret, and a copy of the job is kept with each run. Set it "
                "where you start ajet, and name it under `secrets`."
            )
        return service

    def workflow(self, config: JobConfig) -> Workflow:
        spec, hook = config.workflow or "", self.plugins.manager.hook
        key = "workflow" if config.rollout.workdir is None else "rollout.workdir"
        folder = _absolute(config.rollout.workdir or ".", self.layers.base_of(key))
        if not folder.is_dir():
            raise ConfigError(f"{key}: {folder} is not a directory.")
        if is_object(spec):
            given = given_object(self.layers, "workflow", spec)
            return make_workflow(given, spec.removeprefix(OBJECT), folder, hook)
        if _SCHEME.match(spec):
            self.layers.absolute["rollout.workdir"] = str(folder)  # a resumed run has another job file
            return load_workflow(spec, folder, hook)
        with refusing_calls(f"workflow {spec}"):
            return load_workflow(self.place("workflow", spec), folder, hook)

    def judge(self, spec: Mapping[str, Any] | None, where: str = "judge") -> Judge:
        if spec is None:
            return RewardFromWorkflow()
        kind = spec.get("type")
        if not isinstance(kind, str) or ":" not in kind:
            judge = self.plugin("judge", spec, where)
            assert isinstance(judge, Judge)
            return judge
        if is_object(kind):
            found, kind = given_object(self.layers, where, kind), kind.removeprefix(OBJECT)
        else:
            with refusing_calls(f"{where} {kind}"):
                found = load_object(self.lasting(f"{where}.type", kind), where)
        fields = {k: v for k, v in spec.items() if k != "type"}
        if isinstance(found, Judge):
            return found
        if isinstance(found, type) and issubclass(found, Judge):
            return validated(found, self.fields(found, fields, where), where)
        if isinstance(found, type) or not callable(found):
            what = (
                "the class is not a subclass of ajet.Judge" if isinstance(found, type) else "is not callable"
            )
            raise ConfigError(f"{where} {kind}: {what}; name a function or a subclass of ajet.Judge.")
        if fields:
            raise ConfigError(
                f"{where}.{next(iter(fields))}: a plain function takes no settings; write a Judge class for that."
            )
        try:
            judge_binding(found)
        except TypeError as error:
            raise ConfigError(f"{where} {kind}: {error}.") from None
        return FunctionJudge(function=found)

    def backbone(self, config: JobConfig) -> Backbone:
        name = config.backbone.name
        installed = sorted(n for kind, n in self.plugins.classes if kind == "backbone")
        cls = self.plugins.get("backbone", name, "backbone.name")
        for other in config.backbone.model_extra or {}:
            hint = nearest(other, [*installed, "name"])
            if other not in installed and hint:
                raise ConfigError(f"backbone.{other}: unknown key{hint}.")
            if other in installed and other != name:
                where = f"backbone.{other}"
                validated(self.plugins.get("backbone", other, where), config.backbone.section(other), where)
        fields = self.absolute(cls, config.backbone.section(name), f"backbone.{name}")
        backbone = validated(cls, fields, f"backbone.{name}")
        assert isinstance(backbone, Backbone)
        return backbone

    def fields(self, cls: type[Settings], spec: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The spec of a plugin or of settings inside one: paths absolute, judges inside it built."""
        hints = typing.get_type_hints(cls)
        return {
            key: self.nested(hints.get(key), value, f"{where}.{key}")
            for key, value in self.absolute(cls, spec, where).items()
        }

    def nested(self, hint: Any, value: Any, where: str) -> Any:
        """A value as its field wants it: where the field is a judge, one is built from its spec or name."""
        if isinstance(hint, type) and issubclass(hint, Judge) and isinstance(value, Mapping | str):
            return self.judge({"type": value} if isinstance(value, str) else value, where)
        if isinstance(hint, type) and issubclass(hint, Settings) and isinstance(value, Mapping):
            return self.fields(hint, value, where)
        inner = [arg for arg in typing.get_args(hint) if arg not in (type(None), Ellipsis)]
        if isinstance(value, Mapping) and typing.get_origin(hint) in (dict, Mapping):
            return {k: self.nested(inner[-1], v, f"{where}.{k}") for k, v in value.items()}
        if isinstance(value, list) and typing.get_origin(hint) in (list, tuple, Sequence):
            return [self.nested(inner[0], v, f"{where}.{i}") for i, v in enumerate(value)]
        if len(inner) == 1:  # X | None
            return self.nested(inner[0], value, where)
        return value

    def absolute(self, cls: type[Settings], spec: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The spec with relative values of ``Path`` fields made absolute."""
        hints = typing.get_type_hints(cls, include_extras=True)
        paths = {n for n in cls.model_fields if hints.get(n) is Path or Path in typing.get_args(hints.get(n))}
        given = dict(spec)
        for key in paths & given.keys():
            if isinstance(given[key], str):
                given[key] = _absolute(given[key], self.layers.base_of(f"{where}.{key}"))
                self.layers.absolute[f"{where}.{key}"] = str(given[key])
        for key in {n for n in given if hints.get(n) == PathOrName and isinstance(given[n], str)}:
            given[key] = self.place(f"{where}.{key}", given[key], must_exist=True)
            self.layers.absolute[f"{where}.{key}"] = given[key]
        return given

    def place(self, key: str, value: str, *, must_exist: bool = False) -> str:
        """A value that may begin with a path, made absolute if it does."""
        base = self.layers.base_of(key)
        path, colon, name = value.rpartition(":")
        if path.endswith(".py"):
            return f"{_absolute(path, base)}{colon}{name}"
        return str(_absolute(value, base)) if must_exist and _absolute(value, base).exists() else value


_BASES: Mapping[str, type[Plugin]] = {
    "reader": Reader,
    "algorithm": Algorithm,
    "filter": Filter,
    "logger": Logger,
    "chat model": ChatModelPlugin,
}
"""What a job may name by its place in code, besides its workflow and its judge."""

_SCHEME = re.compile(r"cmd:")
"""Workflows that are no path, though they may end like one."""


def _absolute(value: str | Path, base: Path) -> Path:
    path = Path(value).expanduser()
    return path if path.is_absolute() else (base / path).resolve()


def _put(tree: Any, key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        at = int(parent) if isinstance(tree, list) else parent
        if isinstance(tree[at], str):  # the short form of a plugin
            tree[at] = {"type": tree[at]}
        tree = tree[at]
    tree[last] = value


def _targets(config: JobConfig, build: _Builder) -> list[TargetPlan]:
    if not config.targets:
        if config.train.targets not in (None, ("policy",)):
            raise ConfigError(
                f"train.targets: unknown target {config.train.targets[0]!r}; the job has only the default one, 'policy'."
            )
        return [TargetPlan("policy", ("*",), None, True)]
    named = config.train.targets
    for name in named or ():
        if name not in config.targets:
            raise ConfigError(
                f"train.targets: unknown target {name!r}{nearest(name, config.targets)}. Known: {', '.join(config.targets)}."
            )
    plans = []
    for name, target in config.targets.items():
        where = f"targets.{name}.frozen_model"
        trained = target.frozen_model is None and (named is None or name in named)
        if target.frozen_model is not None and name in (named or ()):
            raise ConfigError(
                f"train.targets: {name!r} has a frozen_model, so it cannot be trained. Remove one of the two."
            )
        if target.frozen_model is not None and target.lora:
            raise ConfigError(
                f"targets.{name}: a frozen_model answers it, so its lora has no effect. Remove one of the two."
            )
        if target.lora and not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(
                f"targets.{name}: its lora is a folder of the checkpoint; use only letters, digits, _ and - in its name."
            )
        if target.frozen_model is None and not trained and not target.lora:
            raise ConfigError(
                f"targets.{name}: is neither trained nor has a frozen_model. Add it to train.targets or give it {where}."
            )
        model = (
            build.plugin("chat model", target.frozen_model, where)
            if target.frozen_model is not None
            else None
        )
        assert model is None or isinstance(model, ChatModelPlugin)
        plans.append(TargetPlan(name, target.agents, model, trained, target.lora))
    if not any(plan.trained for plan in plans):
        raise ConfigError("targets: none is trained; leave at least one without a frozen_model.")
    whole = [plan.name for plan in plans if plan.model is None and not plan.lora]
    if whole and len([plan for plan in plans if plan.model is None]) > 1:
        raise ConfigError(
            f"targets.{whole[0]}: trains all weights, on which the adapters of the other targets stand. Give it a lora of its "
            "own, or a frozen_model, or let one target have all agents."
        )
    return plans


def _with_reference(config: JobConfig, build: _Builder, algorithm: Algorithm) -> JobConfig:
    """The job with ``train.reference`` made absolute, if it is needed; ConfigError where it is missing or
    means nothing."""
    train = config.train
    if train.reference is None:
        if "reference" in algorithm.needs:
            raise ConfigError(
                f"train.reference: the algorithm {algorithm.name!r} needs a teacher; name a model of the same tokenizer."
            )
        return config
    if not train.kl and "reference" not in algorithm.needs:
        raise ConfigError(
            f"train.reference: the algorithm {algorithm.name!r} does not use it; remove it or set train.kl."
        )
    place = build.place("train.reference", train.reference, must_exist=True)
    return config.model_copy(update={"train": train.model_copy(update={"reference": place})})


def _check_capabilities(config: JobConfig, backbone: Backbone, targets: Sequence[TargetPlan]) -> None:
    can: Capabilities = backbone.capabilities
    if not can.trains:
        return  # it accepts everything and says what it skipped
    trained = [t.name for t in targets if t.trained]
    if len(trained) > 1 and not can.several_targets:
        raise ConfigError(
            f"targets: the backbone {backbone.name!r} trains one target, but {', '.join(trained)} are trained. Give all but one "
            "a frozen_model, or let them share one target."
        )
    for target in targets:
        if target.lora and not can.lora:
            raise ConfigError(
                f"targets.{target.name}.lora: the backbone {backbone.name!r} cannot honour it; remove the key."
            )
    if config.run.deterministic and not can.deterministic:
        raise ConfigError(
            f"run.deterministic: the backbone {backbone.name!r} cannot repeat runs bit for bit; remove the key."
        )
    for key in sorted(OPTIONAL_KEYS - can.keys):
        section, _, name = key.partition(".")
        settings: Settings = getattr(config, section)
        if getattr(settings, name) != type(settings).model_fields[name].default:
            raise ConfigError(f"{key}: the backbone {backbone.name!r} cannot honour it; remove the key.")
    clocked = {
        "rollout.oversample": (config.rollout.oversample > 1, "which groups are complete first"),
        "train.asynchronous": (config.train.asynchronous, "which weights sample a token"),
    }
    for key, (asked, what) in clocked.items():
        if config.run.deterministic and asked:
            raise ConfigError(
                f"{key}: {what} depends on the clock, so a run cannot be repeated bit for bit; remove it or run.deterministic."
            )
