"""A configuration file of Trinity-RFT as a job. `ajet_trinity_files.keys` says what becomes of each key."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet.interfaces.helpers import nearest, parse_yaml, read_yaml
from ajet.job.config import Layers
from ajet_trinity_files.keys import (
    ADAPTER,
    AUXILIARY,
    ENGINES,
    KL,
    PENALIZED,
    READ,
    TABLE,
    TASKSET,
    Rule,
    is_trinity,
    number,
    with_rules,
)

ROOT_VARIABLE = "TRINITY_CHECKPOINT_ROOT_DIR"
MODES = ("both", "colocate", "explore", "train", "serve", "bench")
ONLINE = ("serve", "train")
"""The modes of online training: of the explorer, and of the trainer."""
_PROJECTS = {"wandb": "project", "swanlab": "project", "mlflow": "experiment"}
"""Monitors, and the field of the logger that gets the project."""
_INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
_POWER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
_SELECTORS = {
    "sequential": "sequential",
    "shuffle": "shuffle",
    "random": "shuffle",
    "offline_easy2hard": "easy_to_hard",
    "difficulty_based": "difficulty",
}
_OF_DIFFICULTY = {
    "lamb": ("forgetting", 0.2),
    "rho": ("known_weight", 0.2),
    "target_reward": ("target_pass_rate", 1.0),
    "tau": ("softmax_temperature", 1.0),
    "do_sample": ("thompson_sampling", False),
}
"""Arguments of the selector difficulty_based: the key of task.selector, and Trinity's default."""
_MOST_INTERPOLATIONS = 100
_INPUT = "buffer.explorer_input"


@dataclass(frozen=True, slots=True)
class Taskset:
    """A task set of the file."""

    path: str
    split: str
    subset: str | None
    workflow_args: Mapping[str, Any]
    fields: Mapping[str, str]
    """``query``, ``answer`` and ``messages`` of the reader, where the file names the fields of the records."""

    def reader(self) -> dict[str, Any]:
        """The reader of a job. A field that the file does not name stays under its own name in the task's metadata."""
        subset = {"subset": self.subset} if self.subset else {}
        names = {**dict.fromkeys(("id", "query", "answer", "messages")), **self.fields}
        return {"type": "huggingface", "path": self.path, "split": self.split, **subset, **names}


@dataclass(slots=True)
class TrinityFile:
    """What a file says: keys of a job, and what the caller makes of the rest."""

    path: Path
    mode: str = "both"
    project: str | None = None
    group: str = ""
    name: str | None = None
    root: str = "checkpoints"
    resume: bool = False
    """Whether the file asks to go on with the last checkpoint."""
    values: dict[str, Any] = field(default_factory=dict)
    """Key of the job -> value."""
    sources: dict[str, str] = field(default_factory=dict)
    """Key of the job -> the key of the file that sets it."""
    implied: dict[str, Any] = field(default_factory=dict)
    """Key of the job -> value that Trinity uses where the file is silent, and AgentJet would not."""
    train: Taskset | None = None
    validation: Taskset | None = None
    selector: dict[str, Any] = field(default_factory=dict)
    """``task.selector`` of the job; empty for none."""
    auxiliary: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name of an auxiliary model -> its keys."""
    epochs: int = 1
    """Passes over the tasks, if ``values`` has no steps."""
    monitor: str = "tensorboard"
    unused: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> the keys of the file that have no effect because of it."""

    @property
    def folder(self) -> str:
        """Of the experiment, relative to the working directory."""
        return str(Path(self.root, self.project or "Trinity-RFT", self.group, self.name or "rft"))

    def idle(self, key: str, why: str) -> None:
        """Note that a key has no effect."""
        self.unused.setdefault(why, []).append(key)

    def warnings(self) -> list[str]:
        """A line for each reason why keys have no effect."""
        return [f"{self.path}: no effect of {_short(keys)}: {why}" for why, keys in self.unused.items()]

    def layers(self) -> Layers:
        """The keys of the job that the file sets, each with its source. Relative paths are relative to the working directory, as
        in Trinity."""
        layers = Layers()
        for key, value in self.values.items():
            layers.set(key, value, f"{self.path} ({self.sources[key]})", Path.cwd())
        return layers

    def full_layers(self) -> Layers:
        """`layers`, and below them what Trinity does where the file is silent."""
        layers = self.layers()
        for key, value in self.implied.items():
            if layers.source_of(key) == "default":
                layers.set(key, value, f"default of Trinity-RFT ({self.path})", Path.cwd())
        return layers


