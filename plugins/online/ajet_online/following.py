"""Lets an explorer follow the store: it loads the version to serve, and withdraws one that users rate lower."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ajet import AjetError, ConfigError
from ajet.capture.portal import Portal
from ajet.interfaces.engine import Engine
from ajet.rollout.checkpoints import fault
from ajet.runs.runtime import adapter_of
from ajet_online.metrics import Metric, store_metrics
from ajet_online.rollback import RECENT, worse
from ajet_online.schema import Stage
from ajet_online.settings import OnlineSettings
from ajet_online.store import TraceStore
from ajet_online.switching import Loaded, SwitchingEngine
from ajet_online.versions import Version, Versions

RETRY_SECONDS = 60.0
"""After these, a version that could not be loaded is tried again: memory was short, or a shared folder shows its files late. The
trainer waits for its ratings."""


def loaded(version: Version, build: Callable[[str], Engine]) -> Loaded:
    """The engine of a version, which is not started yet. Raises ConfigError if its checkpoint cannot be loaded."""
    engine = build(version.path)
    return Loaded(engine, version.number, adapter_of("policy", engine, named=False))


def newest_loaded(versions: Versions, build: Callable[[str], Engine]) -> Loaded:
    """The engine of the version to serve or, if its checkpoint cannot be loaded, of the newest one before it that can; the
    `Follower` tells why. Raises ConfigError if version 0 cannot be loaded either."""
    for version in reversed(versions.published()):
        try:
            if version.number and (why := fault(Path(version.path))):
                raise ConfigError(f"checkpoint {version.path}: {why}")
            return loaded(version, build)
        except Exception:  # whatever an engine raises
            if version.number == 0:
                raise
    raise AssertionError("version 0 is always published")


class Follower:
    """Checks the store every ``settings.poll`` seconds."""

    def __init__(
        self,
        store: TraceStore,
        engine: SwitchingEngine,
        portal: Portal,
        build: Callable[[str], Engine],
        settings: OnlineSettings,
        say: Callable[[str], None],
    ) -> None:
        self._store, self._versions = store, Versions(store)
        self._engine, self._portal, self._build = engine, portal, build
        self._settings, self._say = settings, say
        self.metrics: Sequence[Metric] = ()
        """Of the store, when it was last looked at."""
        self._failed: tuple[int | None, float] = None, 0.0
        """The version that could not be loaded, and when it is tried again, on the monotonic clock."""
        self._problem = ""
        """What was said last."""
        self._compared = (0, 0)
        """The version that was compared last, and how many of its replies were rated then."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """A block during which the store is checked, in a thread."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(self._settings.poll):
                self.check()

        thread = threading.Thread(target=run, name="ajet-follower", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def check(self) -> None:
        """Withdraw the version that is served if users rate it lower, and load the version to serve. Problems are told, once;
        the explorer goes on with what it has."""
        try:
            known = self._versions.all()
            self.metrics = store_metrics(self._store, known)
            if self._settings.rollback.enabled:
                self._withdraw_if_worse(known)
            serving = self._versions.serving()
            failed, again = self._failed
            waits = serving and serving.number == failed and time.monotonic() < again
            if serving and serving.number != self._engine.version and not waits:
                self._load(serving)
            self._problem = ""
        except AjetError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._say(str(error))

    def _load(self, version: Version) -> None:
        try:
            new = loaded(version, self._build)
            if new.engine.tokenizer.get_vocab() != self._engine.tokenizer.get_vocab():
                raise ConfigError(f"{version.path} has another vocabulary")
            self._portal.submit(self._engine.switch(new)).result()
        except Exception as error:  # whatever an engine raises: the version before it still answers
            if self._failed[0] != version.number:
                self._say(
                    f"version {version.number} cannot be served, so version {self._engine.version} goes on: "
                    f"{type(error).__name__}: {error}"
                )
            self._failed = version.number, time.monotonic() + RETRY_SECONDS
            return
        self._say(f"version {version.number} is served")

    def _withdraw_if_worse(self, known: Sequence[Version]) -> None:
        published = [version for version in known if version.stage == Stage.PUBLISHED]
        if len(published) < 2:
            return
        *before, serving = compared = published[:1] + published[1:][-RECENT - 1 :]
        # A version that is served again was compared when it was new. If users rate all versions lower for a while, only the
        # newest is withdrawn, not one after the other.
        if any(version.stage == Stage.WITHDRAWN and version.number > serving.number for version in known):
            return
        count = self._versions.rated(serving.number)
        number, seen = self._compared
        if number == serving.number and count < seen + max(seen // 100, 1):
            return
        votes = self._versions.votes(
            [version.number for version in compared], self._settings.rewards
        ).values()
        rewards, keys = [rewards for rewards, _ in votes], [keys for _, keys in votes]
        loss = worse(rewards, self._settings.rollback, self._settings.rewards, keys)
        if loss:
            kept = [one for one in before[: loss.to + 1] if one.number == 0 or Path(one.path).exists()]
            self._versions.withdraw(kept[-1].number, loss.text)
            self._say(
                f"version {serving.number} is withdrawn, back to version {kept[-1].number}: {loss.text}"
            )
        self._compared = serving.number, count
