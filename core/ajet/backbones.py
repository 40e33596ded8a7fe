"""What backbones, online training, the studio, advice, the audit, rejudging, projects, commands and AgentScope's tuner take from
the core.

These plugins own a loop around the core's episodes, read what it has written, or, as commands do, run what they must end whole.
Wherever the core keeps a name, they find it here, so the core's modules can move. The stub beside this module lists the names by
topic; each is documented where it is defined. A name is imported when it is first used.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

_WHERE = {
    alias.asname: (node.module, alias.name)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ajet.backbones' has no attribute {name!r}")
    where, original = _WHERE[name]
    module = importlib.import_module(where)
    if not hasattr(module, original):  # a module of a package
        importlib.import_module(f"{where}.{original}")
    value = getattr(module, original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(filter(None, _WHERE))
