"""`serve`: a checkpoint behind an OpenAI-compatible address, for the length of a block."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from ajet.api.calling import anywhere
from ajet.capture.gateway.listening import warn_of_network
from ajet.capture.sampling import SamplingPolicy
from ajet.interfaces.progress import Silent
from ajet.plugins import validated
from ajet.rollout.settings import RolloutSettings
from ajet.runs.serve import checked_key, served, serving
from ajet.utils.terminal import tell


@dataclass(frozen=True, slots=True)
class Server:
    """Where a checkpoint answers: chat completions, responses, completions and messages."""

    base_url: str
    """Up to and with ``/v1``."""
    api_key: str = field(repr=False)
    model: str
    """The model's name at this address."""


@contextmanager
def serve(
    checkpoint: str | os.PathLike[str],
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    key: str | None = None,
    engine: str = "auto",
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int | None = None,
    context_length: int | None = None,
    chat_template: Mapping[str, Any] | None = None,
    call_example: str = "",
    tool_prompt: Literal["", "hermes"] = "",
    tool_calls: Literal["read", "text"] = "read",
    most_calls: int = 256,
    seed: int = 0,
    set: Mapping[str, Any] | None = None,
) -> Iterator[Server]:
    """A block in which a checkpoint, a Hugging Face id or a recipe is served, as by `ajet serve`; port 0 is a free one,
    ``set`` are fields of the engine. ``context_length``, ``chat_template``, ``call_example``, ``tool_prompt`` and ``tool_calls``
    are a job's keys of these names in ``rollout``. Raises AjetError."""
    api_key = checked_key(key)
    keys = {
        "context_length": context_length,
        "chat_template": dict(chat_template or {}),
        "call_example": call_example,
        "tool_prompt": tool_prompt,
        "tool_calls": tool_calls,
    }
    settings = validated(RolloutSettings, keys, "serve")
    warn_of_network(host, tell)
    what = anywhere(served)(os.fspath(checkpoint), engine, set or {}, seed, Silent())
    with serving(
        what.engine,
        models=[what.name],
        key=api_key,
        host=host,
        port=port,
        most_calls=most_calls,
        policy=SamplingPolicy(False, temperature, top_p, max_tokens=max_tokens),
        settings=settings,
    ) as (url, _):
        yield Server(f"{url}/v1", api_key, what.name)
