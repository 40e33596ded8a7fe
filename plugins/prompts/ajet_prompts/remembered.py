"""A chat model that is asked nothing twice: a search that goes on after a kill gets the replies that were paid for."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from ajet import AnswerStore, ChatModelPlugin, EndpointUsage
from ajet.capture.context import answering_episode
from ajet.interfaces.engine import Sampling

_SPENT = "spent"


class Remembered(ChatModelPlugin):
    """Asks ``model``, and writes its replies to ``file`` before they are used.

    A reply is found again by its episode, its request, and how often the episode has sent that request before. So another
    attempt at an episode asks anew, and a search that repeats its steps does not.
    """

    name = "remembered"
    model: ChatModelPlugin
    file: Path
    _live: Any = PrivateAttr(None)
    _store: Any = PrivateAttr(None)
    _asked: Counter[str] = PrivateAttr(default_factory=Counter)
    _earlier: EndpointUsage = PrivateAttr(default_factory=EndpointUsage)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Remembered]:
        """Open the model and the file."""
        async with AsyncExitStack() as stack:
            self._store = stack.enter_context(AnswerStore(self.file))
            self._live = await stack.enter_async_context(self.model.open())
            spent = self._store.get(_SPENT)
            self._earlier = EndpointUsage(**json.loads(spent)) if spent else EndpointUsage()
            yield self

    @property
    def spent(self) -> EndpointUsage:
        """What the replies have cost, those to earlier processes included."""
        spent = self._earlier + getattr(self._live, "spent", EndpointUsage())
        assert isinstance(spent, EndpointUsage)
        return spent

    def knows(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling) -> bool:
        """Whether the next reply to this, outside of episodes, has been paid for."""
        request = _digest(messages, (), sampling)
        return self._store.get(f"{request} {self._asked[request]}") is not None

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: Sampling
    ) -> Mapping[str, Any]:
        """See `ChatModel.complete`."""
        request = _digest(messages, tools, sampling)
        key = f"{request} {self._asked[request]}"
        self._asked[request] += 1
        kept = self._store.get(key)
        if kept is None:
            reply = dict(await self._live.complete(messages, tools, sampling))
            self._store.put(key, json.dumps(reply))
            self._store.put(_SPENT, json.dumps(asdict(self.spent)))
            return reply
        message: Mapping[str, Any] = json.loads(kept)
        return message


def _digest(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: Sampling
) -> str:
    """Names a request of the episode that is answered."""
    asked = [answering_episode.get(), list(messages), list(tools), asdict(sampling)]
    text = json.dumps(asked, sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
