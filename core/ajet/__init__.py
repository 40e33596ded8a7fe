"""AgentJet: make any agent program trainable.

The public API. Names are loaded when first used, so that ``import ajet`` costs nothing. The stub beside this module says where
they are.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

_EARLIER = ("AgentJetJob", "AjetTuner", "BaseJudge", "Workflow", "WorkflowTask", "bp")
"""Names of programs that were written for the earlier AgentJet, from a plugin; `dir` leaves them out."""
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_WHERE = {name: where for where, name in re.findall(r"from ajet\.(\S+) import (\S+) as", _STUB)}
# Without those of plugins, so that `import *` works where these are not installed.
__all__ = [name for name, where in _WHERE.items() if where != "plugin_names"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ajet' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ajet.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_WHERE.keys() - _EARLIER)


class _PluginModules:
    """Finds modules below `ajet` that plugins bring. Python asks it last, for modules that nothing else finds."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:
        """The module's spec, or None."""
        if not name.startswith("ajet."):
            return None
        from ajet.plugin_names import find_spec

        return find_spec(name)


sys.meta_path.append(_PluginModules)
