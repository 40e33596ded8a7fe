"""Relative paths of a job, made absolute once, before anything is built: the types of fields say what is a path.

Every key may come from another layer, so a path is relative to the folder in which its own key was written. pydantic does
not tell a validator where its value stands, so the values are walked beside the types (`changed`).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeGuard, TypeVar, Union

from pydantic import BaseModel

from ajet.capture.process.importing import refusing_calls
from ajet.interfaces.base import CodePath, PathOrName, Settings, SpecOf, by_type
from ajet.interfaces.judge import Judge
from ajet.interfaces.service import Command
from ajet.interfaces.workflow import load_object, todays_name
from ajet.job.config import BackboneSettings, JobConfig, Layers
from ajet.job.objects import is_object
from ajet.plugins import Plugins

COMMAND = "cmd:"
"""Begins workflows that are not the name of an object, though they may end like one."""

S = TypeVar("S", bound=BaseModel)
Change = Callable[[Any, Any, str], Any]
"""(type, value, dotted key) -> the new value, or None for a value to walk into."""


class Paths:
    """Makes relative paths in a job's values absolute. Values that their types refuse stay as they are.

    Raises ConfigError if the class that a spec names in the user's own code does not import. Without ``readers`` that code
    is not imported for readers: for processes that read no tasks.
    """

    def __init__(self, plugins: Plugins, layers: Layers, *, readers: bool = True) -> None:
        self._plugins = plugins
        self._layers = layers
        self._readers = readers

    def job(self, config: JobConfig) -> JobConfig:
        """The whole job. The default of a folder in which commands run becomes explicit too, as the job file of a resumed
        run is in another folder."""
        config = changed_settings(config, "", self._change)
        if is_command(config.workflow) and config.rollout.workdir is None:
            workdir = {"workdir": self._layers.base_of("workflow")}
            config = config.model_copy(update={"rollout": config.rollout.model_copy(update=workdir)})
        return config

    def spec(self, kind: str, spec: Any, where: str) -> Any:
        """The spec of a plugin, or the name of a workflow."""
        if kind == "workflow" and isinstance(spec, str):
            return self._code(spec, where)
        spec = by_type(spec)
        if not isinstance(spec, Mapping):
            return spec
        name = spec.get("type")
        fixed = {"type": self._code(name, f"{where}.type")} if isinstance(name, str) else {}
        if kind == "service":
            name = service_type(self._plugins, where.rpartition(".")[2], spec)
        runs = self._plugins.classes.get((kind, str(name)))
        if runs and "workdir" in runs.cls.model_fields and spec.get("workdir") is None:
            bases = [base for key, base in self._layers.bases.items() if key.startswith(f"{where}.")]
            fixed["workdir"] = str(bases[0] if bases else Path.cwd())
        fields = {key: value for key, value in spec.items() if key not in fixed}
        cls = self._class(kind, name, where) if fields else None
        return {**spec, **fixed, **(changed_fields(cls, fields, where, self._change) if cls else {})}

    def backbone(self, settings: BackboneSettings) -> BackboneSettings:
        """The keys of every backbone."""
        sections = {}
        for name, values in (settings.model_extra or {}).items():
            cls, where = self._class("backbone", name, "backbone"), f"backbone.{name}"
            if cls and isinstance(values, Mapping):
                sections[name] = changed_fields(cls, values, where, self._change)
        return settings.model_copy(update=sections)

    def _change(self, hint: Any, value: Any, where: str) -> Any:
        if isinstance(value, str | Path) and (hint is Path or Path in _arms(hint)):
            return type(value)(self._absolute(value, where))
        if isinstance(value, str) and hint == CodePath:
            return self._code(value, where)
        if isinstance(value, str) and hint == PathOrName:
            absolute, code = str(self._absolute(value, where)), self._code(value, where)
            return absolute if code == value and Path(absolute).exists() else code
        if isinstance(value, BackboneSettings):
            return self.backbone(value)
        if isinstance(hint, type) and issubclass(hint, Judge) and isinstance(value, Mapping | str):
            return self.spec("judge", value, where)
        kind = next((mark.kind for mark in typing.get_args(hint)[1:] if isinstance(mark, SpecOf)), None)
        return self.spec(kind, value, where) if kind else None

    def _absolute(self, value: str | Path, where: str) -> Path:
        path = Path(value).expanduser()
        return path if path.is_absolute() else (self._layers.base_of(where) / path).resolve()

    def _code(self, value: str, where: str) -> str:
        value = todays_name(value)
        file, colon, name = value.rpartition(":")
        named = file.endswith(".py") and not is_command(value) and not is_object(value)
        return f"{self._absolute(file, where)}{colon}{name}" if named else value

    def _class(self, kind: str, name: Any, where: str) -> type[Settings] | None:
        """The class whose fields a spec gives; None for a function and for what building will report."""
        if not isinstance(name, str):
            return None
        installed = self._plugins.classes.get((kind, name))
        found: Any = installed.cls if installed else None
        if is_object(name):
            found = self._layers.objects.get(where)
        elif ":" in name and (self._readers or kind != "reader"):
            found = load_named(
                self._code(name, f"{where}.type"), where if kind == "judge" else f"{where}.type"
            )
        return found if isinstance(found, type) and issubclass(found, Settings) else None


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


def changed_settings(settings: S, where: str, change: Change) -> S:
    """Checked settings with each field that was set `changed`; what changes is not checked again."""
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    return settings.model_copy(update=changed_fields(type(settings), given, where, change))


def changed_fields(cls: type[Any], values: Mapping[str, Any], where: str, change: Change) -> dict[str, Any]:
    """The values of a class's fields, each `changed`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        key: changed(hints.get(key), value, f"{where}.{key}".lstrip("."), change)
        for key, value in values.items()
    }


def changed(hint: Any, value: Any, where: str, change: Change) -> Any:
    """A value with what ``change`` makes of it, or else of the values in it."""
    new = change(hint, value, where)
    if new is not None:
        return new
    if isinstance(value, BaseModel):
        return changed_settings(value, where, change)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Settings) and isinstance(value, Mapping):
        return changed_fields(hint, value, where, change)
    if isinstance(value, Mapping) and origin in (dict, Mapping):
        return {key: changed(inner[-1], part, f"{where}.{key}", change) for key, part in value.items()}
    if isinstance(value, list | tuple) and origin in (list, tuple, Sequence):
        return type(value)(changed(inner[0], part, f"{where}.{i}", change) for i, part in enumerate(value))
    if origin is Annotated or len(_arms(hint)) == 1:
        return changed(inner[0] if origin is Annotated else _arms(hint)[0], value, where, change)
    return value


def _arms(hint: Any) -> list[Any]:
    """The types of a union, without None."""
    union = typing.get_origin(hint) in (Union, types.UnionType)
    return [arm for arm in typing.get_args(hint) if arm is not type(None)] if union else []
