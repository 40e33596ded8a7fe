"""The backbone `tinker`: a hosted service samples and trains; agents, judges and losses are computed here.

Importing this package imports neither tinker nor torch; its modules import them when a job runs.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable

from ajet import Finding, Plugin, hookimpl
from ajet_tinker.backbone import Tinker, TinkerEnginePlugin
from ajet_tinker.service import API_KEY


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [Tinker, TinkerEnginePlugin]


@hookimpl
def ajet_doctor() -> Iterable[Finding]:
    """The version of Tinker's client, and whether there is a key for the service."""
    client = f"client {importlib.metadata.version('tinker')}"
    if os.environ.get(API_KEY, "").strip():
        return [Finding("backbone tinker", f"{client}, {API_KEY} is set")]
    return [Finding("backbone tinker", f"{client}, no API key", f"set {API_KEY}", optional=True)]
