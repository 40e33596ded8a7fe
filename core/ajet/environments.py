"""Environments as services, of which an episode opens one: the plugin ``ajet-plugin-environments`` brings them. For type checkers, the
stub beside this module has the names.
"""

from __future__ import annotations

from typing import Any

from ajet import plugin_names


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'ajet.environments' has no attribute {name!r}")
    return getattr(plugin_names.environments, name)
