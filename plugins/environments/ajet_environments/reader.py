"""Tasks of environments of other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ajet import Task
from ajet.interfaces.reader import SelectingReader

FIELD = "environment"
"""The field of a task's metadata that says which environment it is of."""


class LibraryTasks(SelectingReader):
    """The tasks of an environment of verifiers, OpenEnv, NeMo Gym or Inspect, which the workflow `library` runs.

    The library is installed in a Python environment of its own, a `venv`, which lists the tasks. A task's ``metadata["environment"]``
    describes its environment. What the library scores with stays there.
    """

    name = "library"

    library: Literal["verifiers", "openenv", "nemo_gym", "inspect"] = Field(
        description="Whose environment it is."
    )
    venv: Path = Field(
        description="Folder of a Python environment in which the library and the environment's package are installed."
    )
    options: dict[str, Any] = Field(
        description="The environment, in the library's own words. verifiers: {taskset: {id: NAME, …}, …}, its configuration; "
        "openenv: {app: module:name} or {url: …}; nemo_gym: {config: PATH.yaml}; inspect: {task: module:function, arguments: {…}}."
    )
    count: int = Field(100, ge=1, description="How many tasks are taken at most, from the beginning.")
    variables: dict[str, str] = Field(
        {}, description="Further environment variables of its program; no secrets."
    )

    def source(self) -> Iterator[Task]:
        """One task for each of the library's. Raises ConfigError with what the library says."""
        from ajet_environments.workers import list_tasks

        about = {
            "library": self.library,
            "venv": str(self.venv.absolute()),
            "options": self.options,
            "variables": self.variables,
        }
        for index, listed in enumerate(list_tasks(about, self.count)):
            environment = {**about, "index": index}
            yield Task(listed["id"], listed["query"], metadata={**listed["metadata"], FIELD: environment})
