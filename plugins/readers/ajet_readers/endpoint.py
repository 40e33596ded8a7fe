"""Calls of an OpenAI-compatible endpoint whose answers cost something: retried, journaled, counted."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from ajet import AjetError, passthrough
from ajet.base import Settings
from ajet_readers.journal import Journal

_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}
_LONGEST_PAUSE = 30.0
_BATCH = 64  # texts of one request for embeddings


class Endpoint(Settings):
    """An OpenAI-compatible endpoint and one model there. The key is read from the environment."""

    base_url: str = Field(description="Address up to and with /v1.")
    model: str = Field(description="Name of the model there.")
    api_key_env: str = Field("OPENAI_API_KEY", description="Environment variable that holds the key.")
    timeout: float = Field(120.0, gt=0, description="Seconds for one answer.")
    retries: int = Field(5, ge=0, description="Further tries after a refusal or a broken connection.")
    concurrency: int = Field(8, ge=1, description="Calls at once.")
    input_price: float = Field(0.0, ge=0, description="Price of a million prompt tokens.")
    output_price: float = Field(0.0, ge=0, description="Price of a million completion tokens.")


class Caller:
    """Calls an endpoint, each at most once in the life of its journal. From many threads at once.

    ``counts`` holds ``calls`` and ``journaled`` (answered from the journal), ``input_tokens``,
    ``output_tokens`` of the calls that were made now.
    """

    def __init__(self, endpoint: Endpoint, journal: Journal, client: Any) -> None:
        self.counts: Counter[str] = Counter()
        self._endpoint = endpoint
        self._journal = journal
        self._client = client
        self._lock = threading.Lock()

    @property
    def cost(self) -> float:
        """Of the calls made now, in the unit of the endpoint's prices."""
        price = self._endpoint
        tokens = self.counts
        return (
            tokens["input_tokens"] * price.input_price + tokens["output_tokens"] * price.output_price
        ) / 1e6

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, number: int = 0, temperature: float = 0.0
    ) -> str:
        """The model's answer as text; another ``number`` asks the same anew. Raises AjetError."""
        path = "chat/completions"
        request = {"model": self._endpoint.model, "messages": list(messages), "temperature": temperature}
        key = call_key(path, request, number)
        known = self._journal.get(key)
        if known is not None:
            self.count(journaled=1)
            return str(known["answer"])
        answer, usage = self._ask(path, request, _message_text)
        self._journal.add(key, {"answer": answer, **usage})
        self.count(calls=1, **usage)
        return str(answer)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """The embedding of each text. Raises AjetError."""
        keys = [call_key("embeddings", {"model": self._endpoint.model, "input": text}, 0) for text in texts]
        unknown = [i for i, key in enumerate(keys) if self._journal.get(key) is None]
        self.count(journaled=len(texts) - len(unknown))
        for start in range(0, len(unknown), _BATCH):
            batch = unknown[start : start + _BATCH]
            request = {"model": self._endpoint.model, "input": [texts[i] for i in batch]}
            vectors, usage = self._ask("embeddings", request, _vectors)
            for i, vector in zip(batch, vectors, strict=True):
                self._journal.add(keys[i], {"answer": vector})
            self.count(calls=1, **usage)
        found = [self._journal.get(key) for key in keys]
        return [known["answer"] for known in found if known is not None]

    def _ask(self, path: str, request: Mapping[str, Any], read: Any) -> tuple[Any, dict[str, int]]:
        """An answer and the tokens that it took."""
        body = self._post(f"{self._endpoint.base_url.rstrip('/')}/{path}", request)
        try:
            usage = body.get("usage") or {}
            return read(body), {
                "input_tokens": int(usage.get("prompt_tokens") or 0),
                "output_tokens": int(usage.get("completion_tokens") or 0),
            }
        except (LookupError, TypeError, AttributeError, ValueError):
            raise AjetError(
                f"{self._endpoint.base_url}: no answer of {path}: {json.dumps(body)[:300]}"
            ) from None

    def _post(self, url: str, request: Mapping[str, Any]) -> Any:
        import httpx2

        for attempt in range(self._endpoint.retries + 1):
            pause = min(_LONGEST_PAUSE, 0.5 * 2**attempt) * random.uniform(0.5, 1.0)
            try:
                with passthrough():
                    response = self._client.post(url, json=request)
            except httpx2.HTTPError as error:
                problem = f"{type(error).__name__}: {error}. Is the server running?"
            else:
                if response.status_code == 200:
                    try:
                        return response.json()
                    except ValueError:
                        raise AjetError(f"{url}: not JSON: {response.text[:300]}") from None
                problem = f"HTTP {response.status_code}: {response.text[:300]}"
                if response.status_code not in _AGAIN:
                    raise AjetError(f"{url}: {problem}")
                pause = max(pause, _seconds(response.headers.get("retry-after")))
            if attempt < self._endpoint.retries:
                time.sleep(pause)
        raise AjetError(f"{url}: {problem}")

    def count(self, **counts: int) -> None:
        """Add to the counts."""
        with self._lock:
            self.counts.update(counts)


@contextmanager
def calling(endpoint: Endpoint, journal: Journal) -> Iterator[Caller]:
    """A block with a caller."""
    import httpx2

    headers = {"authorization": f"Bearer {os.environ.get(endpoint.api_key_env, 'unset')}"}
    with httpx2.Client(headers=headers, timeout=endpoint.timeout) as client:
        yield Caller(endpoint, journal, client)


def call_key(path: str, request: Mapping[str, Any], number: int) -> str:
    """What makes a call the same call: all of its request, but not the address, so that nothing is paid for
    twice when a server moves."""
    text = json.dumps([path, request, number], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def json_in(text: str) -> Any:
    """The first JSON object or array in a model's answer, whatever stands around it. Raises ValueError."""
    start = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if start < 0:
        raise ValueError("no JSON in the answer")
    value, _ = json.JSONDecoder().raw_decode(text[start:])
    return value


def _message_text(body: Any) -> str:
    return str(body["choices"][0]["message"]["content"] or "")


def _vectors(body: Any) -> list[list[float]]:
    ordered = sorted(body["data"], key=lambda item: item["index"])
    return [[float(x) for x in item["embedding"]] for item in ordered]


def _seconds(retry_after: str | None) -> float:
    try:
        return min(float(retry_after or 0), _LONGEST_PAUSE)
    except ValueError:  # a date
        return 0.0
