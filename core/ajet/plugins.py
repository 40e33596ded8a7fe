"""The plugin manager: finds plugins by entry points, checks them when they register."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args, get_origin

import pluggy
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ajet import hookspecs
from ajet.interfaces.base import Plugin, Settings
from ajet.own_plugins import remedy
from ajet.types import ConfigError
from ajet.utils.suggest import nearest, nearest_name

GROUP = "ajet"
CORE = "ajet"
"""The distribution whose plugins come with AgentJet."""
T = TypeVar("T", bound=Settings)
P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """One plugin class and where it came from."""

    kind: str
    name: str
    cls: type[Plugin]
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class BrokenEntry:
    """An entry point that could not be loaded, with the reason."""

    entry_point: str
    distribution: str
    error: str


class Plugins:
    """All installed plugins. Two of one kind and name are an error that names both distributions."""

    def __init__(self) -> None:
        self.manager = _manager()
        self.classes: dict[tuple[str, str], InstalledPlugin] = {}
        self.broken: list[BrokenEntry] = []
        self.handles: dict[str, Any] = {}

    def register(self, plugin: Any, distribution: str, version: str) -> None:
        """Add a plugin module, whole or not at all. Raises ConfigError if it clashes with another,
        TypeError or pluggy's PluginValidationError if it breaks the contract."""
        self._check_hooks(plugin)
        alone = _manager()  # one with this plugin only: its answers are this distribution's
        alone.register(plugin)
        classes = [
            InstalledPlugin(*_kind_and_name(cls), cls, distribution, version)
            for given in alone.hook.ajet_plugins()
            for cls in given
        ]
        handles = {name: f for given in alone.hook.ajet_handles() for name, f in given.items()}
        self.manager.register(plugin, name=f"{distribution}:{getattr(plugin, '__name__', plugin)}")
        for installed in classes:
            self._add(installed)
        for handle, function in handles.items():
            if self.handles.setdefault(handle, function) is not function:
                raise ConfigError(
                    f"two plugins bring the handle tuner.{handle}, one of them {distribution} {version}. Uninstall one."
                )

    def _check_hooks(self, plugin: Any) -> None:
        """Refuse misspelt and unmarked hooks: pluggy would silently never call them."""
        known = [name for name in vars(hookspecs) if name.startswith("ajet_")]
        for name in dir(plugin):
            marked = self.manager.parse_hookimpl_opts(plugin, name) is not None
            if marked and name not in known:
                raise TypeError(f"{name}: no such hook{nearest(name, known)}")
            if not marked and name in known and inspect.isroutine(getattr(plugin, name)):
                raise TypeError(f"{name}: is not marked as a hook; decorate it with @ajet.hookimpl")

    def _add(self, new: InstalledPlugin) -> None:
        old = self.classes.setdefault((new.kind, new.name), new)
        if old.cls is not new.cls:
            raise ConfigError(
                f"two plugins are called {new.kind} {new.name!r}: one of {old.distribution} {old.version}, one of "
                f"{new.distribution} {new.version}. Uninstall one of them."
            )

    def of(self, base: type[P]) -> dict[str, type[P]]:
        """The classes of a kind, by name; ``base`` is the base class of the kind."""
        return {
            name: installed.cls
            for (kind, name), installed in self.classes.items()
            if kind == base.kind and issubclass(installed.cls, base)
        }

    def get(self, base: type[P], name: str, where: str) -> type[P]:
        """The class of a kind and name. Raises ConfigError that lists what is installed."""
        installed = self.of(base)
        if name in installed:
            return installed[name]
        reasons = "".join(f" ({b.distribution} did not load: {b.error})" for b in self.broken)
        raise ConfigError(
            where,
            f"unknown {base.kind} {name!r}{nearest(name, sorted(installed))}. "
            f"Installed: {', '.join(sorted(installed)) or 'none'}.{remedy(base.kind, name)}{reasons}",
        )

    def build(self, base: type[P], spec: Mapping[str, Any], where: str) -> P:
        """A plugin from ``{type: name, field: value, …}``. Raises ConfigError naming the key."""
        fields = dict(spec)
        name = fields.pop("type", None)
        if not isinstance(name, str):
            raise ConfigError(where, f"needs `type`, the name of a {base.kind}.")
        return validated(self.get(base, name, f"{where}.type"), fields, where)


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    return manager


def validated(cls: type[T], fields: Mapping[str, Any], where: str) -> T:
    """An instance of a settings class; ConfigError in one line that names key and remedy."""
    try:
        return cls(**fields)
    except ValidationError as error:
        raise ConfigError(*explain_validation(error, cls, where)) from None


