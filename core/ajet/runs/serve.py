"""`ajet serve`: the gateway over an engine, without episodes and without training."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ajet.capture.process.garbage import rare_full_collections
from ajet.capture.gateway.server import Gateway
from ajet.capture.portal import Portal
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Answerer, Session
from ajet.capture.gateway.stopping import stopped
from ajet.capture.targets import Target
from ajet.capture.wires import Wire
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.chat.renderer import Chat
from ajet.interfaces.engine import Engine
from ajet.runs.runtime import adapter_of

MOST_CALLS = 1_000
MOST_TOKENS = 4_000_000
"""What one session is asked for and keeps at most; then the next one begins, and conversations are rendered anew."""


@dataclass(slots=True)
class Sessions:
    """One session at a time behind one key. A full one is left to the calls that it is answering."""

    key: str
    answerer: Answerer
    _current: Session | None = None
    _count: int = 0
    _tokens: int = field(default=0)
    _seen: int = 0
    _asked: int = 0

    def find(self, key: str) -> Session | None:
        """The session to answer with, if the key is right."""
        if not hmac.compare_digest(key.encode(errors="replace"), self.key.encode()):
            return None
        if self._current is None or self._is_full(self._current):
            self._count += 1
            self._tokens = self._seen = self._asked = 0
            self._current = Session(f"serve-{self._count}", secrets.token_hex(8), self.answerer, key=self.key)
        self._asked += 1
        return self._current

    def _is_full(self, session: Session) -> bool:
        calls, engine = session.record.calls, self.answerer.engine
        self._tokens += sum(c.end.length for c in calls[self._seen :])
        self._seen = len(calls)
        # Of a chat that was refused the messages are kept too.
        refused = session.counters["context_overflow"] * (engine.context_length if engine else 0)
        return self._asked >= MOST_CALLS or self._tokens + refused >= MOST_TOKENS


def serve(
    engine: Engine,
    *,
    models: Sequence[str],
    key: str,
    host: str,
    port: int,
    most_calls: int,
    policy: SamplingPolicy,
    wires: Sequence[Wire] = BUILTIN_WIRES,
    ready: Callable[[str], None],
) -> int:
    """Answer calls until Ctrl-C or SIGTERM, which end the process within seconds; how many were answered.
    ``ready`` is told the URL."""
    portal = Portal()
    try:
        portal.submit(engine.start()).result()
        target = Target("policy", adapter=adapter_of("policy", engine, named=False))
        answerer = Answerer(engine, Chat(engine.tokenizer, engine.model_type), (target,), policy)
        sessions = Sessions(key, answerer)
        gateway = Gateway(
            portal, sessions.find, wires, models=models, host=host, port=port, most_calls=most_calls
        )
        try:
            with rare_full_collections(), stopped() as stop:
                ready(gateway.start())
                while not stop.wait(1.0):
                    pass
        finally:
            gateway.close()
        return gateway.meter.calls.total()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            portal.submit(engine.close()).result()
        portal.close()
