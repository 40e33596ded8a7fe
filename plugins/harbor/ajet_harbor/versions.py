"""The version of Harbor that is installed, and how Harbor is imported."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

INSTALL = "with Python 3.12 or newer: pip install 'ajet[harbor]'"
_QUIET = {
    "HARBOR_TELEMETRY": "0",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # Harbor imports LiteLLM, which would fetch prices
}


def installed() -> str | None:
    """Harbor's version, or None."""
    try:
        return importlib.metadata.version("harbor")
    except importlib.metadata.PackageNotFoundError:
        return None


def harbor() -> Any:
    """The module harbor, imported so that it asks no network. Takes seconds at first. Raises ValueError if it is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import harbor
    except ModuleNotFoundError as error:
        if error.name != "harbor":
            raise
        raise ValueError(f"Harbor is not installed; {INSTALL}") from None
    return harbor
