"""Episodes of other libraries' environments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from pydantic import Field, PrivateAttr

from ajet import Task, Tuner, WorkflowOutput, WorkflowPlugin
from ajet.interfaces.workflow import EpisodeEndpoint, WorkflowFailed
from ajet_environments.reader import FIELD
from ajet_environments.workers import Workers


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
