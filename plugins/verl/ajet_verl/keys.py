"""The keys of verl's configuration: which there are, and the user's among them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ajet.types import ConfigError
from ajet.utils.suggest import nearest
from ajet_verl.versions import missing

SECTIONS = (
    "actor_rollout_ref",
    "algorithm",
    "critic",
    "custom_reward_function",
    "data",
    "distillation",
    "global_profiler",
    "ray_kwargs",
    "reward",
    "reward_model",
    "sandbox_fusion",
    "skip",
    "trainer",
    "transfer_queue",
)
"""The top of verl's configuration, known here so that a job is checked where verl is not installed."""


def unknown(name: str, known: Iterable[str]) -> str:
    """What is wrong with a name that is not among the known ones."""
    names = [n for n in known if n != "_target_"]
    near = nearest(name, names)
    return f"unknown key {name!r}{near or '. Known: ' + ', '.join(names)}"


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a tree; empty mappings are values."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def without_plus(key: str) -> str:
    """The key that ``+`` parts add."""
    return ".".join(part.removeprefix("+") for part in key.split("."))


def check_known(explicit: Mapping[str, Any], config: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ConfigError for a key that verl's configuration does not list, unless it is written with a ``+``, as on
    verl's command line, or stands below an empty mapping, which takes anything."""
    for key, value in explicit.items():
        if key.startswith("+"):
            continue
        if key not in config:
            raise ConfigError(
                f"backbone.verl.{prefix}{key}: {unknown(key, config)}. What verl takes but does not list is written +{key}."
            )
        inner = config[key]
        if isinstance(value, Mapping) and isinstance(inner, Mapping) and inner:
            check_known(value, inner, f"{prefix}{key}.")


def folder() -> Path:
    """The folder of verl's configuration files, found without importing verl. Raises ConfigError."""
    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None or not found.submodule_search_locations:
        raise ConfigError(f"backbone verl: {missing('verl')}")
    return Path(found.submodule_search_locations[0]) / "trainer" / "config"
