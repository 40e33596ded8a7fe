"""Names and modules of `ajet` that plugins of ours bring: entry points of the groups ``ajet.names`` and ``ajet.modules``. For type
checkers, the stub beside this module says where the names are.
"""

from __future__ import annotations

import importlib.metadata
from importlib.machinery import ModuleSpec
from typing import Any

from ajet.own_plugins import extra_of, remedy
from ajet.types import ConfigError


def __getattr__(name: str) -> Any:
    if not (hint := remedy("name", name)):
        raise AttributeError(f"module 'ajet.plugin_names' has no attribute {name!r}")
    for entry in importlib.metadata.entry_points(group="ajet.names", name=name):
        value = globals()[name] = entry.load()
        return value
    raise ConfigError(f"ajet.{name} is not installed.{hint}")


def find_spec(name: str) -> ModuleSpec | None:
    """The spec of a module below `ajet` that a plugin brings, from the function that its entry point names, which has the name of its
    extra; None for other modules. Raises ConfigError if the plugin is not installed."""
    parts = name.split(".")[1:]
    for below in (".".join(parts[:1]), ".".join(parts[:2])):
        if extra := extra_of("module", below):
            for entry in importlib.metadata.entry_points(group="ajet.modules", name=extra):
                spec: ModuleSpec = entry.load()(name)
                return spec
            raise ConfigError(f"{name} is not installed.{remedy('module', below)}")
    return None
