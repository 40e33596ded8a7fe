"""Bases of judges that ask a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self, TypeVar

from pydantic import BaseModel, Field, PrivateAttr

from ajet import EndpointUsage, Judge, Task
from ajet_judges.endpoint import Asker, JudgeEndpoint
from ajet_judges.questions import Question, task_text

V = TypeVar("V", bound=BaseModel)


class AskingJudge(Judge):
    """Base of judges that ask a model at their own endpoint."""

    endpoint: JudgeEndpoint = Field(description="The model that judges.")
    _asker: Asker | None = PrivateAttr(None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Keep the endpoint's client and cache open while the job runs."""
        async with super().open(), self.endpoint.open() as asker:
            self._asker = asker
            try:
                yield self
            finally:
                self._asker = None

    async def ask(self, question: Question[V]) -> tuple[V, EndpointUsage]:
        """The verdict on a question, and its usage. Raises EndpointFailed or MalformedVerdict."""
        if self._asker is not None:
            return await self._asker.ask(question)
        async with self.endpoint.open() as asker:
            return await asker.ask(question)


class GradingJudge(AskingJudge):
    """Base of judges whose model may see a reference answer."""

    reference: str | None = Field(
        "answer",
        description="Key of the task's metadata that the judge model sees as the reference answer, if the task has it.",
    )

    def about(self, task: Task) -> dict[str, str]:
        """The task and, if there is one, its reference answer, as data of a question."""
        reference = task.metadata.get(self.reference) if self.reference else None
        return {"TASK": task_text(task)} | ({} if reference is None else {"REFERENCE": str(reference)})
