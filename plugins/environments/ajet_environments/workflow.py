"""Tasks and episodes of other libraries' environments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr

from ajet import Task, Tuner, WorkflowOutput, WorkflowPlugin
from ajet.interfaces.reader import SelectingReader
from ajet.interfaces.workflow import EpisodeEndpoint, WorkflowFailed
from ajet_environments.workers import Workers

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


class LibraryWorkflow(WorkflowPlugin):
    """Runs an episode of a library's environment, unchanged: its loop, its tools and its reward. Its client is given the address and
    the key of the episode.

    Its tasks come from the reader `library`. The reward is the library's; its parts are metrics.
    """

    name = "library"

    model: str = Field("policy", description="What the environment calls the model in its requests.")
    judge: str = Field(
        "",
        description="The frozen target that answers what the environment asks models for its reward; without it, the episode fails.",
    )
    _workers: Workers | None = PrivateAttr(None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Ends all of the environments' programs at the end of the job."""
        live = self.model_copy()
        live._workers = workers = Workers()
        try:
            yield live
        finally:
            await workers.end()

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        """See `WorkflowPlugin.execute`. Raises WorkflowFailed for an episode of which the library says that it is not valid."""
        assert self._workers, "it runs in a block `async with workflow.open()`"
        about = task.metadata.get(FIELD)
        if not isinstance(about, Mapping) or "library" not in about:
            raise WorkflowFailed(
                "no_task", f"task {task.id} names no environment; read tasks with the reader library"
            )
        if self.judge and self.judge not in tuner.auxiliary:
            raise WorkflowFailed(
                "judge",
                f"judge {self.judge!r} is not a target with a frozen_model; the job's are: "
                f"{', '.join(tuner.auxiliary) or 'none'}. Add targets.{self.judge}: {{frozen_model: …}}",
            )
        judge = tuner.as_base_url(target=self.judge) if self.judge else None
        request = {
            "do": "run",
            "index": about["index"],
            "model": _named(tuner.as_base_url(), self.model),
            "judge": judge and _named(judge, self.judge),
            "variables": judge.environment() if judge else {},
        }
        given = {name: value for name, value in about.items() if name != "index"}
        return _output(await self._workers.run(given, request))


def _named(endpoint: EpisodeEndpoint, name: str) -> dict[str, str]:
    return {**endpoint._asdict(), "name": name}


def _output(answer: Mapping[str, Any]) -> WorkflowOutput:
    """What an answer means for its episode. Raises WorkflowFailed if it is not valid."""
    if not answer["ok"]:
        raise WorkflowFailed("environment", " ".join(answer["error"].split()))
    return WorkflowOutput(answer["reward"], answer["response"], metrics=answer["metrics"])
