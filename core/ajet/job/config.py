"""The job: one typed tree that YAML, flags and ``--set`` fill; the source of every value is kept."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from ajet.interfaces.base import (
    ChatModelSpec,
    JudgeSpec,
    LoggerSpec,
    PathOrName,
    ReaderSpec,
    ServiceSpec,
    Settings,
    WorkflowSpec,
    by_name,
    by_path,
    by_type,
)
from ajet.job import DEFAULT_BACKBONE
from ajet.job.arguments import ARGUMENTS, giving
from ajet.learning.alarms import NAMES
from ajet.learning.settings import LoraSettings, SelectorSettings, TrainSettings
from ajet.plugins import explain_validation, load_plugins
from ajet.rollout.settings import EvalSettings, RolloutSettings
from ajet.types import AjetError, ConfigError
from ajet.utils.keys import leaves
from ajet.utils.suggest import nearest
from ajet.utils.yaml_file import parse_yaml, read_yaml


class TaskSettings(Settings):
    """Where tasks come from."""

    reader: ReaderSpec = Field(
        description="Reader of the training tasks: {type: jsonl, path: train.jsonl}, or a path."
    )
    validation: ReaderSpec | None = Field(
        None,
        description="Reader of the validation tasks, in the same form. Without a type, it is the reader with these fields.",
    )
    selector: Annotated[SelectorSettings, BeforeValidator(by_type)] = Field(
        SelectorSettings(),
        description="Which tasks a training step takes: {type: difficulty}, or a type alone.",
    )
    hidden: tuple[str, ...] | None = Field(
        None,
        description="Fields of the tasks' metadata that commands and other workflows with a type do not get; default: answer, "
        "if there is a judge.",
    )

    def hides(self, judged: bool) -> tuple[str, ...]:
        """`hidden`, or its default for a job with or without a judge."""
        if self.hidden is None:
            return ("answer",) if judged else ()
        return self.hidden


class TargetSettings(Settings):
    """A named set of agents that share weights."""

    agents: tuple[str, ...] = Field(("*",), description="Name patterns of its agents, as in a shell.")
    models: tuple[str, ...] = Field(
        (),
        description='Patterns of the model names in requests, such as ["*haiku*"]: it takes only such calls of its agents, before '
        "targets without this key do.",
    )
    train: bool = Field(
        True, description="false: the job's model answers its calls, but they are not trained."
    )
    frozen_model: ChatModelSpec | None = Field(
        None, description="Chat model that answers in its place; never trained."
    )
    lora: LoraSettings | None = Field(
        None, description="Its own adapter for the job's model; without one, all weights are trained."
    )


class BackboneSettings(BaseModel):
    """Which backbone runs the job; each backbone's own keys stand under its name."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = Field(DEFAULT_BACKBONE, description=ARGUMENTS["backbone"].help)

    def section(self, name: str) -> dict[str, Any]:
        """The keys under ``backbone.<name>``."""
        return dict((self.model_extra or {}).get(name) or {})


