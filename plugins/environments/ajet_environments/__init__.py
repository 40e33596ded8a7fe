"""Environments of other libraries: the reader and the workflow `library`, and tools of MCP servers.

Importing this package imports none of the libraries, nor `mcp`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ajet import Plugin, hookimpl
from ajet_environments.reader import LibraryTasks
from ajet_environments.workflow import LibraryWorkflow

__all__ = ["LibraryTasks", "LibraryWorkflow"]


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [LibraryTasks, LibraryWorkflow]
