"""`ajet serve`: the gateway over an engine, without episodes and without training."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.capture.answers import Answerer
from ajet.capture.gateway.server import Gateway
from ajet.capture.gateway.stopping import stopped
from ajet.capture.portal import Portal
from ajet.capture.process.garbage import rare_full_collections
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Session
from ajet.capture.targets import Target
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.interfaces.engine import Engine, EnginePlugin
from ajet.interfaces.progress import Progress
from ajet.interfaces.wire import Wire
from ajet.job.arguments import SET
from ajet.plugins import load_plugins, validated
from ajet.rollout.settings import RolloutSettings
from ajet.runs.runtime import adapter_of, chat_of, preferred_engine
from ajet.types import ConfigError

DEFAULT = RolloutSettings()
MOST_CALLS = 1_000
MOST_TOKENS = 4_000_000
"""What one session is asked for and keeps at most; then the next one begins, and renders conversations anew."""


@dataclass(slots=True)
class ServedSession(Session):
    """A session that no episode ends. One that is full is left to the calls that it is answering."""

    asked: int = 0
    """How many requests it was found for: of those that fail, or whose client goes away, the messages are kept too."""
    _tokens: int = 0
    _counted: int = 0
    """How many of the recorded calls ``_tokens`` are of."""

    @property
    def tokens(self) -> int:
        """Tokens that it keeps; those that several calls share count for each."""
        calls, engine = self.record.calls, self.answerer.engine
        self._tokens += sum(call.end.length for call in calls[self._counted :])
        self._counted = len(calls)
        # Of a chat that was refused the messages are kept too.
        refused = self.counters["context_overflow"] * (engine.context_length if engine else 0)
        return self._tokens + refused

    @property
    def is_full(self) -> bool:
        """Whether it keeps as much as it may."""
        return self.asked >= MOST_CALLS or self.tokens >= MOST_TOKENS


@dataclass(slots=True)
class Sessions:
    """One session at a time behind one key."""

    key: str
    answerer: Answerer
    _current: ServedSession | None = None
    _count: int = 0

    def find(self, key: str) -> Session | None:
        """The session to answer with, if the key is right."""
        if not hmac.compare_digest(key.encode(errors="replace"), self.key.encode()):
            return None
        if self._current is None or self._current.is_full:
            self._count += 1
            name = f"serve-{self._count}"
            self._current = ServedSession(name, secrets.token_hex(8), self.answerer, key=self.key)
        self._current.asked += 1
        return self._current


@dataclass(frozen=True, slots=True)
class Served:
    """What a server answers from, and under which name."""

    engine: Engine
    model: str
    """Folder, Hugging Face id or recipe."""
    name: str


def served(
    checkpoint: str, engine: str, settings: Mapping[str, Any], seed: int, progress: Progress
) -> Served:
    """A checkpoint behind an engine (``auto``: the preferred one), which is not started yet. Raises ConfigError."""
    path = Path(checkpoint).expanduser()
    model = str(path.resolve()) if path.exists() else checkpoint
    plugins = load_plugins()
    name = preferred_engine(plugins, model) if engine == "auto" else engine
    plugin = validated(plugins.get(EnginePlugin, name, "engine="), settings, SET)
    return Served(plugin.build(model, seed, progress), model, path.name or checkpoint)


def checked_key(key: str | None) -> str:
    """The key that clients must send, a new one where none is given. Raises ConfigError."""
    if key is not None and not (key.isascii() and key.isprintable() and key.strip()):
        raise ConfigError("key=", "use printable ASCII, because clients send it in an HTTP header.")
    return key or f"ajet-{secrets.token_urlsafe(24)}"


@contextlib.contextmanager
def serving(
    engine: Engine,
    *,
    models: Sequence[str],
    key: str,
    host: str,
    port: int,
    most_calls: int,
    policy: SamplingPolicy,
    wires: Sequence[Wire] = BUILTIN_WIRES,
    settings: RolloutSettings = DEFAULT,
) -> Iterator[tuple[str, Gateway]]:
    """A block in which calls are answered, on the engine's own loop: the URL without ``/v1``, and the gateway. ``settings`` are
    those of `answering`."""
    with answering(engine, policy, settings) as (portal, answerer):
        sessions = Sessions(key, answerer)
        gateway = Gateway(
            portal, sessions.find, wires, models=models, host=host, port=port, most_calls=most_calls
        )
        try:
            with rare_full_collections():
                yield gateway.start(), gateway
        finally:
            gateway.close()


@contextlib.contextmanager
def answering(
    engine: Engine, policy: SamplingPolicy, settings: RolloutSettings = DEFAULT
) -> Iterator[tuple[Portal, Answerer]]:
    """A block in which an engine is started on a loop of its own; what answers calls there. Of ``settings`` the context, the
    chat template and how calls are read apply. Raises ConfigError if the model does not have them."""
    portal = Portal()
    try:
        portal.submit(engine.start()).result()
        target = Target("policy", adapter=adapter_of("policy", engine, named=False))
        chat = chat_of(engine, settings)
        yield portal, Answerer(engine, chat, (target,), policy, limit=settings.context_length)
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            portal.submit(engine.close()).result()
        portal.close()


def serve(
    engine: Engine,
    *,
    models: Sequence[str],
    key: str,
    host: str,
    port: int,
    most_calls: int,
    policy: SamplingPolicy,
    ready: Callable[[str], None],
    settings: RolloutSettings = DEFAULT,
) -> int:
    """Answer calls until Ctrl-C or SIGTERM, which end the process within seconds; how many were answered.
    ``ready`` is told the URL."""
    with (
        serving(
            engine,
            models=models,
            key=key,
            host=host,
            port=port,
            most_calls=most_calls,
            policy=policy,
            settings=settings,
        ) as (url, gateway),
        stopped() as stop,
    ):
        ready(url)
        while not stop.wait(1.0):
            pass
    return gateway.meter.calls.total()