class RunSettings(Settings):
    """Where a run is stored, and whether it is repeatable."""

    dir: str = Field("runs", description=ARGUMENTS["run_dir"].help)
    name: str | None = Field(None, min_length=1, max_length=200, description=ARGUMENTS["name"].help)
    tags: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        (), description=ARGUMENTS["tags"].help
    )
    seed: int = Field(0, ge=0, description=ARGUMENTS["seed"].help)
    deterministic: bool = Field(False, description=ARGUMENTS["deterministic"].help)
    restarts: int = Field(
        0,
        ge=0,
        description="How often a run resumes by itself after a machine, server or process has failed.",
    )
    stop_on: tuple[str, ...] = Field(
        (),
        description="Alarms that end a run, with exit code 3: collapse, no_signal, … (`ajet docs alarms` has all).",
    )
    record_batches: bool = Field(
        True, description="Keep what each step trained in the run folder, in `batches/`, for `ajet audit`."
    )
    loggers: tuple[LoggerSpec, ...] = Field((), description="Further loggers by name, or {type: name, …}.")
    services: tuple[str, ...] = Field(
        (), description="Services that the job needs, by name; like `--with NAME` for each."
    )

    @field_validator("stop_on")
    @classmethod
    def _known_alarms(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in NAMES:
                raise ValueError(f"unknown alarm {name!r}{nearest(name, NAMES)}. Known: {', '.join(NAMES)}")
        return names


class JobConfig(Settings):
    """A job. The same file works on every backbone."""

    task: TaskSettings | None = Field(None, description="Where tasks come from.")
    workflow: WorkflowSpec | None = Field(None, description=ARGUMENTS["workflow"].help)
    judge: JudgeSpec | None = Field(
        None,
        description="Judge by name, {type: name, …}, or a function pkg.module:name; default: the workflow's own reward.",
    )
    judge_check: JudgeSpec | None = Field(
        None,
        description="A second judge, with rewards on the same scale, for a share of the episodes (rollout.judge_check_share): an alarm "
        "is raised if it does not confirm that the reward rises. Nothing is trained on it.",
    )
    model: PathOrName = Field("starter", description=ARGUMENTS["model"].help)
    models: dict[str, ChatModelSpec] = Field(
        {},
        description="Chat models by name, for `ajet eval --models`: {type: openai, base_url: …, model: …}.",
    )
    targets: dict[str, TargetSettings] = Field(
        {}, description="Which agents share weights; default: one target, all trained."
    )
    prompts: dict[str, str] | Path | None = Field(
        None,
        description="Texts for `ajet.prompt` by name, or a file of them, such as `ajet tune-prompt` writes.",
    )
    rollout: RolloutSettings = Field(RolloutSettings(), description="How episodes are run.")
    train: TrainSettings = Field(TrainSettings(), description="What is learned and how fast.")
    eval: EvalSettings = Field(EvalSettings(), description="Validation during training, and `ajet eval`.")
    backbone: Annotated[BackboneSettings, BeforeValidator(by_name)] = Field(
        BackboneSettings(), description="What runs the job, by name, and each backbone's own keys."
    )
    run: RunSettings = Field(
        RunSettings(), description="Where the run is stored, and whether it is repeatable."
    )
    plugins: dict[str, dict[str, Any]] = Field(
        {},
        description="Settings of plugins that bring commands of their own, by the plugin's name, such as `online`.",
    )
    services: dict[str, ServiceSpec] = Field(
        {},
        description="Programs that may run beside the job, by name: {command: […], health: URL}, or a plugin's.",
    )


SHORT_FORMS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "backbone": by_name,
    **dict.fromkeys(("eval.engine", "judge", "judge_check", "task.selector", "train.algorithm"), by_type),
    "task.reader": by_path,
    "task.validation": by_path,
}
"""Keys that may be one word instead of a mapping, and what the word stands for."""


@dataclass(slots=True)
class Layers:
    """Values in order of strength (file, flags, ``--set``), each remembered with its source."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Dotted key of a leaf -> where it was set."""
    bases: dict[str, Path] = field(default_factory=dict)
    """Dotted key of a leaf -> folder that its relative paths are relative to."""
    objects: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> the object in whose place the job holds a description (`ajet.job.objects`)."""
    _job: JobConfig | None = None
    """The values, checked."""

    def add(self, tree: Mapping[str, Any], source: str, base: Path, below: str = "") -> None:
        """Lay a tree of values over what is there, or over what is ``below`` a key with its dot."""
        for key, value in leaves(tree, below):
            self.set(key, value, source, base)

    def set(self, key: str, value: Any, source: str, base: Path) -> None:
        """Set one dotted key. A scalar laid over a mapping replaces it, and the other way round; but
        the name of a backbone keeps each backbone's own keys."""
        if isinstance(value, str) and key in SHORT_FORMS:
            if key != "backbone":
                self.set(key, {}, source, base)
            self.add(SHORT_FORMS[key](value), source, base, f"{key}.")
            return
        self._job = None
        *parents, last = key.split(".")
        node = self.values
        for parent in parents:
            below = by_type(node.get(parent))
            if not isinstance(below, dict):
                below = {}
            node[parent] = below
            node = below
        node[last] = value
        for replaced in [k for k in self.sources if k.startswith(f"{key}.")]:
            del self.sources[replaced], self.bases[replaced]
        self.sources[key], self.bases[key] = source, base

    def base_of(self, key: str) -> Path:
        """The folder for relative paths of a key."""
        while key:
            if key in self.bases:
                return self.bases[key]
            key = key.rpartition(".")[0]
        return Path.cwd()

    def source_of(self, key: str) -> str:
        """Where a key's value came from."""
        below = [source for k, source in self.sources.items() if k == key or k.startswith(f"{key}.")]
        above = [self.sources[k] for k in _parents(key) if k in self.sources]
        return (below or above or ["default"])[-1]

    def job(self) -> JobConfig:
        """The job, checked after each change. Raises ConfigError in one line, naming key, source and remedy."""
        if self._job is not None:
            return self._job
        self._complete_validation()
        try:
            self._job = JobConfig(**self.values)
            return self._job
        except ValidationError as error:
            unknown = any(fault["type"] == "extra_forbidden" for fault in error.errors())
            backbones = backbone_keys() if unknown else ()  # which load all plugins, as other errors need not
            known = (*all_keys(), *all_keys(TargetSettings, "targets.NAME."), *backbones)
            keys = [each.key for each in known]
            with self.located():
                raise ConfigError(*explain_validation(error, JobConfig, "", elsewhere=keys)) from None

    def _complete_validation(self) -> None:
        """Give a validation without a type the fields of the reader that it lacks, with their sources and folders."""
        task = self.values.get("task")
        own, reader = (task.get("validation"), task.get("reader")) if isinstance(task, dict) else (None, None)
        if not own or not isinstance(own, dict) or "type" in own or not isinstance(reader, dict):
            return
        if "task.reader" in self.objects:  # tasks of this process, which have no fields
            return
        for name in reader.keys() - own.keys():
            key = f"task.reader.{name}"
            self.set(f"task.validation.{name}", reader[name], self.source_of(key), self.base_of(key))

    @contextmanager
    def located(self) -> Iterator[None]:
        """A block whose errors say where their key was set: in its place the argument that gave it, or before it the file."""
        try:
            yield
        except AjetError as error:
            if error.where.partition(" ")[0] == error.key:  # not in such a block already
                error.where = self._located(error.key) + error.where.removeprefix(error.key)
            raise

    def _located(self, key: str) -> str:
        source, row = self.source_of(key), giving(key)
        if source == "default":
            return key
        if row is None or row.source != source:
            return f"{source} {key}" if source.endswith("=") else f"{source}: {key}"
        field = key.removeprefix(row.key).removeprefix(".")
        implied = SHORT_FORMS[row.key]("") if row.key in SHORT_FORMS else {}
        return source if field in ("", *implied) else f"{source} {field}"


