"""Engines that wait for something to happen rather than for the clock, so that a slow machine changes nothing.

What does not happen is an error of the engine after `PATIENCE`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ajet.testing import ScriptedEngine
from ajet.types import GenerateRequest, Generation, GenerationDelta
from tests.patience import PATIENCE


class Meeting(ScriptedEngine):
    """Answers requests only when ``parties`` of them are there at once."""

    def __init__(self, *arguments: Any, parties: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._barrier = asyncio.Barrier(parties)

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `ajet.Engine.generate`."""
        async with asyncio.timeout(PATIENCE):
            await self._barrier.wait()
        return await super().generate(request)


class Waiting(ScriptedEngine):
    """Answers, or samples the last token of a stream, only when ``until()`` is true."""

    def __init__(self, *arguments: Any, until: Callable[[], Any], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._until = until

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `ajet.Engine.generate`."""
        whole = await super().generate(request)
        await self._wait()
        return whole

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """See `ajet.Engine.stream`."""
        async for delta in super().stream(request):
            if delta.finish_reason:
                await self._wait()
            yield delta

    async def _wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self._until():
                await asyncio.sleep(0.002)


def with_patience(ask: Callable[[float], Any], begun: Callable[[], Any], seconds: float = 0.1) -> None:
    """``ask(seconds)``, which gives up after so long, with more and more of it until it has ``begun()`` by then."""
    while seconds < PATIENCE:
        ask(seconds)
        if begun():
            return
        seconds *= 5
    pytest.fail("it never began")
