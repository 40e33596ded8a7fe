"""The OpenAI SDK: an explicit client handle, and what `ajet doctor` says about the installed version.

Plain use of the SDK inside a workflow does not need this plugin: the core records it at the HTTP transport.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, overload

from ajet import hookimpl

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from ajet import Tuner

__all__ = ["as_openai_client"]

OLDEST = (1, 66)
NEWEST_MAJOR = 3
TESTED = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST_MAJOR}.x"


@overload
def as_openai_client(
    tuner: Tuner, *, agent: str | None = ..., target: str | None = ..., asynchronous: Literal[True] = ...
) -> AsyncOpenAI: ...
@overload
def as_openai_client(
    tuner: Tuner, *, agent: str | None = ..., target: str | None = ..., asynchronous: Literal[False]
) -> OpenAI: ...
def as_openai_client(
    tuner: Tuner, *, agent: str | None = None, target: str | None = None, asynchronous: bool = True
) -> AsyncOpenAI | OpenAI:
    """A client of the OpenAI SDK whose calls this episode answers, from any thread or task.

    ``agent`` and ``target`` label every call that the client makes; without them, the core chooses
    as for any other call. Timeouts and retries are the SDK's own, so an agent behaves as it does against a
    server. Make one client per episode.
    """
    import openai

    given: dict[str, Any] = {
        "base_url": tuner.base_url,
        "api_key": tuner.api_key,
        "default_headers": tuner.headers(agent=agent, target=target),
    }
    if asynchronous:
        return openai.AsyncOpenAI(**given, http_client=openai.DefaultAsyncHttpxClient(verify=_tls()))
    return openai.OpenAI(**given, http_client=openai.DefaultHttpxClient(verify=_tls()))


@cache
def _tls() -> Any:
    """The TLS context of all clients: reading the certificates again for each would cost 20 ms of CPU time or more."""
    import httpx

    return httpx.create_ssl_context()


@hookimpl
def ajet_handles() -> Mapping[str, Callable[..., Any]]:
    return {"as_openai_client": as_openai_client}


@hookimpl
def ajet_doctor() -> Iterable[tuple[str, str, str]]:
    try:
        version = importlib.metadata.version("openai")
    except importlib.metadata.PackageNotFoundError:
        return [("openai", "not installed", "pip install openai")]
    remedy = "" if _tested(version) else f"outside the tested range {TESTED}: pip install 'openai>=1.66,<4'"
    return [("openai", f"{version} (tested: {TESTED})", remedy)]


def _tested(version: str) -> bool:
    major, minor = (int(part) for part in version.split(".")[:2])
    return (major, minor) >= OLDEST and major <= NEWEST_MAJOR
