"""Reports progress that produces no other event, so that a long episode or update is not taken for a run that hangs."""

from __future__ import annotations

import contextlib
import time

import ray
from ray.exceptions import RayError

from ajet_verl.cluster import NAMESPACE

SECONDS = 10.0
"""Minimum seconds between two reports of a process."""


class Pulse:
    """Sent to each process that reports progress; the recorder is given by its name."""

    def __init__(self, recorder: str) -> None:
        self._recorder = recorder
        self._last = float("-inf")

    def beat(self) -> None:
        """Report progress; returns at once. Never raises: the recorder ends before some processes do."""
        now = time.monotonic()
        if now - self._last < SECONDS:
            return
        self._last = now
        with contextlib.suppress(RayError, ValueError):
            ray.get_actor(self._recorder, namespace=NAMESPACE).alive.remote()
