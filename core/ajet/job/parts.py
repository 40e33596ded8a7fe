"""The parts of a job: one walk beside the types of its fields makes relative paths absolute, and plugins are built from what it finds.

Every key may come from another layer, so a path is relative to the folder in which its own key was written. pydantic does
not tell a validator where its value stands, hence the walk.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeGuard, Union

from pydantic import BaseModel

from ajet.capture.process.uncaptured import refusing_calls
from ajet.interfaces.base import CodePath, PathOrName, Settings, Spec, SpecOf, by_type
from ajet.interfaces.judge import FunctionJudge, Judge, RewardFromWorkflow, judge_binding
from ajet.interfaces.prompts import read_prompts
from ajet.interfaces.reader import Reader
from ajet.interfaces.service import Command, Service
from ajet.interfaces.workflow import (
    LoadedWorkflow,
    WorkflowPlugin,
    load_object,
    load_workflow,
    make_workflow,
    todays_name,
)
from ajet.job.config import BackboneSettings, JobConfig, Layers, TaskSettings
from ajet.job.job import Backbone
from ajet.job.objects import OBJECT, given_object, given_reader, is_object
from ajet.plugins import P, Plugins, load_plugins, validated
from ajet.rollout.settings import RolloutSettings
from ajet.types import ConfigError
from ajet.utils.suggest import nearest

COMMAND = "cmd:"
"""Begins workflows that are not the name of an object, though they may end like one."""


class JobParts:
    """Resolves the values of a job, which leaves those that their types refuse as they are, and builds plugins from resolved values.

    Both raise ConfigError, the first if the class that a spec names in the user's own code does not import. Without ``readers``
    that code is not imported for readers: for processes that read no tasks.
    """

    def __init__(self, layers: Layers, *, readers: bool = True) -> None:
        self.plugins = load_plugins()
        self._layers = layers
        self._readers = readers

    def job(self) -> JobConfig:
        """The whole job, resolved. A copy of it is kept with the run, so the folder in which commands run becomes explicit, and
        the texts of its prompts take the place of their file, which may change."""
        config: JobConfig = self.resolved(JobConfig, self._layers.job(), "")
        if is_command(config.workflow) and config.rollout.workdir is None:
            workdir = {"workdir": self._layers.base_of("workflow")}
            config = config.model_copy(update={"rollout": config.rollout.model_copy(update=workdir)})
        if isinstance(config.prompts, Path):
            config = config.model_copy(update={"prompts": read_prompts(config.prompts)})
        return config

    def spec(self, kind: str, spec: Any, where: str) -> Any:
        """The spec of a plugin, or the name of a workflow, resolved."""
        if kind == "workflow" and isinstance(spec, str):
            return self._code(spec, where)
        spec = by_type(spec)
        if not isinstance(spec, Mapping):
            return spec
        spec, name = dict(spec), spec.get("type")
        if isinstance(name, str):
            spec["type"] = name = self._code(name, f"{where}.type")
        if kind == "service":
            name = service_type(self.plugins, where.rpartition(".")[2], spec)
        runs = self.plugins.classes.get((kind, str(name)))
        if runs and "workdir" in runs.cls.model_fields and spec.get("workdir") is None:
            bases = [base for key, base in self._layers.bases.items() if key.startswith(f"{where}.")]
            spec["workdir"] = str(bases[0] if bases else Path.cwd())
        fields = {key: value for key, value in spec.items() if key != "type"}
        cls = self._class(kind, name, where) if fields else None
        return spec | self._fields(cls, fields, where) if cls else spec

    def _fields(self, cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The values of a class's fields."""
        hints = typing.get_type_hints(cls, include_extras=True)
        if cls is BackboneSettings:
            hints |= self.plugins.of(Backbone)
        return {
            key: self.resolved(hints.get(key), value, f"{where}.{key}".lstrip("."))
            for key, value in values.items()
        }

    def resolved(self, hint: Any, value: Any, where: str) -> Any:
        """The value of a field of this type, with all values in it."""
        if isinstance(value, BaseModel):  # it has been checked, and what changes is not checked again
            given = {name: field for name, field in value if name in value.model_fields_set}
            return value.model_copy(update=self._fields(type(value), given, where))
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin in (Union, types.UnionType):
            arms = [arm for arm in inner if arm is not type(None)]
            fitting = [Path] if Path in arms and isinstance(value, str | Path) else arms
            return self.resolved(fitting[0], value, where) if len(fitting) == 1 else value
        if isinstance(value, str | Path) and hint is Path:
            return type(value)(self._absolute(value, where))
        if isinstance(value, str) and hint == CodePath:
            return self._code(value, where)
        if isinstance(value, str) and hint == PathOrName:
            absolute, code = str(self._absolute(value, where)), self._code(value, where)
            return absolute if code == value and Path(absolute).exists() else code
        if origin is Annotated:
            kind = next((mark.kind for mark in inner[1:] if isinstance(mark, SpecOf)), None)
            return self.spec(kind, value, where) if kind else self.resolved(inner[0], value, where)
        if isinstance(hint, type) and issubclass(hint, Judge) and isinstance(value, Mapping | str):
            spec = self.spec("judge", value, where)
            return Spec(spec, lambda: self.judge(spec, where))
        if isinstance(hint, type) and issubclass(hint, Settings) and isinstance(value, Mapping):
            return self._fields(hint, value, where)
        if isinstance(value, Mapping) and origin in (dict, Mapping):
            return {key: self.resolved(inner[-1], part, f"{where}.{key}") for key, part in value.items()}
        if isinstance(value, list | tuple) and origin in (list, tuple, Sequence):
            return type(value)(self.resolved(inner[0], part, f"{where}.{i}") for i, part in enumerate(value))
        return value

    def _absolute(self, value: str | Path, where: str) -> Path:
        path = Path(value).expanduser()
        return path if path.is_absolute() else (self._layers.base_of(where) / path).resolve()

    def _code(self, value: str, where: str) -> str:
        value = todays_name(value)
        file, colon, name = value.rpartition(":")
        named = file.endswith(".py") and not value.startswith((COMMAND, OBJECT))
        return f"{self._absolute(file, where)}{colon}{name}" if named else value

    def _class(self, kind: str, name: Any, where: str) -> type[Settings] | None:
        """The class whose fields a spec gives; None for a function and for what building will report."""
        if not isinstance(name, str):
            return None
        installed = self.plugins.classes.get((kind, name))
        cls: Any = installed.cls if installed else None
        if is_object(name):
            cls = self._layers.objects.get(where)
        elif ":" in name and (self._readers or kind != "reader"):
            cls = load_named(name, where if kind == "judge" else f"{where}.type")
        return cls if isinstance(cls, type) and issubclass(cls, Settings) else None

    def plugin(self, base: type[P], spec: Mapping[str, Any], where: str) -> P:
        """A plugin of a kind, which its base class names."""
        name = spec.get("type")
        if not isinstance(name, str) or ":" not in name:
            return self.plugins.build(base, spec, where)
        cls = load_named(name, f"{where}.type")
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise ConfigError(
                f"{where}.type {name}",
                f"is not a {base.kind}; name a subclass of ajet.{base.__name__}, or a {base.kind} that "
                "`ajet plugins` lists.",
            )
        return validated(cls, {key: value for key, value in spec.items() if key != "type"}, where)

    def reader(self, spec: Mapping[str, Any], where: str) -> Reader:
        """A reader, or an iterable of tasks as one."""
        if is_object(spec.get("type")):
            return given_reader(given_object(self._layers, where, spec["type"]), where)
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

    def workflow(
        self, spec: str | Mapping[str, Any], rollout: RolloutSettings, hidden: Collection[str]
    ) -> LoadedWorkflow:
        """The job's workflow; a program of its own gets tasks without the ``hidden`` fields of their metadata."""
        found = self._workflow(spec, rollout.workdir)
        if not isinstance(found.target, WorkflowPlugin):
            return found
        if found.target.is_remote and not rollout.gateway_address.url:
            raise ConfigError(
                "rollout.gateway_address",
                f"the agents of the workflow {found.spec} run where 127.0.0.1 is not this machine, so they cannot reach their model. "
                "Say where they do, rollout.gateway_address: {host: 0.0.0.0, port: 8900, url: http://ADDRESS:8900}, or give them this "
                "machine's network.",
            )
        seconds, limit = found.target.seconds, rollout.timeout
        if seconds is not None and seconds >= limit:
            raise ConfigError(
                "rollout.timeout",
                f"{limit:g}s is not longer than the {seconds:g}s that an episode may take by the settings of the workflow, so one that "
                f"takes as long would not be judged. Set it to more, such as {seconds + 60:g}s.",
            )
        return replace(found, withheld=hidden)

    def _workflow(self, spec: str | Mapping[str, Any], workdir: Path | None) -> LoadedWorkflow:
        hook = self.plugins.manager.hook
        if workdir is not None and not workdir.is_dir():
            raise ConfigError("rollout.workdir", f"{workdir} is not a directory.")
        if not isinstance(spec, str):
            if workdir is not None:
                raise ConfigError(
                    "rollout.workdir", "is for cmd: workflows; this one takes workflow.workdir."
                )
            return make_workflow(self.plugin(WorkflowPlugin, spec, "workflow"), str(spec.get("type")))
        if is_command(spec):
            folder = workdir or self._layers.base_of("workflow")
            return make_workflow(self.plugin(WorkflowPlugin, by_command(spec, folder), "workflow"), spec)
        if is_object(spec):
            given = given_object(self._layers, "workflow", spec)
            return make_workflow(given, spec.removeprefix(OBJECT), hook)
        with refusing_calls(f"workflow {spec}"):
            return load_workflow(spec, hook)

    def judge(self, spec: Mapping[str, Any] | None, where: str = "judge") -> Judge:
        """A judge; without a spec, the workflow's own reward."""
        if spec is None:
            return RewardFromWorkflow()
        kind = spec.get("type")
        if not isinstance(kind, str) or ":" not in kind:
            return self.plugin(Judge, spec, where)
        if is_object(kind):
            found, kind = given_object(self._layers, where, kind), kind.removeprefix(OBJECT)
        else:
            found = load_named(kind, where)
        fields = {k: v for k, v in spec.items() if k != "type"}
        if isinstance(found, Judge):
            return found
        if isinstance(found, type) and issubclass(found, Judge):
            return validated(found, fields, where)
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
        """The backbone that the job names. The keys of the others are checked, too."""
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


