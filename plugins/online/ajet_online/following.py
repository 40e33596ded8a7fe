"""Lets an explorer follow the store: it loads the version to serve, and withdraws one that users rate lower."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ajet.capture.portal import Portal
from ajet.interfaces.engine import Engine
from ajet.runs.runtime import adapter_of
from ajet.types import AjetError, ConfigError
from ajet_online.rollback import worse
from ajet_online.settings import RollbackSettings
from ajet_online.switching import Loaded, SwitchingEngine
from ajet_online.versions import Version, Versions


def loaded(version: Version, build: Callable[[str], Engine]) -> Loaded:
    """The engine of a version, which is not started yet. Raises ConfigError if its checkpoint cannot be loaded."""
    engine = build(version.path)
    return Loaded(engine, version.number, adapter_of("policy", engine, named=False))


class Follower:
    """Checks the store every ``seconds``."""

    def __init__(
        self,
        versions: Versions,
        engine: SwitchingEngine,
        portal: Portal,
        build: Callable[[str], Engine],
        rollback: RollbackSettings,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._versions, self._engine, self._portal, self._build = versions, engine, portal, build
        self._rollback, self._seconds, self._say = rollback, seconds, say
        self._failed: int | None = None
        """The version that could not be loaded."""
        self._problem = ""
        """What was said last."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """A block during which the store is checked, in a thread."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(self._seconds):
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
            if self._rollback.enabled:
                self._withdraw_if_worse()
            serving = self._versions.serving()
            if serving and serving.number not in (self._engine.version, self._failed):
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
            self._failed = version.number
            self._say(
                f"version {version.number} cannot be served, so version {self._engine.version} goes on: "
                f"{type(error).__name__}: {error}"
            )
            return
        self._say(f"version {version.number} is served")

    def _withdraw_if_worse(self) -> None:
        published = self._versions.published()
        if len(published) < 2:
            return
        before, serving = published[-2:]
        found = self._versions.ratings([before.number, serving.number])
        if len(found) < 2 or min(rated.count for rated in found.values()) < self._rollback.ratings:
            return
        reason = worse(found[serving.number], found[before.number], self._rollback.error)
        if reason:
            self._versions.withdraw(before.number, reason)
            self._say(f"version {serving.number} is withdrawn: {reason}")
