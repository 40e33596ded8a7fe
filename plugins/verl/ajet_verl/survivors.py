"""The inference servers, as the process of verl's trainer sees them: if one dies or hangs, its calls go to the other servers, and
the step is not lost.

While episodes run, servers are asked whether they answer; one that hangs is ended. A dead server is taken out of verl's list.
With servers of their own (`separate_async`), the run goes on without it. A server that shares its GPUs with the trainer
belongs to ranks that cannot be left out of the next update of the servers: so the step is trained and saved, and then the run
ends with an error, after which `run.restarts` resumes it.

If a server dies while verl waits for it, the run ends: vLLM never answers a call of the trainer whose engine has been killed, so
verl would wait forever.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psutil
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from ajet import AjetError
from ajet.interfaces.backbone import Metrics
from ajet_verl.recorder import recorder_of

SERVER = re.compile(r"\w*server_\w+")
"""Names of verl's actors that are inference servers."""
LOOK = 5.0
"""Seconds between two looks at the servers."""
ASK = 10.0
"""Seconds between two rounds of questions."""
ANSWER, FIRST_ANSWER = 40.0, 300.0
"""Seconds for an answer, and for one while the servers sample for the first time, when they may compile a kernel. vLLM answers
between two steps of its engine, even if its queue is full."""
OWN_WEIGHTS = "naive"
"""verl's name of the way in which ranks send their weights to the server on their own GPUs."""
CLOSING = 30.0
"""Maximum seconds for servers to end."""


def servers() -> dict[str, Any]:
    """The inference servers of this job that are alive, by the names of their actors."""
    return {name: ray.get_actor(name) for name in filter(SERVER.fullmatch, ray.util.list_named_actors())}


@contextlib.contextmanager
def watched_servers(fail: Callable[[str], object]) -> Iterator[None]:
    """A block in which verl calls all servers. If one of them dies, ``fail`` is called in another thread, once, with its name
    and the cause."""
    watched, ended = servers(), threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK):
            for name, server in watched.items():
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


class Survivors:
    """A mixin before a trainer of verl."""

    config: Any
    global_steps: int
    checkpoint_manager: Any

    def _setup(self) -> None:
        self._asking = ExitStack()
        self._lost = ""
        """Why the run ends after this step; "" if it goes on."""
        self._patience = FIRST_ANSWER
        super()._setup()  # type: ignore[misc]

    def on_sample_begin(self) -> None:
        """See verl's trainer."""
        super().on_sample_begin()  # type: ignore[misc]
        self._asking.enter_context(hanging_ended(recorder_of(self.config).say.remote, self._patience))

    def on_sample_end(self) -> None:
        """See verl's trainer."""
        self._asking.close()
        self._patience = ANSWER
        self._remove_dead()
        with self._watched():
            super().on_sample_end()  # type: ignore[misc]

    def on_validate_begin(self) -> None:
        """See verl's trainer."""
        super().on_validate_begin()  # type: ignore[misc]
        self._asking.enter_context(hanging_ended(recorder_of(self.config).say.remote, self._patience))

    def on_validate_end(self) -> None:
        """See verl's trainer."""
        self._asking.close()
        super().on_validate_end()  # type: ignore[misc]

    def on_step_end(self) -> None:
        """See verl's trainer."""
        self._remove_dead()
        if self._lost:
            if not self._saved(self.global_steps).exists():  # type: ignore[attr-defined]
                self._save_checkpoint()  # type: ignore[attr-defined]
            return
        with self._watched():
            super().on_step_end()  # type: ignore[misc]

    def _validate(self) -> dict[str, Any]:
        if self._lost:  # the servers have the weights of the step before
            return {}
        metrics: dict[str, Any] = super()._validate()  # type: ignore[misc]
        return metrics

    def _compute_metrics(
        self, batch: Any, metrics: Metrics, timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)  # type: ignore[misc]
        if self._lost:
            ray.get(recorder_of(self.config).fail.remote(self._lost))
            raise AjetError(self._lost)

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        return watched_servers(recorder_of(self.config).fail.remote)

    def _remove_dead(self) -> None:
        """Take dead servers out of verl's lists, if others are left."""
        # Only separate_async has the other one: that of the servers which sample.
        for manager in (getattr(self, "standalone_checkpoint_manager", None), self.checkpoint_manager):
            if manager is not None:
                self._remove_dead_of(manager)

    def _remove_dead_of(self, manager: Any) -> None:
        dead = causes(manager.replicas)
        if len(dead) in (0, len(manager.replicas)):  # if all are dead, the next call of them ends the run
            return
        manager.remove_replicas(list(dead))
        named = "; ".join(f"{replica.server_address}: {cause}" for replica, cause in dead.items())
        count = f"{len(dead)} of {len(dead) + len(manager.replicas)} inference servers died ({named})"
        say = recorder_of(self.config).say.remote
        if manager.backend != OWN_WEIGHTS:
            say(f"{count}; the run goes on with the others")
            return
        self._lost = self._lost or f"{count}. Step {self.global_steps} is trained and saved"
        say(f"{count}; step {self.global_steps} will be trained and saved, then the run ends")


def causes(replicas: Sequence[Any]) -> dict[Any, str]:
    """The dead among verl's replicas of its server, and why."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        reasons = pool.map(lambda replica: next(filter(None, map(why_dead, replica.servers)), ""), replicas)
        return {replica: cause for replica, cause in zip(replicas, reasons, strict=True) if cause}


@contextlib.contextmanager
def hanging_ended(say: Callable[[str], object], patience: float) -> Iterator[None]:
    """A block in which servers sample. One that does not answer for ``patience`` seconds is ended, so that its calls fail and go
    to others; ``say`` is told which."""
    watched, over = servers(), threading.Event()

    def watch() -> None:
        while not over.wait(ASK):
            asked = {
                server.collective_rpc.remote(method="check_health"): name for name, server in watched.items()
            }
            _, silent = ray.wait(list(asked), num_returns=len(asked), timeout=patience)
            for name in [] if over.is_set() else [asked[ref] for ref in silent]:
                say(f"inference server {name} has not answered for {patience:.0f} s; it is ended")
                _end(watched.pop(name))

    threading.Thread(target=watch, name="ajet-hanging", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _end(server: Any) -> None:
    """End a server's engine; the whole server, if that hangs too."""
    try:
        ray.get(server.__ray_call__.remote(_end_engine), timeout=ANSWER)
    except RayError:
        ray.kill(server)


def _end_engine(server: Any) -> None:
    """In a server's process: end vLLM's engine processes."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def end_servers() -> None:
    """Make the inference servers end their engines. Otherwise Ray kills them with this process, and their shared memory
    remains."""
    ended = [server.__ray_call__.remote(_close_engine) for server in servers().values()]
    if ended:
        ray.wait(ended, num_returns=len(ended), timeout=CLOSING)


def _close_engine(server: Any) -> None:
    """In a server's process: end vLLM's processes and remove their shared memory."""
    from multiprocessing import resource_tracker

    engine = getattr(server, "engine", None)  # only on the first node of a server
    try:
        if engine is not None:
            engine.shutdown(timeout=CLOSING / 2)
    finally:
        tracker: Any = resource_tracker._resource_tracker
        tracker._stop()  # otherwise Ray kills it before it has removed anything
