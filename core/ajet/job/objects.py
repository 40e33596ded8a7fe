"""Objects in place of names: functions, classes, plugins and lists of tasks that a job is given from Python.

An object that can be imported, or built from its fields, is written into the job as such: that is all that a job file
could say of it, so the run can be resumed and sent to other processes without it. Any other object stays with the
layers under its key, and the job holds ``object:`` and a description in its place.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ajet.interfaces.base import Plugin
from ajet.interfaces.reader import Reader, content_id
from ajet.job.arguments import SET, giving
from ajet.plugins import load_plugins, validated
from ajet.types import ConfigError, Task
from ajet.utils.keys import leaves

if TYPE_CHECKING:
    from ajet.job.config import Layers

OBJECT = "object:"
"""Begins what the job holds in place of an object that no name leads to."""
_READERS = ("task.reader", "task.validation")
OWN_LOOP = f"{OBJECT}the tasks of each rollout"
"""The reader of a job that a training loop of the user's own runs."""


def lay_object(layers: Layers, key: str, value: Any, source: str) -> None:
    """Set a key to a value that may be or hold objects. Paths and names are relative to the working directory. Raises
    ConfigError."""
    if key in _READERS and isinstance(value, Mapping) and "type" not in value:
        what = "is one dict. Give a list of tasks, of a DatasetDict one split, or a reader: {'type': 'jsonl', …}."
        raise ConfigError(source, what)
    plain = _plain(layers, key, value)
    layers.set(key, plain, source, Path.cwd())


def is_object(spec: Any) -> TypeGuard[str]:
    """Whether a job's value stands for an object."""
    return isinstance(spec, str) and spec.startswith(OBJECT)


def given_object(layers: Layers, key: str, spec: str) -> Any:
    """The object in whose place the job holds ``spec``. Raises ConfigError if it was not given again."""
    if key in layers.objects:
        return layers.objects[key]
    row = giving(key)
    argument = row.source if row else f"{SET}{{{key!r}: …}}"
    raise ConfigError(
        key,
        f"the job was started from Python with {spec.removeprefix(OBJECT)}, which cannot be imported by a name. Give it "
        f"again, as in ajet.run(resume=…, {argument}…), or put it into a module.",
    )


def unnamed(layers: Layers) -> list[str]:
    """The keys whose objects exist in this process only."""
    keys = [key for key, value in leaves(layers.values) if is_object(value)]
    return [key.removesuffix(".type") for key in keys]


def given_reader(given: Any, where: str) -> Reader:
    """A reader, a class of readers, or an iterable of tasks, as a reader. Raises ConfigError."""
    row = giving(where)
    source = row.source if row else where
    if isinstance(given, type) and issubclass(given, Reader):
        return validated(given, {}, source)
    if isinstance(given, Reader):
        return given
    if type(given).__name__ == "DataFrame":
        raise ConfigError(
            source, 'is a DataFrame. Give its rows: table.to_dict("records") or, of polars, to_dicts().'
        )
    if isinstance(given, Iterable):
        return GivenTasks(items=tuple(given), source=source)
    raise ConfigError(
        source,
        f"is a {type(given).__name__}. Give a list of dicts or of ajet.Task, a file, or an ajet.Reader.",
    )


def what(layers: Layers, key: str) -> str:
    """What a key's object is, in words."""
    return described(layers.objects[key]) if key in layers.objects else "its object"


class GivenTasks(Reader):
    """A list of tasks: `Task` objects, or records with ``query`` or ``messages`` and, if there are any, ``id`` and
    ``answer``. What else a record holds becomes the task's metadata, as in a file of tasks."""

    name = "given"
    items: tuple[Any, ...]
    source: str
    """The argument that gives them."""

    def tasks(self) -> Sequence[Task]:
        """The tasks. Raises ConfigError that names the item that is not one."""
        if not self.items:
            raise ConfigError(self.source, "the list is empty. Give at least one task.")
        return [
            item if isinstance(item, Task) else _task(item, f"{self.source}[{i}]")
            for i, item in enumerate(self.items)
        ]


