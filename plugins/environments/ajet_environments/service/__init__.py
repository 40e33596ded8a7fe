"""Environments as services: a program that keeps the state of each episode and answers by HTTP.

A workflow opens an environment with `environment`; it is released however the episode ends. To write a service,
subclass `ServedEnvironment` and start it with `serve`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Environment": "client",
    "EnvironmentFailed": "protocol",
    "ServedEnvironment": "server",
    "State": "protocol",
    "SyncEnvironment": "client",
    "environment": "client",
    "serve": "server",
    "serving": "server",
    "task_ids": "client",
}
__all__ = list(_WHERE)

if TYPE_CHECKING:
    from ajet_environments.service.client import Environment as Environment
    from ajet_environments.service.client import SyncEnvironment as SyncEnvironment
    from ajet_environments.service.client import environment as environment
    from ajet_environments.service.client import task_ids as task_ids
    from ajet_environments.service.protocol import EnvironmentFailed as EnvironmentFailed
    from ajet_environments.service.protocol import State as State
    from ajet_environments.service.server import ServedEnvironment as ServedEnvironment
    from ajet_environments.service.server import serve as serve
    from ajet_environments.service.server import serving as serving


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ajet.environments' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
