"""One suite for all releases of the OpenAI SDK (`make test-matrix`): the newest names on older ones."""

from __future__ import annotations

from typing import Any

from openai.resources.chat import AsyncCompletions, Completions


def _from_beta(name: str) -> Any:
    def call(self: Any, **arguments: Any) -> Any:
        return getattr(self._client.beta.chat.completions, name)(**arguments)

    return call


for cls in (Completions, AsyncCompletions):
    for name in ("parse", "stream"):  # until 1.92 they stood below `beta`
        if not hasattr(cls, name):
            setattr(cls, name, _from_beta(name))
