"""Ends the run if an inference server dies while verl waits for it: vLLM never answers a call of the trainer whose engine has
been killed, so verl would wait forever."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

SERVER = re.compile(r"\w*server_\w+")
"""Names of verl's actors that are inference servers."""
LOOK = 5.0
"""Seconds between two looks at the servers."""


def servers() -> dict[str, Any]:
    """The inference servers of this job that are alive, by the names of their actors."""
    return {name: ray.get_actor(name) for name in filter(SERVER.fullmatch, ray.util.list_named_actors())}


@contextlib.contextmanager
def watched_servers(fail: Callable[[str], object]) -> Iterator[None]:
    """A block in which verl calls all servers. If one of them dies, ``fail`` is called in another thread, once, with its name
    and the cause."""
    found, ended = servers(), threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK):
            for name, server in found.items():
                if cause := why_dead(server):
                    fail(f"inference server {name} died while the trainer waited for it: {cause}")
                    return

    threading.Thread(target=watch, name="ajet-servers", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def why_dead(server: Any) -> str:
    """Why a server cannot answer any more; empty if it can, or is too busy to say."""
    try:
        return str(ray.get(server.__ray_call__.remote(_engine_error), timeout=LOOK))
    except GetTimeoutError:
        return ""
    except RayActorError as error:
        return next((line.strip() for line in str(error).splitlines() if line.strip()), "it has ended")
    except RayError:
        return ""


def _engine_error(server: Any) -> str:
    """In a server's process: the error of vLLM's engine. Only the first node of a server has one."""
    engine = getattr(server, "engine", None)
    if engine is None or not engine.errored:
        return ""
    return f"{type(engine.dead_error).__name__}: its engine process has ended"
