"""Values of the episode in a command and in environment variables: ``{query}``, ``{metadata.repo}``."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from ajet import Task
from ajet.interfaces.workflow import EpisodeEndpoint, WorkflowFailed

KNOWN = ("query", "id", "base_url", "keyed_url", "api_key", "workspace", "home", "workdir")
"""Besides ``metadata.NAME``."""
_FIELD = "metadata."
_PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[\w.-]+)?)\}")


def check_placeholders(text: str) -> None:
    """Raise ValueError for what looks like a misspelt placeholder. Other words in braces stay as they are."""
    for name in _PLACEHOLDER.findall(text):
        near = difflib.get_close_matches(name, KNOWN, 1, cutoff=0.75)
        if near and name not in KNOWN and not name.startswith(_FIELD):
            raise ValueError(f"{{{name}}} is not a placeholder; did you mean {{{near[0]}}}")


def has_placeholder(text: str) -> bool:
    """Whether a text has a placeholder."""
    return any(name in KNOWN or name.startswith(_FIELD) for name in _PLACEHOLDER.findall(text))


def fill(text: str, values: Mapping[str, str], task: Task) -> str:
    """A text with values in the places of its placeholders. What is not text in the metadata is written as JSON. Raises
    WorkflowFailed for a field that the task does not have."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return (
            _field(name.removeprefix(_FIELD), task) if name.startswith(_FIELD) else values.get(name, match[0])
        )

    return _PLACEHOLDER.sub(value, text)


def values_of(task: Task, endpoint: EpisodeEndpoint) -> dict[str, str]:
    """The values that do not depend on folders."""
    return {
        "query": task.query,
        "id": task.id,
        "base_url": endpoint.base_url,
        "keyed_url": endpoint.keyed_url,
        "api_key": endpoint.api_key,
    }


def _field(name: str, task: Task) -> str:
    value: Any = field_of(name, task)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def field_of(name: str, task: Task) -> Any:
    """A field of the task's metadata. Raises WorkflowFailed if there is none."""
    if name not in task.metadata:
        raise WorkflowFailed(
            "no_field",
            f"task {task.id} has no metadata.{name}, or task.hidden names it; known: {', '.join(task.metadata) or 'none'}",
        )
    return task.metadata[name]
