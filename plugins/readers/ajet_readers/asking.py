"""For readers that ask a model: answers, stored under a key over the whole request."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ajet import AnswerStore, Endpoint, EndpointClient, EndpointUsage

T = TypeVar("T")


class CachingEndpoint:
    """An open endpoint; a call whose answer is stored is not made again."""

    def __init__(self, client: EndpointClient) -> None:
        self._client = client

    @property
    def spent(self) -> EndpointUsage:
        """The usage of all calls so far."""
        return self._client.spent

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, number: int = 0, temperature: float = 0.0
    ) -> str:
        """The model's answer as text. Another ``number`` makes the same request again. Raises EndpointFailed."""
        request = {"messages": list(messages), "temperature": temperature}
        text, _ = await self._client.chat(lambda: request, self._key(request, number), str)
        return text

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """The embedding of each text. Raises EndpointFailed."""
        return await self._client.embed(texts, [self._key({"input": text}, 0) for text in texts])

    def _key(self, request: Mapping[str, Any], number: int) -> str:
        """Identifies a call: its whole request without the address, so answers stay valid when a server moves."""
        endpoint = self._client.endpoint
        whole = [endpoint.model, request, endpoint.parameters, number]
        return hashlib.sha256(json.dumps(whole, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]


@asynccontextmanager
async def calling(endpoint: Endpoint, journal: AnswerStore) -> AsyncIterator[CachingEndpoint]:
    """Open an endpoint for a block."""
    async with endpoint.calling(journal) as client:
        yield CachingEndpoint(client)


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result, also while an event loop is running, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, work).result()


def json_in(text: str) -> Any:
    """The first JSON object or array in a model's answer; text around it is ignored. Raises ValueError."""
    start = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if start < 0:
        raise ValueError("no JSON in the answer")
    try:
        value, _ = json.JSONDecoder().raw_decode(text[start:])
    except RecursionError:
        raise ValueError("the JSON in the answer is nested too deeply") from None
    return value