def explain_validation(
    error: ValidationError, cls: type[Any], where: str, elsewhere: Iterable[str] = ()
) -> tuple[str, str]:
    """The key of the first fault of a pydantic error, and what is wrong with it and with the other keys. For a misspelt key that is
    the nearest one: of the same section, else one of ``elsewhere`` (dotted keys) with such a last part."""
    faults: dict[tuple[Any, ...], ErrorDetails] = {}
    for fault in error.errors():  # one a key: each kind of a union has a fault of its own
        faults.setdefault(_fields(cls, fault["loc"])[0], fault)
    # The first one stays.
    others = {part: key for key in reversed(list(elsewhere)) for part in key.split(".")}
    (path, text), *more = [_explain(fault, cls, where, others) for fault in faults.values()]
    return path, " ".join([text, *(f"Also {key}: {what}" for key, what in more)])


def _explain(fault: ErrorDetails, cls: type[Any], where: str, others: Mapping[str, str]) -> tuple[str, str]:
    path = ".".join([where, *map(str, fault["loc"])]).strip(".").replace("=.", "= ")
    if fault["type"] == "extra_forbidden":
        word, known = str(fault["loc"][-1]), _fields(cls, fault["loc"][:-1])[1]
        other = others.get(nearest_name(word, others), "")
        near = "" if word in others else nearest(word, known)  # the very word, elsewhere, is nearer
        hint = near or (f"; did you mean {other!r}" if other else "")
        return path, f"unknown key{hint}. Known: {', '.join(known)}."
    if fault["type"] == "missing":
        return path, "is required."
    message = fault["msg"].removeprefix("Value error, ")
    # What concerns all keys found no single value.
    given = f" (found {fault['input']!r})" if fault["loc"] else ""
    return path, f"{message[0].lower() + message[1:]}{given}."


def _fields(cls: type[Any], path: Sequence[Any]) -> tuple[tuple[Any, ...], list[str]]:
    """The part of a fault's path that leads through sections, with one key after them, and the keys of what it leads to."""
    named = False
    for depth, key in enumerate(path, 1):
        if named:  # a name that the user chose
            named = False
            continue
        field = cls.model_fields.get(key)
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()  # of `X | None`, also X
        section = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
        if section is None:
            return tuple(path[:depth]), []
        cls, named = cast(type[Any], section), get_origin(kinds[0]) is dict
    return tuple(path), list(cls.model_fields)


def _kind_and_name(cls: Any) -> tuple[str, str]:
    if not (isinstance(cls, type) and issubclass(cls, Plugin)):
        raise TypeError(f"ajet_plugins returned {cls!r}, which is not a subclass of ajet.Plugin")
    kind, name = getattr(cls, "kind", None), getattr(cls, "name", None)
    if not isinstance(kind, str):
        raise TypeError(
            f"{cls.__qualname__} is of no kind; derive it from ajet.Judge or the base class of another kind"
        )
    if not isinstance(name, str):
        raise TypeError(f"{cls.__qualname__} has no `name: ClassVar[str]`")
    return kind, name


def entry_points() -> list[tuple[importlib.metadata.EntryPoint, str, str]]:
    """The entry points of plugins by name, each with its distribution and version; those of the core come first, so that
    other plugins' hooks are asked before them."""
    entries = [
        (entry, entry.dist.name if entry.dist else "?", entry.dist.version if entry.dist else "?")
        for entry in importlib.metadata.entry_points(group=GROUP)
    ]
    return sorted(entries, key=lambda each: (each[1] != CORE, each[0].name))


@functools.cache
def load_plugins() -> Plugins:
    """All entry points of group ``ajet``, loaded once per process. Raises ConfigError if two plugins clash or the core's
    own are missing."""
    plugins = Plugins()
    entries = entry_points()
    if not any(distribution == CORE for _, distribution, _ in entries):
        raise ConfigError(
            "the installed metadata of ajet does not name its own plugins, so it belongs to another version. Install ajet "
            "again: pip install -e . in a checkout, else pip install --force-reinstall ajet."
        )
    for entry, distribution, version in entries:
        try:
            plugins.register(entry.load(), distribution, version)
        except Exception as error:
            if isinstance(error, ConfigError) or distribution == CORE:
                raise
            plugins.broken.append(BrokenEntry(entry.value, distribution, f"{type(error).__name__}: {error}"))
    return plugins
