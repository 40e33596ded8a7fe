"""Platforms that are plugins of a backbone, such as a CPU for a program that asks for GPUs."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any


def platform_defaults(backbone: str) -> Mapping[str, Any]:
    """A platform's values for dotted keys of the program: the mapping behind the entry point, in the group
    ``ajet_BACKBONE.platforms``, that the variable BACKBONE_PLATFORM names; {} if there is none of that name."""
    name = os.environ.get(f"{backbone.upper()}_PLATFORM", "")
    for entry in importlib.metadata.entry_points(group=f"ajet_{backbone}.platforms", name=name):
        values: Mapping[str, Any] = entry.load()
        return values
    return {}
