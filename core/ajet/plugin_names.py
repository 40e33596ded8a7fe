"""Names of `ajet` that plugins of ours bring: entry points of the group ``ajet.names``. For type checkers, the stub beside this module
says where they are.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from ajet.own_plugins import remedy
from ajet.types import ConfigError


def __getattr__(name: str) -> Any:
    if not (hint := remedy("name", name)):
        raise AttributeError(f"module 'ajet.plugin_names' has no attribute {name!r}")
    for entry in importlib.metadata.entry_points(group="ajet.names", name=name):
        value = globals()[name] = entry.load()
        return value
    raise ConfigError(f"ajet.{name} is not installed.{hint}")