def trinity_file(path: Path, backbone: str = "local") -> TrinityFile | None:
    """A file of Trinity-RFT; None if it is another file, or none. Raises ConfigError that names the key."""
    values = read_yaml(path) if path.is_file() else None
    if not is_trinity(values):
        return None
    try:
        return _FileReading(path, _resolved(values, values), backbone).file
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def training_file(path: Path, backbone: str = "local") -> TrinityFile | None:
    """`trinity_file`, for training on tasks. Raises ConfigError, also for a file of another mode."""
    file = trinity_file(path, backbone)
    if file is not None and file.mode not in ("both", "colocate"):
        remedy = {
            "bench": "`ajet eval` measures models",
            "explore": "Set both: AgentJet learns from the episodes that it runs; `ajet check` tries a few",
        }.get(file.mode, f"It is for online training: `ajet online {path}`")
        raise ConfigError(f"{path}: mode: {file.mode!r} does not train on tasks. {remedy}.")
    return file


def job_values(file: TrinityFile, records: Callable[[Mapping[str, Any]], int]) -> dict[str, Any]:
    """The values of a job file. ``records`` counts what a reader of a job reads, and may raise ConfigError; then the job has no
    ``train.steps``. Raises ConfigError if the file names no tasks, or a value that no job can have."""
    layers = file.full_layers()
    if file.mode in ONLINE:
        layers.job()
        return layers.values
    if file.train is None:
        raise ConfigError(
            f"{file.path}: {_INPUT}.taskset: is missing. Name the tasks, such as {{path: data, split: train}}."
        )

    def lay(key: str, value: Any) -> None:
        layers.set(key, value, str(file.path), Path.cwd())

    lay("run.dir", file.folder)
    lay("task.reader", file.train.reader())
    if file.selector:
        lay("task.selector", file.selector)
    if file.validation is not None:
        lay("task.validation", file.validation.reader())
    if file.monitor != "tensorboard":
        lay("run.loggers", [_logger(file)])
    if "train.steps" not in file.values:
        batch = layers.job().train.batch_size
        try:
            lay("train.steps", math.ceil(records(file.train.reader()) * file.epochs / batch))
        except ConfigError as error:
            file.idle("buffer.total_epochs", f"the tasks cannot be counted here ({error}) Set train.steps.")
    for key, tasks in (("taskset", file.train), ("eval_tasksets", file.validation)):
        if tasks is not None and tasks.workflow_args:
            file.idle(
                f"{_INPUT}.{key}.workflow_args",
                "`ajet run` gives a workflow the task alone; tune(config_path=…) adds them",
            )
    for name in file.auxiliary:
        remedy = "serve it with `ajet serve`, and name its address in targets.NAME.frozen_model; tune(config_path=…) serves it"
        file.idle(f"explorer.auxiliary_models ({name})", remedy)
    layers.job()
    return layers.values


