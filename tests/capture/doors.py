"""The two doors to an episode: the hook in this process, and the gateway's socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

import ajet
from ajet.capture.process.install import install

from ..plugins.programs import CLOSED

Door = Literal["hook", "gateway"]
each_door = pytest.mark.parametrize("door", ["hook", "gateway"])
whole_and_streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@contextmanager
def behind(door: Door, bench: Any) -> Iterator[str]:
    """The base URL, up to ``/v1``, at which a door to a bench's episodes is."""
    if door == "hook":
        yield CLOSED
    else:
        with install(bench.capture, gateway=True) as found, ajet.passthrough():  # or the hook would answer
            yield f"{found.gateway.url}/v1"
