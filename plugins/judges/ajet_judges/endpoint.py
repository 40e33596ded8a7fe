"""The endpoint of a judge model: questions in, checked verdicts out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field

from ajet import AnswerStore, Endpoint, EndpointClient, EndpointUsage
from ajet_judges.questions import Question

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

    async def ask(self, question: Question[V]) -> tuple[V, EndpointUsage]:
        """The verdict on a question, and its usage. Equal questions are sent once. Raises EndpointFailed, or
        MalformedVerdict if no attempt returned a valid verdict."""
        e = self._client.endpoint
        return await self._client.chat(
            lambda: {"messages": question.messages(), **question.response_format(self._structured)},
            question.key([e.base_url, e.model, self._structured, e.parameters]),
            question.read,
        )
