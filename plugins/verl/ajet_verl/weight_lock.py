"""Two runs on one machine send weights to their inference servers one after the other.

verl sends them through a socket in /tmp whose name consists of Ray's job id and ranks. Each new local Ray cluster counts its jobs
from one, so two runs on one machine use the same name: if both send at the same moment, a server connects to the trainer of the
other run, and both wait forever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray

from ajet_verl.recorder import recorder_of

FOLDER = Path("/tmp")
"""Where verl creates its sockets."""
PAUSE = 0.05
"""Seconds between two attempts to lock the file."""
SAID_AFTER = 30.0
"""Seconds after which a waiting run says so."""


class WeightLock:
    """A mixin before a trainer of verl. verl sends weights to all servers in these two methods."""

    config: Any

    def on_init_end(self) -> None:
        """See verl's trainer."""
        with self._alone():
            super().on_init_end()  # type: ignore[misc]

    def on_step_end(self) -> None:
        """See verl's trainer."""
        with self._alone():
            super().on_step_end()  # type: ignore[misc]

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        job = ray.get_runtime_context().get_job_id()
        return alone(FOLDER / f"ajet-verl-weights-{job}.lock", recorder_of(self.config).say.remote)


@contextlib.contextmanager
def alone(file: Path, say: Callable[[str], object]) -> Iterator[None]:
    """A block that only one process of this machine enters at a time, for each ``file``. It is free again when its process ends.
    ``say`` is told if that takes long."""
    descriptor = _opened(file)
    try:
        said, start = False, time.monotonic()
        while not _locked(descriptor):
            if not said and time.monotonic() - start > SAID_AFTER:
                said = True
                say(
                    "another run on this machine is sending weights to its inference servers; this run waits for it"
                )
            time.sleep(PAUSE)
        yield
    finally:
        os.close(descriptor)


def _opened(file: Path) -> int:
    """A descriptor to lock. In /tmp, Linux forbids to open another user's file for creation, but not to read it."""
    try:
        return os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        with contextlib.suppress(PermissionError):  # another user was faster
            return os.open(file, os.O_RDONLY | os.O_CREAT, 0o644)
        return os.open(file, os.O_RDONLY)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
