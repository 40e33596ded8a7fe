"""Calls to an OpenAI-compatible endpoint: retried, cached, counted, never trained.

Judges and readers call their own models through this client, and `chat_models` the models of frozen targets.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from pydantic import AfterValidator, Field

from ajet.capture.context import passthrough, replaying
from ajet.capture.judge_calls import judge_calls
from ajet.interfaces.base import Settings
from ajet.interfaces.engine import ChatModelFailed
from ajet.services.answers import AnswerStore
from ajet.types import AjetError, ConfigError

T = TypeVar("T")
FIRST_PAUSE = 0.5
"""Seconds before the first retry; each further pause is twice as long."""
LONGEST_PAUSE = 60.0
_EMBEDDED_AT_ONCE = 64


class EndpointFailed(ChatModelFailed):
    """The endpoint did not answer, or refused to."""


class Unreadable(AjetError):
    """An answer that does not have the requested form. The question is asked again, and the answer is not cached."""


@dataclass(frozen=True, slots=True)
class EndpointUsage:
    """The cost of calls. Tokens are those that the endpoint reports."""

    calls: float = 0
    cached: float = 0
    """Questions answered from the cache."""
    retries: float = 0
    prompt_tokens: float = 0
    completion_tokens: float = 0
    cost: float = 0
    """In the currency of the endpoint's prices."""

    def __add__(self, other: EndpointUsage) -> EndpointUsage:
        return EndpointUsage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(EndpointUsage)))

    def __str__(self) -> str:
        """``40 calls, 12 answered from the cache, 31,000 + 2,400 tokens, cost 0.05``"""
        parts = [f"{self.calls:.0f} calls", f"{self.cached:.0f} answered from the cache"]
        parts.append(f"{self.prompt_tokens:,.0f} + {self.completion_tokens:,.0f} tokens")
        return ", ".join([*parts, *([f"cost {self.cost:.4g}"] if self.cost else [])])

    def metrics(self, episodes: int = 1) -> dict[str, float]:
        """The share of one of several episodes, as metrics of its verdict."""
        return {f"llm_{name}": value / episodes for name, value in asdict(self).items()}


class KeptAnswers(Protocol):
    """A store of answers: text by key."""

    def get(self, key: str) -> str | None:
        """The answer stored under a key."""
        ...

    def put(self, key: str, answer: str) -> None:
        """Store an answer."""
        ...


def _without_secrets(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("the address must begin with http:// or https://")
    if "@" in url.split("/")[2]:
        raise ValueError("do not write a password into the address; name its variable in api_key_env")
    return url.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_without_secrets)]


class Endpoint(Settings):
    """An OpenAI-compatible endpoint and one model there."""

    base_url: BaseUrl = Field(description="Base URL of the API, including /v1.")
    model: str = Field(description="Name of the model at this endpoint.")
    api_key_env: str | None = Field(
        None, description="Environment variable that contains the key; default: no key is sent."
    )
    timeout: float = Field(120.0, gt=0, description="Seconds for one answer.")
    retries: int = Field(
        5, ge=0, description="Retries after a failed or unreadable answer, with growing pauses."
    )
    concurrency: int = Field(16, ge=1, description="Maximum concurrent calls.")
    parameters: dict[str, Any] = Field(
        {}, description="Further fields of each request: temperature, max_tokens, seed, …"
    )
    prompt_price: float = Field(0.0, ge=0, description="Cost of a million prompt tokens, in any currency.")
    completion_price: float = Field(0.0, ge=0, description="Cost of a million completion tokens.")

    @asynccontextmanager
    async def calling(self, answers: KeptAnswers | None = None) -> AsyncIterator[EndpointClient]:
        """Hold one HTTP client, whose `chat` and `embed` store answers in ``answers``. Raises ConfigError if the named key
        is not set."""
        import httpx2

        key = os.environ.get(self.api_key_env, "") if self.api_key_env and not replaying.get() else None
        if key == "":
            raise ConfigError(
                "endpoint.api_key_env", f"the environment variable {self.api_key_env} is not set."
            )
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        async with httpx2.AsyncClient(headers=headers, timeout=self.timeout) as client:
            yield EndpointClient(self, client, AnswerStore(None) if answers is None else answers, key)


class _Again(Exception):
    """A temporary failure; ``pause`` is how many seconds the endpoint asks to wait."""

    def __init__(self, error: AjetError, pause: float = 0.0) -> None:
        self.error = error
        self.pause = pause


