"""The endpoint of a judge model, questions in and checked verdicts out; and the bases of judges that ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, PrivateAttr

from ajet import AnswerStore, Endpoint, EndpointClient, EndpointUsage, Judge, Task
from ajet_judges.questions import Askable, Question, task_text

V = TypeVar("V", bound=BaseModel)
VERDICTS = "verdicts.sqlite"


class JudgeEndpoint(Endpoint):
    """An OpenAI-compatible endpoint for verdicts. Calls to it are never recorded or trained."""

    timeout: float = Field(60.0, gt=0, description="Seconds for one answer.")
    retries: int = Field(
        3, ge=0, description="Retries after a failed request or a malformed answer, with growing pauses."
    )
    cache: Path | None = Field(
        None,
        description="Folder that caches verdicts across runs; default: cached only while the job runs.",
    )
    structured: Literal["json_schema", "json_object", "none"] = Field(
        "json_schema",
        description="How the endpoint enforces a verdict's schema; the judge always checks it too.",
    )
    parameters: dict[str, Any] = Field(
        {"temperature": 0}, description="Further fields of each request: temperature, max_tokens, seed, …"
    )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Asker]:
        """Keep the client and the cache open. Raises ConfigError if the variable of the API key is not set."""
        with AnswerStore(self.cache and self.cache / VERDICTS) as cache:
            cache.get("")  # report an unusable file before anything runs
            async with self.calling(cache) as client:
                yield Asker(client, self.structured)


class Asker:
    """An open endpoint that answers questions."""

    def __init__(self, client: EndpointClient, structured: str) -> None:
        self._client = client
        self._structured = structured

    @property
    def spent(self) -> EndpointUsage:
        """The usage of all questions so far."""
        return self._client.spent

    async def ask(self, question: Askable[V]) -> tuple[V, EndpointUsage]:
        """The verdict on a question, and its usage. Equal questions are sent once. Raises EndpointFailed, or
        MalformedVerdict if no attempt returned a valid verdict."""
        e = self._client.endpoint
        return await self._client.chat(
            lambda: {"messages": question.messages(), **question.fields(self._structured)},
            question.key([e.base_url, e.model, self._structured, e.parameters]),
            question.read,
        )


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
        written = "" if reference is None else str(reference)
        return {"TASK": task_text(task)} | ({"REFERENCE": written} if written.strip() else {})
