"""The model that a judge asks, at an endpoint of its own: questions in, checked verdicts out."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel, Field, field_validator

from ajet import AjetError, ConfigError, Settings
from ajet_judges.cache import AnswerCache
from ajet_judges.questions import MalformedVerdict, Question

V = TypeVar("V", bound=BaseModel)
FIRST_PAUSE = 0.5
"""Seconds before the first new attempt; each further pause is twice as long."""
LONGEST_PAUSE = 60.0


class EndpointFailed(AjetError):
    """The judge's endpoint did not answer, or refused to."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What asking cost. Tokens are as the endpoint counts them."""

    calls: float = 0
    cached: float = 0
    """Questions answered without a call."""
    retries: float = 0
    prompt_tokens: float = 0
    completion_tokens: float = 0
    cost: float = 0
    """In the currency of the endpoint's prices."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Usage)))

    def metrics(self, episodes: int = 1) -> dict[str, float]:
        """The share of one of several episodes, as metrics of its verdict."""
        return {f"llm_{name}": value / episodes for name, value in asdict(self).items()}


class Endpoint(Settings):
    """An OpenAI-compatible endpoint. Calls to it are never recorded or trained."""

    base_url: str = Field(description="Address up to and with /v1.")
    model: str = Field(description="Name of the model there.")
    api_key_env: str | None = Field(
        None, description="Environment variable that holds the key; default: no key is sent."
    )
    timeout: float = Field(60.0, gt=0, description="Seconds for one answer.")
    retries: int = Field(
        3, ge=0, description="New attempts after a failed or unreadable answer, with growing pauses."
    )
    concurrency: int = Field(16, ge=1, description="Most calls at once.")
    cache: Path | None = Field(
        None,
        description="Folder in which verdicts are kept, so that no run asks twice; default: kept while the job runs.",
    )
    structured: Literal["json_schema", "json_object", "none"] = Field(
        "json_schema",
        description="What the endpoint enforces of a verdict's form; it is checked here in any case.",
    )
    parameters: dict[str, Any] = Field(
        {"temperature": 0}, description="Further fields of each request: temperature, max_tokens, seed, …"
    )
    prompt_price: float = Field(0.0, ge=0, description="Cost of a million prompt tokens, in any currency.")
    completion_price: float = Field(0.0, ge=0, description="Cost of a million completion tokens.")

    @field_validator("base_url")
    @classmethod
    def _no_secrets(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("an address begins with http:// or https://")
        if "@" in url.split("/")[2]:
            raise ValueError("write no password into the address; name its variable in api_key_env")
        return url.rstrip("/")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Asker]:
        """Hold one HTTP client and the cache. Raises ConfigError if the named key is not set."""
        import httpx2

        key = os.environ.get(self.api_key_env, "") if self.api_key_env else None
        if key == "":
            raise ConfigError(
                f"endpoint.api_key_env: the environment variable {self.api_key_env} is not set."
            )
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx2.AsyncClient(headers=headers, timeout=self.timeout) as client:
            with closing(AnswerCache(self.cache)) as cache:
                yield Asker(self, client, cache, key)


class _Again(Exception):
    """A failure that may pass; ``pause`` is how many seconds the endpoint asked for."""

    def __init__(self, error: AjetError, pause: float = 0.0) -> None:
        self.error = error
        self.pause = pause


class Asker:
    """An open endpoint: asks, retries, keeps answers, counts."""

    def __init__(self, endpoint: Endpoint, client: Any, cache: AnswerCache, key: str | None) -> None:
        self.endpoint = endpoint
        self.spent = Usage()
        """Of all questions so far."""
        self._client = client
        self._cache = cache
        self._key = key
        self._limit = asyncio.Semaphore(endpoint.concurrency)
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ask(self, question: Question[V]) -> tuple[V, Usage]:
        """The verdict on a question, asked once however many ask it. Raises EndpointFailed, or
        MalformedVerdict if every attempt's answer was one."""
        e = self.endpoint
        key = question.key([e.base_url, e.model, e.structured, e.parameters])
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            content = self._cache.get(key)
            if content is not None:
                usage = Usage(cached=1)
                verdict = question.read(content)
            else:
                content, verdict, usage = await self._attempts(question)
                self._cache.put(key, content)
        self.spent += usage
        return verdict, usage

    async def _attempts(self, question: Question[V]) -> tuple[str, V, Usage]:
        usage = Usage()
        for attempt in range(self.endpoint.retries + 1):
            try:
                content, used = await self._call(question)
                usage += used
                return content, question.read(content), usage
            except MalformedVerdict as error:
                last = _Again(error)
            except _Again as again:
                last = again
            if attempt == self.endpoint.retries:
                self.spent += usage
                raise last.error
            usage += Usage(retries=1)
            pause = max(last.pause, FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.0))
            await asyncio.sleep(min(pause, LONGEST_PAUSE))
        raise AssertionError

    async def _call(self, question: Question[V]) -> tuple[str, Usage]:
        import httpx2

        url = f"{self.endpoint.base_url}/chat/completions"
        body = {
            "model": self.endpoint.model,
            "messages": question.messages(),
            **question.response_format(self.endpoint.structured),
            **self.endpoint.parameters,
        }
        try:
            async with self._limit, asyncio.timeout(self.endpoint.timeout):
                response = await self._client.post(url, json=body)
        except TimeoutError:
            late = f"{url}: no answer within {self.endpoint.timeout:g} s. Raise endpoint.timeout, or ask a faster model."
            raise _Again(EndpointFailed(late)) from None
        except httpx2.HTTPError as error:
            raise _Again(
                EndpointFailed(f"{url}: {type(error).__name__}: {error}. Is the server running?")
            ) from None
        if response.status_code != 200:
            raise self._refused(url, response)
        return self._content(url, response)

    def _refused(self, url: str, response: Any) -> Exception:
        said = " ".join(response.text[:300].split())
        if self._key:  # some endpoints repeat it in their complaint
            said = said.replace(self._key, "***")
        hint = " Name the key's variable in endpoint.api_key_env." if response.status_code == 401 else ""
        error = EndpointFailed(f"{url}: HTTP {response.status_code}: {said}{hint}")
        if response.status_code in (408, 409, 425, 429) or response.status_code >= 500:
            return _Again(error, _seconds(response.headers.get("retry-after")))
        return error

    def _content(self, url: str, response: Any) -> tuple[str, Usage]:
        try:
            data = response.json()
            choice = data["choices"][0]
            content = choice["message"]["content"]
            used: Mapping[str, Any] = data.get("usage") or {}
            tokens = [float(used.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
        except (ValueError, LookupError, TypeError, AttributeError):
            said = " ".join(response.text[:300].split())
            raise _Again(EndpointFailed(f"{url}: not a chat completion: {said}")) from None
        cost = (tokens[0] * self.endpoint.prompt_price + tokens[1] * self.endpoint.completion_price) / 1e6
        usage = Usage(calls=1, prompt_tokens=tokens[0], completion_tokens=tokens[1], cost=cost)
        if choice.get("finish_reason") == "length":
            content = None  # half a verdict is none
        return content if isinstance(content, str) else "", usage


def _seconds(header: str | None) -> float:
    """``Retry-After`` in seconds; 0 for none, or for a date."""
    try:
        return max(float(header or 0), 0.0)
    except ValueError:
        return 0.0


def describe_usage(usage: Usage) -> str:
    """``40 calls, 12 cached, 31,000 + 2,400 tokens, cost 0.05``"""
    parts = [f"{usage.calls:.0f} calls", f"{usage.cached:.0f} answered from the cache"]
    parts.append(f"{usage.prompt_tokens:,.0f} + {usage.completion_tokens:,.0f} tokens")
    if usage.cost:
        parts.append(f"cost {usage.cost:.4g}")
    return ", ".join(parts)
