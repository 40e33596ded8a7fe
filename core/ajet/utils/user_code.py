"""Recognises the user's own code: not Python's, an installed package's, AgentJet's or a plugin's."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import inspect
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any


@functools.lru_cache(4096)
def is_users(file: str) -> bool:
    """Whether a code object's file is the user's."""
    return not (file.startswith(("<", *_elsewhere())) or is_installed(file))


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return bool({"site-packages", "dist-packages"} & set(Path(file).parts))


def written_at(function: Callable[..., Any]) -> str:
    """``judge.py:7``: where the user wrote a function; empty for what is installed or has no source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code and is_users(code.co_filename) else ""


@functools.cache
def _elsewhere() -> tuple[str, ...]:
    """Folders of Python, of AgentJet and of its plugins, which are elsewhere in an editable install."""
    python = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "scripts")]
    ours = [str(Path(__file__).parents[1])]
    for entry in importlib.metadata.entry_points(group="ajet"):
        if entry.dist and entry.dist.name.startswith("ajet-plugin-"):
            spec = importlib.util.find_spec(entry.module.partition(".")[0])
            ours += spec.submodule_search_locations or () if spec else ()
    return tuple(f"{folder}{os.sep}" for folder in (*python, *ours))
