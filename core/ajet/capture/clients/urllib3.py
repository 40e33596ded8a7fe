"""urllib3, and so requests: patched at `HTTPConnectionPool.urlopen`, before a connection is opened."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import httpx2

from ajet.capture.clients.http_client import response_of
from ajet.capture.clients.translated import (
    Matcher,
    address_of,
    as_bytes,
    seconds_of,
    send,
    translated,
    with_body,
)
from ajet.utils.patching import replaced


@contextmanager
def patched(module: ModuleType, matcher: Matcher) -> Iterator[None]:
    """LLM calls by urllib3 and requests are answered."""
    package = importlib.import_module("urllib3")
    own = module.HTTPConnectionPool.urlopen
    parameters = inspect.signature(own)

    def urlopen(
        pool: Any, method: str, url: str, body: Any = None, headers: Any = None, *rest: Any, **options: Any
    ) -> Any:
        asked = translated(matcher, method, _url(pool, url), pool.headers if headers is None else headers)
        if asked is None:
            return own(pool, method, url, body, headers, *rest, **options)
        given = parameters.bind(pool, method, url, body, headers, *rest, **options)
        given.apply_defaults()
        return _answered(package, pool, url, asked, given.arguments)

    with replaced(module.HTTPConnectionPool, urlopen=urlopen):
        yield


def _answered(package: ModuleType, pool: Any, url: str, asked: httpx2.Request, given: dict[str, Any]) -> Any:
    seconds = _seconds(package, given["timeout"], pool.timeout)
    # urllib3 1.x has no names for these two parameters.
    reading = {"preload_content": True, "decode_content": True, **given, **given["response_kw"]}
    try:
        response = response_of(send(with_body(asked, as_bytes(given["body"], "utf-8"), seconds)))
    except httpx2.ReadTimeout:
        raise package.exceptions.ReadTimeoutError(
            pool, url, f"Read timed out. (read timeout={seconds})"
        ) from None
    return package.HTTPResponse(
        body=response,
        headers=dict(response.getheaders()),
        status=response.status,
        version=response.version,
        reason=response.reason,
        preload_content=reading["preload_content"],
        decode_content=reading["decode_content"],
        original_response=response,
        pool=pool,
        request_method="POST",
        request_url=url,
    )


def _url(pool: Any, target: str) -> str:
    if target.startswith(("http://", "https://")):  # through a proxy
        return target
    return f"{address_of(pool.scheme, pool.host, pool.port)}{target}"


def _seconds(package: ModuleType, timeout: Any, default: Any) -> float | None:
    """How long the caller waits for bytes: a number, None, urllib3's own Timeout, or its default."""
    if timeout is None or isinstance(timeout, int | float):
        timeout = package.Timeout.from_float(timeout)
    elif not isinstance(timeout, package.Timeout):
        timeout = default
    begun = timeout.clone()
    begun.start_connect()
    return seconds_of(begun.read_timeout)
