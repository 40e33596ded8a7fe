"""Environments of other libraries: the reader and the workflow `library`. Tools of MCP servers: the workflow `chat`, and `McpTools`
for agents of your own. Environments as services: `service`, which users import as `ajet.environments`.

Importing this package imports none of the libraries, nor `mcp`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

from ajet import Plugin, hookimpl
from ajet.interfaces.events import Attempt
from ajet_environments.chat import ChatWorkflow
from ajet_environments.tools import McpTools
from ajet_environments.workflow import LibraryTasks, LibraryWorkflow

__all__ = ["ChatWorkflow", "LibraryTasks", "LibraryWorkflow", "McpTools"]


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [LibraryTasks, LibraryWorkflow, ChatWorkflow]


@hookimpl
def ajet_attempt(attempt: Attempt) -> AbstractAsyncContextManager[None]:
    from ajet_environments.service.client import leasing

    return leasing(attempt)