def read_job_file(path: Path) -> dict[str, Any]:
    """A job file's values. Raises ConfigError with file and line."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such job file.")
    data = read_yaml(path)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a job file is a mapping of keys, found {type(data).__name__}.")
    return data


def parse_set(text: str) -> tuple[str, Any]:
    """``a.b.c=value``; the value is read as YAML. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: write --set a.b.c=value.")
    try:
        return key.strip(), parse_yaml(value, f"--set {key.strip()}")
    except ConfigError:
        return key.strip(), value


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """The help of one key."""

    key: str
    type: str
    default: Any
    help: str


def explain(key: str, further: Iterable[KeyHelp] = ()) -> list[KeyHelp]:
    """A key, with an entry for each plugin that declares it otherwise, or all keys of a section; ``further`` are those of plugins.
    Raises ConfigError with the nearest key."""
    known = [*all_keys(), *further]
    keys = [k for k in known if k.key == key] or [k for k in known if not key or k.key.startswith(f"{key}.")]
    if not keys:
        hint = nearest(key, {k.key: None for k in known})
        raise ConfigError(key, f"unknown key{hint}. `ajet config explain` lists all keys.")
    return keys


def all_keys(model: type[BaseModel] = JobConfig, prefix: str = "") -> Iterator[KeyHelp]:
    """Every key of the job with its help."""
    for name, info in model.model_fields.items():
        annotation = info.annotation
        inner = (
            annotation
            if _is_model(annotation)
            else next((a for a in getattr(annotation, "__args__", ()) if _is_model(a)), None)
        )
        if inner is not None and name != "targets":
            yield from all_keys(cast(type[BaseModel], inner), f"{prefix}{name}.")
            continue
        default = "required" if info.is_required() else info.default
        yield KeyHelp(f"{prefix}{name}", _type_name(annotation), default, info.description or "")


def backbone_keys() -> Iterator[KeyHelp]:
    """The keys of every installed backbone, the default one's first."""
    backbones = [cls for (kind, _), cls in load_plugins().classes.items() if kind == "backbone"]
    for installed in sorted(backbones, key=lambda each: each.name != DEFAULT_BACKBONE):
        yield from all_keys(installed.cls, f"backbone.{installed.name}.")


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    # Without the modules.
    return re.sub(r"\b[a-z_]\w*\.(?:[a-z_]\w*\.)*(?=[A-Z])", "", str(_bare(annotation)))


def _bare(annotation: Any) -> Any:
    """An annotation without what `Annotated` adds inside it."""
    origin, inner = get_origin(annotation), tuple(map(_bare, get_args(annotation)))
    if origin is Annotated:
        return inner[0]
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, inner)
    return origin[inner] if origin and origin is not Literal else annotation


def _parents(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]
