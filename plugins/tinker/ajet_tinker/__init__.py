"""The backbone `tinker`: a hosted service samples and trains; agents, judges and losses are computed here.

Importing this package imports neither tinker nor torch; its modules import them when a job runs.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterable

from ajet import AjetError, Finding, Plugin, hookimpl
from ajet_tinker.backbone import Tinker, TinkerEnginePlugin
from ajet_tinker.service import API_KEY, TinkerService


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [Tinker, TinkerEnginePlugin]


@hookimpl
def ajet_doctor() -> Iterable[Finding]:
    """The version of Tinker's client, and whether there is a key for the service."""
    client = f"client {importlib.metadata.version('tinker')}"
    if os.environ.get(API_KEY, "").strip():
        return [Finding("backbone tinker", f"{client}, {API_KEY} is set"), *_another_service()]
    return [Finding("backbone tinker", f"{client}, no API key", f"set {API_KEY}", optional=True)]


def _another_service() -> Iterable[Finding]:
    """Whether the service at TINKER_BASE_URL does all that a job needs, tried with its first model."""
    service = TinkerService(None, Tinker().timeout)
    if not service.address:
        return []
    what = f"Tinker's API at {service.address}"
    print(f"trying {what}, at most {service.timeout:g} s for an answer: some compile first", file=sys.stderr)
    try:
        from ajet_tinker.probe import averages

        model = next(iter(service.models()), "")
        averages(service, model, rank=8, train_mlp=True, train_attn=True, train_unembed=False)
        return [Finding(what, f"does all that a job needs, tried with {model}")]
    except (AjetError, ImportError) as error:
        return [Finding(what, str(error), "use another service, or another model")]
    finally:
        service.close()