def build_workflow(layers: Layers, settings: TaskSettings, judged: bool) -> LoadedWorkflow:
    """The workflow of a job, without the rest of the job. Raises ConfigError."""
    parts = JobParts(layers)
    config = parts.job()
    return parts.workflow(config.workflow or "", config.rollout, settings.hides(judged))


def build_plugin(layers: Layers, base: type[P], spec: Mapping[str, Any], where: str) -> P:
    """A plugin of a kind, which its base class names, from a spec that stands at ``where`` in the job."""
    parts = JobParts(layers)
    return parts.plugin(base, parts.spec(base.kind, spec, where), where)


def build_judge(layers: Layers) -> Judge:
    """The judge of a job, without the rest of the job. Raises ConfigError."""
    parts = JobParts(layers)
    return parts.judge(parts.spec("judge", layers.job().judge, "judge"))


def build_backbone(layers: Layers) -> Backbone:
    """The backbone that a job chooses, without the rest of the job. Raises ConfigError."""
    parts = JobParts(layers)
    return parts.backbone(parts.resolved(BackboneSettings, layers.job().backbone, "backbone"))


def build_service(layers: Layers, name: str) -> Service:
    """A service that the job declares or a plugin brings. Raises ConfigError."""
    parts, declared = JobParts(layers), layers.job().services
    if name in declared:
        declared = {**declared, name: parts.spec("service", declared[name], f"services.{name}")}
    return parts.service(name, declared)


def is_command(workflow: object) -> TypeGuard[str]:
    """Whether a job's workflow is ``cmd:…``."""
    return isinstance(workflow, str) and workflow.startswith(COMMAND)


def by_command(workflow: str, folder: Path) -> dict[str, Any]:
    """The spec of which ``cmd:…`` is the short form."""
    shared = {"workspace": "shared", "home": "shared", "inherit": ("*",), "stdin": "task"}
    return {"type": "command", "command": workflow.removeprefix(COMMAND), "workdir": folder, **shared}


def load_named(name: str, where: str) -> Any:
    """An object in the user's own code, whose LLM calls are refused while it is imported. Raises ConfigError."""
    with refusing_calls(f"{where} {name}"):
        return load_object(name, where)


def service_type(plugins: Plugins, name: str, spec: Mapping[str, Any]) -> Any:
    """The plugin of a service: its ``type``; else a command, if it names one; else the plugin of its name."""
    own = "command" not in spec and ("service", name) in plugins.classes
    return spec.get("type", name if own else Command.name)
