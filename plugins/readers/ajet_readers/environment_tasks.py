"""Tasks of an environment service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from ajet import ConfigError, Task
from ajet.interfaces.reader import SelectingReader


class EnvironmentTasks(SelectingReader):
    """The tasks that an environment service lists for a split.

    A task's ``metadata["environment"]`` describes its environment; a workflow opens it with
    ``ajet.environments.environment(task)``.
    """

    name = "environment"

    url: str = Field(description="Address of the service.")
    env_type: str = Field(description="Name of the service's environment.")
    split: str = Field("train", description="train, test, …")
    params: dict[str, Any] = Field(
        {}, description="Parameters for the service's profile and creation requests."
    )

    def source(self) -> Iterator[Task]:
        """One task per id. Raises ConfigError if the service cannot be reached, or does not have the split."""
        from ajet.environments import EnvironmentFailed, task_ids

        try:
            ids = task_ids(self.url, self.env_type, self.split, self.params)
        except EnvironmentFailed as error:
            raise ConfigError(str(error)) from None
        if not ids:
            raise ConfigError(f"{self.url}: the split {self.split!r} of {self.env_type!r} is empty.")
        about = {"url": self.url, "env_type": self.env_type, "params": dict(self.params)}
        for task_id in ids:
            environment = {**about, "task_id": task_id}
            yield Task(
                id=f"{self.env_type}-{task_id}", metadata={"environment": environment, "split": self.split}
            )
