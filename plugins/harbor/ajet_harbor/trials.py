"""Runs trials, and leaves nothing of them behind.

A trial's containers and networks bear its name, which is noted in a file before it starts. Where a trial is cancelled, Harbor may
remove them while the program that makes them still runs, so what bears the name is removed once more. If a process is killed,
the next one finds its file without a lock, and removes what bears the names in it, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from ajet_harbor.versions import harbor

run_dir: Path | None = None
"""The folder of the run that trains in this process."""

ENGINES = ("docker", "podman")
"""Environments whose sandboxes are containers of this machine; each is called as the program that makes them."""
SECONDS_TO_END = 120.0
"""Maximum time for what is cancelled at the end of a job: each trial stops its container."""
_SECONDS_TO_REMOVE = 30.0
"""Maximum time for programs that may still make a container after it was removed."""
_LOOK_SECONDS = 0.1
_MOST_NAMES = 1_000
"""Of trials, in one command: the system takes only so many arguments, and a long job has tens of thousands."""


class Trials:
    """The trials of a job, in sandboxes of one ``environment``. `end` cancels those that still run."""

    def __init__(self, environment: str) -> None:
        self._engine = environment if environment in ENGINES else ""
        self._running: dict[str, Future[Any]] = {}
        self._ending: dict[str, Future[None]] = {}
        """By name, what is done once nothing is left of a trial."""
        self._temporary: Path | None = None
        if self._engine:
            folder = Path(os.environ.get("AJET_CACHE") or "~/.cache/ajet").expanduser() / "harbor"
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)
            self._noted = folder / f"{secrets.token_hex(8)}.{self._engine}"
            # Released in another thread. It is locked before there is a file of names, which others look for.
            self._lock = FileLock(_lock_of(self._noted), thread_local=False)
            self._lock.acquire()

    def new_name(self, task: str) -> str:
        """A name for a trial of a task, noted for the removal of its containers."""
        readable = re.sub("[^a-z0-9]+", "-", task.lower())[-24:].strip("-")
        name = f"ajet-{readable}-{secrets.token_hex(4)}"
        if self._engine:
            with self._noted.open("a") as file:
                file.write(f"{name}\n")
        return name

    def folder(self) -> Path:
        """Where a job keeps its trials if it does not say: in the run folder, and without a run in a temporary folder."""
        if run_dir is not None:
            return run_dir / "trials"
        self._temporary = self._temporary or Path(tempfile.mkdtemp(prefix="ajet-trials-"))
        return self._temporary

    async def run(self, config: Any, ready: Callable[[Any], Awaitable[None]]) -> tuple[Any, Path]:
        """Run a trial with a name of `new_name`: its result and its folder. ``ready`` is awaited with the trial when its sandbox
        has started, before its agent does. If the caller is cancelled, the trial ends in its own time."""
        name = config.trial_name
        running = self._running[name] = submit(self._run(config, ready))
        running.add_done_callback(lambda _: self._running.pop(name, None))
        return await asyncio.wrap_future(running)

    def end(self) -> None:
        """Cancel the trials that run, and wait until nothing is left of them."""
        for running in list(self._running.values()):
            running.cancel()
        submit(asyncio.sleep(0)).result()  # what has just been submitted has then begun, or never will
        _, late = wait(list(self._ending.values()), timeout=SECONDS_TO_END)
        if self._engine:
            if late:
                remove(self._engine, list(self._ending))
            self._noted.unlink(missing_ok=True)
            self._lock.release()
            _lock_of(self._noted).unlink(missing_ok=True)

    async def _run(self, config: Any, ready: Callable[[Any], Awaitable[None]]) -> tuple[Any, Path]:
        name, clean = config.trial_name, False
        ended = self._ending[name] = Future[None]()
        try:
            trial = await harbor().Trial.create(config)

            async def before_agent(event: Any) -> None:
                await ready(trial)

            trial.add_hook(harbor().TrialEvent.AGENT_START, before_agent)
            result = await trial.run()
            clean = result.exception_info is None
            return result, trial.paths.trial_dir
        finally:  # most of all after a cancellation
            if self._engine and not clean:
                await asyncio.to_thread(remove, self._engine, [name])
            del self._ending[name]
            ended.set_result(None)


def remove_leftovers(folder: Path) -> None:
    """Remove what is left of trials of processes that were killed."""
    for engine in ENGINES:
        for noted in folder.glob(f"*.{engine}"):
            with suppress(Timeout, FileNotFoundError), FileLock(_lock_of(noted), timeout=0):
                if names := noted.read_text().split():
                    remove(engine, names)
                noted.unlink()
                _lock_of(noted).unlink()


def remove(engine: str, names: Sequence[str]) -> None:
    """Remove the containers, networks and volumes of trials, also those that programs which still run may make."""
    if not shutil.which(engine):
        return
    _remove_now(engine, names)
    deadline = time.monotonic() + _SECONDS_TO_REMOVE
    if _named_by_a_process(names):
        while _named_by_a_process(names) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        _remove_now(engine, names)


def _remove_now(engine: str, names: Sequence[str]) -> None:
    at_once = ("-t", "0") if engine == "podman" else ()  # docker kills anyway
    for listing, removal in (
        (("ps", "-a"), ("rm", "-f", "-v", *at_once)),
        (("network", "ls"), ("network", "rm")),
        (("volume", "ls"), ("volume", "rm", "-f")),
    ):
        for start in range(0, len(names), _MOST_NAMES):
            some = names[start : start + _MOST_NAMES]
            filters = [word for name in some for word in ("--filter", f"name={name}")]
            listed = subprocess.run([engine, *listing, "-q", *filters], capture_output=True, text=True)
            if ids := listed.stdout.split():
                subprocess.run([engine, *removal, *ids], capture_output=True)


def _named_by_a_process(names: Sequence[str]) -> bool:
    """Whether a program runs that bears a trial's name in its arguments, other than a container's own monitor. Only where there
    is /proc; elsewhere what such a program makes is removed later."""
    wanted = [name.encode() for name in names]
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = file.read_bytes()
            if not arguments.partition(b"\0")[0].endswith(b"conmon") and any(
                name in arguments for name in wanted
            ):
                return True
    return False


def _lock_of(noted: Path) -> Path:
    return noted.with_name(f"{noted.name}.lock")


# One event loop for all trials of a process. Harbor guards what trials share, such as the build of an image, with locks that
# belong to one event loop, but each run of AgentJet has a loop of its own. And a trial that is cancelled needs seconds to stop
# its container, while a cancelled workflow is abandoned after two: here it ends in its own time.

T = TypeVar("T")


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine in the trials' loop. Cancelling the future cancels it."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="harbor", daemon=True).start()
    return loop
