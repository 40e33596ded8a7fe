"""The model that a judge asks, at an endpoint of its own: questions in, checked verdicts out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field

from ajet.services.llm_client import Client, Endpoint, Usage
from ajet_judges.cache import AnswerCache
from ajet_judges.questions import Question

V = TypeVar("V", bound=BaseModel)


class JudgeEndpoint(Endpoint):
    """An OpenAI-compatible endpoint for verdicts. Calls to it are never recorded or trained."""

    timeout: float = Field(60.0, gt=0, description="Seconds for one answer.")
    retries: int = Field(
        3, ge=0, description="Retries after a failed or unreadable answer, with growing pauses."
    )
    cache: Path | None = Field(
        None,
        description="Folder that caches verdicts across runs; default: they are cached only while the job runs.",
    )
    structured: Literal["json_schema", "json_object", "none"] = Field(
        "json_schema",
        description="How the endpoint enforces a verdict's form; the form is always checked here as well.",
    )
    parameters: dict[str, Any] = Field(
        {"temperature": 0}, description="Further fields of each request: temperature, max_tokens, seed, …"
    )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Asker]:
        """Hold the client and the cache. Raises ConfigError if the named key is not set."""
        with closing(AnswerCache(self.cache)) as cache:
            async with self.calling(cache) as client:
                yield Asker(client, self.structured)


class Asker:
    """An open endpoint that answers questions."""

    def __init__(self, client: Client, structured: str) -> None:
        self._client = client
        self._structured = structured

    @property
    def spent(self) -> Usage:
        """Of all questions so far."""
        return self._client.spent

    async def ask(self, question: Question[V]) -> tuple[V, Usage]:
        """The verdict on a question, asked once however many ask it. Raises EndpointFailed, or
        MalformedVerdict if every attempt's answer was one."""
        e = self._client.endpoint
        return await self._client.chat(
            lambda: {"messages": question.messages(), **question.response_format(self._structured)},
            question.key([e.base_url, e.model, self._structured, e.parameters]),
            question.read,
        )
