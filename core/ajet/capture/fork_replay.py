"""What a fork replays: the answers that its parent got, for requests that equal its parent's.

An answer is given again only in the very context in which it was sampled: same target, tools, prompt ids, temperature and limits
of the answer. A request is looked for among all that are left, so parallel calls may come in another order.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from typing import Any

from ajet.capture.replies import Form, Replies, difference, request_of
from ajet.chat.renderer import Chat
from ajet.interfaces.wire import Refused
from ajet.tracker.call import Call, Exchange
from ajet.tracker.record import EpisodeRecord


class Diverged(Refused):
    """A fork does not do again what its parent did; the message says where."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="fork_diverged")


class ForkReplay:
    """The answers that a fork gets from its parent's ``record``: those of the first ``calls`` on its path, and what chat models
    of frozen targets answered before the last of them. With all of the parent's calls, any further request differs, too."""

    def __init__(self, record: EpisodeRecord, calls: int) -> None:
        self._is_whole = calls == len(record.calls)
        self.places = {call.number: place for place, call in enumerate(record.path[:calls])}
        """The places on the parent's path of the calls whose answers the fork gets, by number."""
        last = record.asked[-1].number if self._is_whole else max(self.places)
        self._left: dict[Hashable, list[Exchange]] = {}
        self._later: set[Hashable] = set()
        for exchange in record.asked:
            if exchange.number in self.places or (
                exchange.answer and not isinstance(exchange, Call) and exchange.number <= last
            ):
                self._left.setdefault(_identity(exchange), []).append(exchange)
            elif isinstance(exchange, Call) or exchange.answer:
                self._later.add(_identity(exchange))
        self._sampled: set[int] = set()
        """The numbers of the fork's own calls."""
        self.diverged: Future[Diverged] = Future()
        """What is different, once the fork does other things than its parent."""

    def take(self, asked: Exchange, chat: Chat | None) -> Exchange | None:
        """The parent's call with the same request, which is then used; None if the model is to answer it. Raises Diverged."""
        identity = _identity(asked)
        if left := self._left.get(identity):
            return left.pop(0)
        # An agent that calls in parallel may be beyond the fork in one conversation, and before it in another.
        goes_on = isinstance(asked, Call) and asked.parent in self._sampled
        if goes_on or identity in self._later or not (self._unused or self._is_whole):
            self._sampled.add(asked.number)
            return None
        if not self._unused:
            raise self._diverge(f"call {asked.number} is not recorded: it comes after the last call")
        raise self._diverge(
            f"call {asked.number} differs from its recording: {self._difference(asked, chat)}"
        )

    def end(self) -> Diverged | None:
        """What is different in an episode that has ended, if anything is."""
        if self.diverged.done():
            return self.diverged.result()
        if unused := self._unused:
            return self._diverge(f"it ended without call {min(e.number for e in unused)} of its recording")
        return None

    @property
    def _unused(self) -> list[Exchange]:
        return [exchange for left in self._left.values() for exchange in left]

    def _diverge(self, message: str) -> Diverged:
        error = Diverged(message)
        if not self.diverged.done():
            self.diverged.set_result(error)
        return error

    def _difference(self, asked: Exchange, chat: Chat | None) -> str:
        """How a request differs from the one that is most like it."""

        def request(exchange: Exchange) -> Any:
            messages = exchange.chat_end.chat() if exchange.chat_end else ()
            return request_of(Form(), messages, exchange.tools, exchange.text)

        left = self._unused
        replies = Replies((each.agent, request(each), each) for each in left)
        words, nearest = replies.nearest(asked.agent, request(asked))
        if words:
            return words
        if asked.target != nearest.target:
            return f"target {asked.target}, recorded {nearest.target}"
        if isinstance(asked, Call) and isinstance(nearest, Call) and chat:
            now, was = (chat.text(c.prompt.ids().tolist()) for c in (asked, nearest))
            if now != was:
                return f"the prompt is now {difference(now, was)}"
        return f"sampling {_limits(asked)}, recorded {_limits(nearest)}"


def _identity(exchange: Exchange) -> Hashable:
    """What must be equal for an answer to be another sample of the same distribution."""
    if isinstance(exchange, Call):
        return exchange.key, exchange.prompt.ids().tobytes(), exchange.temperature, *_limits(exchange)
    messages = exchange.chat_end.chat() if exchange.chat_end else []
    return exchange.key, json.dumps(messages, default=str), *_limits(exchange)


def _limits(exchange: Exchange) -> tuple[Any, ...]:
    sampling: Mapping[str, Any] = exchange.sampling
    return sampling.get("max_tokens"), tuple(sampling.get("stop") or ())