class EndpointClient:
    """An open endpoint: calls, retries, caches answers, counts usage."""

    def __init__(self, endpoint: Endpoint, client: Any, answers: KeptAnswers, key: str | None) -> None:
        self.endpoint = endpoint
        self.spent = EndpointUsage()
        """Of all questions so far."""
        self._client = client
        self._answers = answers
        self._key = key
        self._limit = asyncio.Semaphore(endpoint.concurrency)
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def chat(
        self,
        request: Callable[[], Mapping[str, Any]],
        key: str,
        read: Callable[[str], T],
    ) -> tuple[T, EndpointUsage]:
        """The result of ``read`` on the answer's text; concurrent questions with one key are asked only once.

        ``request`` makes the body of each attempt, without the model. An answer that was cut off by its length is not
        used. Raises EndpointFailed, or the `Unreadable` of ``read`` if every attempt's answer was unreadable.
        """
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            kept = self._answers.get(key)
            if kept is not None:
                value, usage = read(kept), EndpointUsage(cached=1)
                self.spent += usage
                self._keep(request(), kept)
            else:
                (text, value), usage = await self._attempts(
                    "chat/completions", request, lambda body: _read_text(body, read)
                )
                self._answers.put(key, text)
        return value, usage

    def _keep(self, request: Mapping[str, Any], text: str) -> None:
        """Let a recording have a question that the cache answered."""
        judging = judge_calls.get()
        if judging is not None:
            e = self.endpoint
            said = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            body = {"model": e.model, **request, **e.parameters}
            judging.add(f"{e.base_url}/chat/completions", body, {"choices": [said]})

    async def message(self, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], EndpointUsage]:
        """The assistant message of an answer with its ``finish_reason``, not stored, and what it used. Raises EndpointFailed."""
        return await self._attempts("chat/completions", lambda: request, _read_message)

    async def embed(self, texts: Sequence[str], keys: Sequence[str]) -> list[list[float]]:
        """The embedding of each text, stored under its key. Raises EndpointFailed."""
        by_key = {key: json.loads(kept) for key in keys if (kept := self._answers.get(key)) is not None}
        unknown = [i for i, key in enumerate(keys) if key not in by_key]
        self.spent += EndpointUsage(cached=len(texts) - len(unknown))
        for start in range(0, len(unknown), _EMBEDDED_AT_ONCE):
            batch = unknown[start : start + _EMBEDDED_AT_ONCE]
            body = {"input": [texts[i] for i in batch]}
            vectors, _ = await self._attempts(
                "embeddings", partial(dict, body), partial(_read_vectors, count=len(batch))
            )
            for i, vector in zip(batch, vectors, strict=True):
                by_key[keys[i]] = vector
                self._answers.put(keys[i], json.dumps(vector))
        return [by_key[key] for key in keys]

    async def _attempts(
        self, path: str, request: Callable[[], Mapping[str, Any]], read: Callable[[Any], T]
    ) -> tuple[T, EndpointUsage]:
        usage = EndpointUsage()
        try:
            for attempt in range(self.endpoint.retries + 1):
                try:
                    body, used = await self._call(path, request())
                    usage += used
                    return self._read(path, body, read), usage
                except Unreadable as error:
                    last = _Again(error)
                except _Again as again:
                    last = again
                if attempt == self.endpoint.retries:
                    raise last.error
                usage += EndpointUsage(retries=1)
                pause = max(last.pause, FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.0))
                await asyncio.sleep(min(pause, LONGEST_PAUSE))
        finally:  # what was paid for counts, also if a later attempt is refused or cancelled
            self.spent += usage
        raise AssertionError

    async def _call(self, path: str, request: Mapping[str, Any]) -> tuple[Any, EndpointUsage]:
        """The body of an answer, and its cost."""
        import httpx2

        e = self.endpoint
        url = f"{e.base_url}/{path}"
        # ASCII, because what an agent says may contain lone surrogates.
        body = json.dumps({"model": e.model, **request, **e.parameters}).encode()
        try:
            async with self._limit, asyncio.timeout(e.timeout):
                with passthrough():
                    response = await self._client.post(url, content=body)
        except TimeoutError:
            late = f"{url}: no answer within {e.timeout:g} s. Raise endpoint.timeout, or use a faster model."
            raise _Again(EndpointFailed(late)) from None
        except httpx2.HTTPError as error:
            raise _Again(
                EndpointFailed(f"{url}: {type(error).__name__}: {error}. Is the server running?")
            ) from None
        if response.status_code != 200:
            raise self._refused(url, response)
        try:
            body = response.json()
            used: Mapping[str, Any] = body.get("usage") or {}
            tokens = [float(used.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
        except (ValueError, TypeError, AttributeError):
            raise _Again(_not_one(url, response.text)) from None
        cost = (tokens[0] * e.prompt_price + tokens[1] * e.completion_price) / 1e6
        return body, EndpointUsage(calls=1, prompt_tokens=tokens[0], completion_tokens=tokens[1], cost=cost)

    def _read(self, path: str, body: Any, read: Callable[[Any], T]) -> T:
        try:
            return read(body)
        except (LookupError, TypeError, AttributeError, ValueError):
            raise _Again(_not_one(f"{self.endpoint.base_url}/{path}", json.dumps(body))) from None

    def _refused(self, url: str, response: Any) -> Exception:
        said = " ".join(response.text[:300].split())
        if self._key:  # some endpoints repeat it in their error message
            said = said.replace(self._key, "***")
        hint = " Name the key's variable in endpoint.api_key_env." if response.status_code == 401 else ""
        error = EndpointFailed(f"{url}: HTTP {response.status_code}: {said}{hint}", response.status_code)
        if response.status_code in (408, 409, 425, 429) or response.status_code >= 500:
            return _Again(error, _seconds(response.headers.get("retry-after")))
        return error


def _read_text(body: Any, read: Callable[[str], T]) -> tuple[str, T]:
    """The text of a completion, and the result of ``read``."""
    choice = body["choices"][0]
    content = choice["message"]["content"]
    whole = isinstance(content, str) and choice.get("finish_reason") != "length"
    text = content if whole else ""
    return text, read(text)


def _read_message(body: Any) -> Mapping[str, Any]:
    choice = body["choices"][0]
    return {**choice["message"], "finish_reason": choice.get("finish_reason")}


def _read_vectors(body: Any, count: int) -> list[list[float]]:
    ordered = sorted(body["data"], key=lambda item: item["index"])
    if len(ordered) != count:
        raise ValueError
    return [[float(x) for x in item["embedding"]] for item in ordered]


def _not_one(url: str, said: str) -> EndpointFailed:
    what = "embedding" if url.endswith("embeddings") else "chat completion"
    return EndpointFailed(f"{url}: not a {what}: {' '.join(said[:300].split())}")


def _seconds(header: str | None) -> float:
    """``Retry-After`` in seconds; 0 for none, or for a date."""
    try:
        return max(float(header or 0), 0.0)
    except ValueError:
        return 0.0
