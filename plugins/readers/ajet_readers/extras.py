"""Libraries that only some readers need."""

from __future__ import annotations

import importlib
from typing import Any

from ajet import ConfigError


def needs(module: str, extra: str) -> Any:
    """The module of an optional library. Raises ConfigError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise ConfigError(
            f"{module} is not installed; it comes with pip install 'ajet-plugin-readers[{extra}]'."
        ) from None