class _FileReading:
    """Applies the table to the keys of a file. Raises ValueError."""

    def __init__(self, path: Path, values: Mapping[str, Any], backbone: str) -> None:
        self.file = TrinityFile(path, mode=values.get("mode", "both"))
        self._backbone = backbone
        self._given: dict[str, Any] = {}
        if self.file.mode not in MODES:
            raise ValueError(
                f"mode: {self.file.mode!r} is not a mode of Trinity-RFT. Known: {', '.join(MODES)}."
            )
        entries = with_rules(values, TABLE)
        for key, rule, value in sorted(
            entries, key=lambda each: each[0].startswith("explorer.rollout_model.")
        ):
            self._given[key] = value
            self._apply(key, rule, value)
        self._names()
        self._penalties()
        self._steps()
        self._engines()
        self._adapter()
        self._tasksets()
        for index, model in enumerate(self._list("explorer.auxiliary_models")):
            self._auxiliary(f"explorer.auxiliary_models[{index}]", model)
        self._implied()

    def _apply(self, key: str, rule: Rule, value: Any) -> None:
        applies = {"verl": self._backbone == "verl", "online": self.file.mode in ONLINE}.get(rule.only, True)
        if rule.why and not (rule.keys and applies):
            if value not in rule.usual:
                self.file.idle(key, rule.why)
            return
        try:
            converted = rule.convert(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{key}: {error}.") from None
        for target in rule.keys if converted is not None else ():
            self._set(target, converted, key)

    def _set(self, target: str, value: Any, key: str) -> None:
        self.file.values[target] = value
        self.file.sources[target] = key

    def _number(self, key: str, default: float) -> float:
        try:
            return number(self._given.get(key, default))
        except ValueError as error:
            raise ValueError(f"{key}: {error}.") from None

    def _list(self, key: str) -> Sequence[Any]:
        items = self._given.get(key, [])
        if not isinstance(items, list):
            raise ValueError(f"{key}: expected a list, found {items!r}.")
        return items

    def _names(self) -> None:
        file, given = self.file, self._given
        for name in {"project", "group", "name"} & given.keys():
            setattr(file, name, str(given[name]))
        file.root = str(given.get("checkpoint_root_dir") or os.environ.get(ROOT_VARIABLE) or file.root)
        file.resume = given.get("continue_from_checkpoint") is True
        file.monitor = str(given.get("monitor.monitor_type", file.monitor))
        if file.mode in ONLINE and file.monitor != "tensorboard":
            self._set("run.loggers", [_logger(file)], "monitor.monitor_type")

    def _penalties(self) -> None:
        """The KL penalty and the entropy bonus, each by the name of a function and its coefficient."""
        name, key = self._given.get("algorithm.kl_loss_fn"), "algorithm.kl_loss_fn_args.kl_coef"
        if name is not None or key in self._given:
            weight = 0.0 if name == "none" else self._number(key, KL)
            self._set("train.kl", weight, key if key in self._given else "algorithm.kl_loss_fn")
            ours = (
                ("k2",) if self.file.values.get("train.algorithm") == "reinforce++" else ("k3", "low_var_kl")
            )
            if weight and name not in (None, *ours):
                self.file.idle(
                    f"algorithm.kl_loss_fn ({name})", f"AgentJet estimates the KL divergence by {ours[0]}"
                )
        key = "algorithm.entropy_loss_fn_args.entropy_coef"
        if key in self._given and self._given.get("algorithm.entropy_loss_fn") != "none":
            self._set("train.entropy", self._number(key, 0.0), key)

    def _steps(self) -> None:
        """How long, at which rate, and how often a checkpoint is written."""
        self.file.epochs = int(self._number("buffer.total_epochs", 1))
        if self.file.values.get("train.schedule", "constant") != "constant":
            key = "algorithm.optimizer.min_lr_ratio"
            self._set("train.final_share", self._number(key, 0.01), key)
        interval = int(self._number("trainer.save_interval", 0))
        if self.file.mode in ONLINE:
            if "trainer.save_interval" in self._given:
                self.file.idle(
                    "trainer.save_interval", "every update writes a checkpoint, which is a version"
                )
            if "train.steps" in self.file.values:
                self._set(
                    "plugins.online.updates",
                    self.file.values.pop("train.steps"),
                    self.file.sources["train.steps"],
                )
        elif interval > 0:
            self._set("train.save_every", interval, "trainer.save_interval")
        elif "trainer.save_interval" in self._given:
            self.file.idle(
                "trainer.save_interval",
                "checkpoints are written every train.save_every steps, and after the last",
            )

    def _engines(self) -> None:
        engines = "explorer.rollout_model.engine_num"
        if "explorer.runner_per_model" in self._given:
            at_once = self._number("explorer.runner_per_model", 1) * self._number(engines, 1)
            self._set("rollout.concurrency", int(at_once), "explorer.runner_per_model")
        if engines in self._given:
            self._apply(engines, ENGINES, self._given[engines])

    def _adapter(self) -> None:
        key = "model.lora_configs"
        adapters = self._list(key)
        if len(adapters) > 1:
            raise ValueError(f"{key}: AgentJet trains one new adapter. Leave one.")
        for adapter in adapters:
            for name in ("rank", "alpha"):  # Trinity's defaults
                self._set(f"targets.policy.lora.{name}", 32, key)
            for name, rule, value in _within(f"{key}[0]", adapter, ADAPTER):
                self._apply(f"{key}[0].{name}", rule, value)

    def _tasksets(self) -> None:
        one = self._given.get(f"{_INPUT}.taskset")
        sets = {"taskset": [*([one] if one else []), *self._list(f"{_INPUT}.tasksets")]}
        sets["eval_tasksets"] = [*self._list(f"{_INPUT}.eval_tasksets")]
        for name, given in sets.items():
            place = f"{_INPUT}.{name}"
            if len(given) > 1:
                raise ValueError(f"{place}: AgentJet reads one task set. Merge the {len(given)} into one.")
            if given and self.file.mode in ONLINE:
                self.file.idle(place, "online training learns from the store")
            elif given and name == "taskset":
                self.file.train = self._taskset(place, given[0], "rollout")
            elif given:
                self.file.validation = self._taskset(place, given[0], "eval")

    def _taskset(self, place: str, tasks: Any, section: str) -> Taskset:
        fields: dict[str, str] = {}
        given: dict[str, Any] = {}
        for key, rule, value in _within(place, tasks, TASKSET):
            given[key] = value
            if section == "eval" and key.startswith(("data_selector.", "task_selector.")):
                self.file.idle(f"{place}.{key}", "an evaluation takes the tasks in their order")
            elif section == "rollout" and key == "repeat_times":
                self.file.idle(f"{place}.{key}", "in training, algorithm.repeat_times counts, as in Trinity")
            elif key.startswith("format.") and rule.keys:
                fields[rule.keys[0]] = value
            elif key.startswith("rollout_args.") and rule.keys:
                sampling = Rule(tuple(f"{section}.sampling.{k}" for k in rule.keys), rule.convert)
                self._apply(f"{place}.{key}", sampling, value)
            else:
                self._apply(f"{place}.{key}", rule, value)
        if not given.get("path"):
            raise ValueError(f"{place}.path: is missing. Name a data set on the hub, a folder or a file.")
        for name in ("data_selector", "task_selector") if section == "rollout" else ():
            own = {k.removeprefix(f"{name}."): v for k, v in given.items() if k.startswith(f"{name}.")}
            self._selector(f"{place}.{name}", own)
        if section == "eval" and "repeat_times" in given:
            self._set("eval.repeats", given["repeat_times"], f"{place}.repeat_times")
        split, subset = str(given.get("split") or "train"), given.get("subset_name")
        return Taskset(str(given["path"]), split, subset, given.get("workflow_args", {}), fields)

    def _selector(self, key: str, given: Mapping[str, Any]) -> None:
        """Which tasks a step takes. A selector of Trinity's has the same defaults here as there."""
        if not given.keys() - {"seed"}:
            return
        name = str(given.get("selector_type", "sequential"))
        if name not in _SELECTORS:
            raise ValueError(
                f"{key}.selector_type: {name!r} is not a selector of Trinity-RFT{nearest(name, _SELECTORS)}."
            )
        if self._backbone == "verl" and _SELECTORS[name] != "shuffle":
            raise ValueError(
                f"{key}.selector_type: the backbone 'verl' takes tasks in a random order. Set shuffle, or choose another backbone."
            )
        if name == "random":
            self.file.idle(
                f"{key}.selector_type (random)", "each epoch takes every task once, in a random order"
            )
        self.file.selector = {"type": _SELECTORS[name]}
        arguments = given.get("kwargs", {})
        if name in ("offline_easy2hard", "difficulty_based"):
            self.file.selector["pass_rates"] = list(given.get("feature_keys", ()))
        elif "feature_keys" in given:
            self.file.idle(f"{key}.feature_keys", f"the selector {name!r} reads no fields")
        for argument in arguments:
            if name != "difficulty_based" or argument not in {*_OF_DIFFICULTY, "m", "adaptive_rho"}:
                raise ValueError(
                    f"{key}.kwargs.{argument}: {name!r} has no such argument{nearest(argument, _OF_DIFFICULTY)}."
                )
        if name == "difficulty_based":
            for argument, (ours, default) in _OF_DIFFICULTY.items():
                self.file.selector[ours] = arguments.get(argument, default)
            if "m" in arguments:
                self.file.idle(f"{key}.kwargs.m", "a group counts as many episodes as it has")
            if arguments.get("adaptive_rho"):
                raise ValueError(
                    f"{key}.kwargs.adaptive_rho: task.selector.known_weight is constant. Remove the key."
                )

    def _auxiliary(self, place: str, model: Any) -> None:
        settings: dict[str, Any] = {}
        for key, rule, value in _within(place, model, AUXILIARY):
            settings |= {key: value} if rule == READ else {}
            self._apply(f"{place}.{key}", rule, value)
        if not settings.get("model_path"):
            raise ValueError(f"{place}.model_path: is missing. Name a folder or a Hugging Face id.")
        name = settings.pop("name", None) or f"auxiliary_model_{len(self.file.auxiliary)}"
        self.file.auxiliary[str(name)] = settings

    def _implied(self) -> None:
        file, name = self.file, self._given.get("algorithm.algorithm_type", "ppo")
        file.implied = {"train.algorithm": "ppo", "train.learning_rate": 1e-6, "train.weight_decay": 0.01}
        if name in PENALIZED:
            file.implied["train.kl"] = KL
        if name == "ppo":
            file.implied["rollout.group_size"] = 1
        if self._backbone != "local":
            file.implied["backbone.name"] = self._backbone
        if file.mode in ONLINE:
            buffer = self._given.get("buffer.trainer_input.experience_buffer.name", "experience_buffer")
            store: dict[str, Any] = {"store": f"{file.folder}/{buffer}.db", "folder": file.folder}
            store |= {"host": "0.0.0.0", "keyless": True, "port": 8010}
            if isinstance(batch := file.values.get("train.batch_size"), int):
                store["rollback.ratings"] = max(batch, 2)
            file.implied |= {f"plugins.online.{key}": value for key, value in store.items()}
        else:
            file.implied |= {
                "train.batch_size": 1,
                "rollout.timeout": 1800,
                "rollout.retries": 2,
                "eval.every": 100,
            }
            if not file.selector and self._backbone != "verl":
                file.selector = {"type": "sequential"}
            elif not file.selector:
                file.idle(
                    f"{_INPUT}.taskset.data_selector (by default sequential)",
                    "the backbone `verl` takes the tasks of each epoch in a random order",
                )


def _logger(file: TrinityFile) -> dict[str, str]:
    project = _PROJECTS.get(file.monitor)
    return {"type": file.monitor, **({project: file.project} if project and file.project else {})}


def _short(keys: Sequence[str]) -> str:
    """Keys, those of one section together: ``cluster.{node_num,gpu_per_node}``."""
    sections: dict[str, list[str]] = {}
    for key in keys:
        section, dot, name = key.rpartition(".")
        sections.setdefault(section + dot, []).append(name)
    return ", ".join(
        f"{section}{names[0]}" if len(names) == 1 else f"{section}{{{','.join(names)}}}"
        for section, names in sections.items()
    )


def _within(place: str, tree: Any, table: Mapping[str, Rule]) -> Iterator[tuple[str, Rule, Any]]:
    """`with_rules` of a mapping at a place of the file, which errors name."""
    if not isinstance(tree, Mapping):
        raise ValueError(f"{place}: expected a mapping, found {tree!r}.")
    try:
        yield from with_rules(tree, table)
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from None


def _resolved(value: Any, root: Mapping[str, Any], place: str = "") -> Any:
    """A value with the numbers and the interpolations that OmegaConf reads: 1e-6, ``${oc.env:NAME,default}`` and ``${a.b}``."""
    if isinstance(value, Mapping):
        return {str(key): _resolved(item, root, f"{place}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, root, place) for item in value]
    if not isinstance(value, str):
        return value
    text = value
    for _ in range(_MOST_INTERPOLATIONS):
        if not (match := _INTERPOLATION.search(text)):
            break
        text = text[: match.start()] + _interpolated(match[1], root, place) + text[match.end() :]
    else:
        raise ValueError(f"{place}: {value!r} refers to itself. Write the value.")
    if _POWER.fullmatch(text):
        return float(text)
    return value if text == value else parse_yaml(text, place)


def _interpolated(asked: str, root: Mapping[str, Any], place: str) -> str:
    resolver, colon, arguments = asked.partition(":")
    if not colon:
        node: Any = root
        for name in asked.strip().split("."):
            node = node.get(name) if isinstance(node, Mapping) else None
        if node is None or isinstance(node, Mapping | list):
            raise ValueError(f"{place}: ${{{asked}}} names no value of this file. Write the value.")
        return str(node)
    if resolver.strip() != "oc.env":
        raise ValueError(
            f"{place}: ${{{asked}}}: AgentJet knows ${{oc.env:NAME,default}} and ${{key}}. Write the value."
        )
    name, comma, default = (part.strip() for part in arguments.partition(","))
    if name not in os.environ and not comma:
        raise ValueError(f"{place}: the environment variable {name} is not set. Set it, or write the value.")
    return os.environ.get(name, default)
