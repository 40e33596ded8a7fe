"""Tokens that the calls of an AgentScope chat model use, as its responses report them."""

from __future__ import annotations

import copy
import types
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

_CALLS = ("__call__", "generate_structured_output")
"""The methods of chat models that call a model and do not call each other; the second is in AgentScope 2 only."""


@dataclass
class Usage:
    """Tokens of all calls so far. ``calls`` counts the responses that report them."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, reported: Any) -> None:
        """Add the ``usage`` of one response, an AgentScope ``ChatUsage`` or None."""
        if reported is not None:
            self.calls += 1
            self.input_tokens += reported.input_tokens
            self.output_tokens += reported.output_tokens


def counted(model: Any) -> tuple[Any, Usage]:
    """A copy of a chat model, of AgentScope 1 or 2, that does the same and counts what it uses. It is an instance of a
    subclass of the model's own class, because agents may check the class."""
    usage = Usage()
    cls = type(model)
    copied = copy.copy(model)
    methods = {name: _counting(getattr(cls, name), usage) for name in _CALLS if hasattr(cls, name)}
    body = {"__module__": cls.__module__, **methods}
    copied.__class__ = types.new_class(cls.__name__, (cls,), {}, lambda namespace: namespace.update(body))
    return copied, usage


def _counting(method: Any, usage: Usage) -> Any:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        response = await method(self, *args, **kwargs)
        if isinstance(response, AsyncIterator):
            return _streamed(response, usage)
        usage.add(getattr(response, "usage", None))
        return response

    return call


async def _streamed(chunks: AsyncIterator[Any], usage: Usage) -> AsyncIterator[Any]:
    """The chunks of a stream. The last usage that they report is that of the whole call."""
    last = None
    try:
        async for chunk in chunks:
            last = getattr(chunk, "usage", None) or last
            yield chunk
    finally:
        usage.add(last)
