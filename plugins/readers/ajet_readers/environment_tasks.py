"""Tasks of environments: those that a service lists, and seeds of Gymnasium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from ajet import ConfigError, Task
from ajet.interfaces.helpers import nearest
from ajet.interfaces.reader import SelectingReader
from ajet_readers.extras import needs


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


class Gymnasium(SelectingReader):
    """The seeds ``seed`` … ``seed + count - 1`` of a Gymnasium environment, one task each.

    A task's metadata is what makes its world: ``gymnasium.make(env, **options).reset(seed=seed)``. Validate on
    seeds that are not trained on.
    """

    name = "gymnasium"

    env: str = Field(description="Id of the environment; module:Id imports the module that registers it.")
    options: dict[str, Any] = Field({}, description="Keyword arguments for `gymnasium.make`.")
    count: int = Field(64, ge=1, description="Number of seeds.")
    seed: int = Field(0, ge=0, description="The first seed.")
    query: str = Field("", description="The question of every task.")

    def source(self) -> Iterator[Task]:
        """One task per seed. Raises ConfigError for an environment or options that Gymnasium does not accept."""
        self._check()
        for seed in range(self.seed, self.seed + self.count):
            yield Task(
                id=f"{self.env}-{seed}",
                query=self.query,
                metadata={"env": self.env, "options": dict(self.options), "seed": seed},
            )

    def _check(self) -> None:
        gymnasium = needs("gymnasium", "gymnasium")
        try:
            gymnasium.make(self.env, **self.options).close()
        except (gymnasium.error.Error, ImportError) as error:
            hint = nearest(self.env, gymnasium.registry)
            raise ConfigError(f"env {self.env}: {_one_line(error)}{hint}") from None
        except Exception as error:
            raise ConfigError(
                f"env {self.env}: cannot be made with options {self.options}: {type(error).__name__}: {_one_line(error)}"
            ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