def as_records(tasks: Sequence[Task]) -> list[dict[str, Any]] | None:
    """The records of a file from which equal tasks are read; None if JSON cannot hold them."""
    records = [_record(task) for task in tasks]
    try:
        read = [_task(json.loads(json.dumps(record)), "") for record in records]
    except (TypeError, ValueError, ConfigError):
        return None
    return records if read == list(tasks) else None


def _record(task: Task) -> dict[str, Any]:
    own = {"id": task.id, "query": task.query, "messages": list(task.messages)}
    return {**task.metadata, **{name: value for name, value in own.items() if value}}


def _task(record: Any, source: str) -> Task:
    if not isinstance(record, Mapping):
        raise ConfigError(source, f"is a {type(record).__name__}. Give a dict with `query`, or an ajet.Task.")
    rest = dict(record)
    query, messages = rest.pop("query", None) or "", rest.pop("messages", None) or ()
    if not query and not messages:
        names = ", ".join(map(repr, record)) or "no fields"
        raise ConfigError(source, f"neither 'query' nor 'messages'; the record has {names}.")
    if not isinstance(query, str):
        raise ConfigError(source, f"'query' is a {type(query).__name__}, not a string.")
    if isinstance(messages, str) or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise ConfigError(source, "'messages' is not a list of chat messages with a `role`.")
    given = rest.pop("id", None)
    if rest.get("answer", ...) is None:
        del rest["answer"]
    identity = content_id(record) if given is None or given == "" else str(given)
    return Task(identity, query, tuple(messages), rest)


def _plain(layers: Layers, key: str, value: Any) -> Any:
    """A value as a job file could hold it; objects that it could not are kept in the layers."""
    layers.objects.pop(key, None)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {name: _plain(layers, f"{key}.{name}", inner) for name, inner in value.items()}
    if isinstance(value, list | tuple) and key not in (*_READERS, "workflow"):
        return [_plain(layers, f"{key}.{i}", inner) for i, inner in enumerate(value)]
    spec = _spec(value)
    if spec is None:
        layers.objects[key] = value
        spec = f"{OBJECT}{described(value)}"
    return spec if isinstance(spec, dict) or key == "workflow" else {"type": spec}


def _spec(value: Any) -> str | dict[str, Any] | None:
    """What leads to an equal object in another process: a name, or a plugin's class with its fields."""
    if isinstance(value, Plugin):
        return _spec_of_plugin(value)
    return importable(value)


def _spec_of_plugin(plugin: Plugin) -> dict[str, Any] | None:
    cls = type(plugin)
    names = [installed.name for installed in load_plugins().classes.values() if installed.cls is cls]
    name = names[0] if names else importable(cls)
    try:
        fields = plugin.model_dump(mode="json", exclude_unset=True)
        same = name is not None and cls(**fields) == plugin
    except (PydanticSerializationError, ValidationError, TypeError):  # a field holds an object
        return None
    return {"type": name, **fields} if same else None


def importable(value: Any) -> str | None:
    """``module:Name`` if that leads to this very function or class; None for all else, and for what a script, a notebook
    or a function defines."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (inspect.isfunction(value) or inspect.isclass(value)) or module in (None, "__main__"):
        return None
    reached: Any = sys.modules.get(str(module))
    if getattr(reached, "__spec__", None) is None:  # made by hand, as by exec
        return None
    for part in str(name).split("."):
        reached = getattr(reached, part, None)
    return f"{module}:{name}" if reached is value else None


def described(value: Any) -> str:
    """An object in a few words, for job files and errors."""
    if isinstance(value, Sized) and isinstance(value, Iterable) and not isinstance(value, type | Plugin):
        return f"a list of {len(value)} tasks"
    name = getattr(value, "__qualname__", None)
    return str(name) if name else f"an instance of {type(value).__qualname__}"
