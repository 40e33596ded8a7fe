"""Supervises a job's services: reuses healthy ones, starts others, watches them; the last job that uses one stops it.

Jobs on one machine coordinate through two locks in a private folder, named after the service's address. ``.turn`` is
held while a job joins or leaves. ``.users`` is shared by all jobs that use the service and contains the started
process, so the last job to leave stops it, even after a run that was killed. A service that no job started is in no
such file and is never stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet.interfaces.service import Service
from ajet.job.config import Layers
from ajet.job.parts import build_service
from ajet.types import AjetError, ConfigError
from ajet.utils.asyncrun import interrupt_main_thread
from ajet.utils.process_group import process_begun, signal_group
from ajet.utils.terminal import tell

LOOK = 0.2
"""Seconds between health checks of a service."""
HEED = 2.0
"""Seconds that a job has to end after a service has died, before it is interrupted again, then killed."""
_GONE_AFTER = 5
"""Failed health checks in a row before an external service counts as dead."""
_LAST_THREADS_SECONDS = 1.0
"""Maximum seconds that the threads of a dead process take to end."""
_TAIL_LINES = 20


class ServiceFailed(AjetError):
    """A service could not be started, or died while a job used it."""


@contextmanager
def with_services(
    layers: Layers, names: Iterable[str] | None = None, say: Callable[[str], None] = tell
) -> Iterator[None]:
    """A block in which the services of ``run.services`` and ``names`` are running; ``say`` is told of their states.

    Enter it in the main thread: if a service dies, the block is interrupted as by Ctrl-C. Raises ConfigError for a
    service that is not declared, ServiceFailed with the end of its log for one that does not start or dies.
    """
    own = layers.job().run.services
    wanted = list(dict.fromkeys([*own, *(names or ())]))
    if not wanted:
        yield
        return
    if set(wanted) - set(own):  # a resumed run needs them as well
        layers.set("run.services", wanted, "services=", Path.cwd())
    services = {name: build_service(layers, name) for name in wanted}
    with contextlib.ExitStack() as stack:
        joined = [stack.enter_context(_joined(name, service, say)) for name, service in services.items()]
        with _Watch(joined, say):
            yield


class _Used:
    """A service that this job uses."""

    def __init__(self, name: str, service: Service, say: Callable[[str], None]) -> None:
        self.name = name
        self.service = service
        self.say = say
        folder = _private_folder()
        stem = hashlib.sha256(service.address.encode()).hexdigest()[:16]
        self.log = folder / f"{stem}.log"
        self._turn, self._users = folder / f"{stem}.turn", folder / f"{stem}.users"
        self._held: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started: Mapping[str, Any] | None = None
        """The process that a job started: its id (also that of its group), and its start time."""
        self._gone = 0

    def join(self) -> None:
        """Use the service; start it if necessary."""
        with self._in_turn():
            self._started = self._recorded()
            if self._healthy():
                whose = "another run's" if self._started else "not ours, so it is left alone"
                self.say(f"service {self.name}: healthy at {self.service.address} ({whose})")
            else:
                self._make_way()
                self._start()
            self._held = self._users.open("a+b")
            _lock(self._held, exclusive=False)

    def leave(self) -> None:
        """Stop using the service. Stops the process if a job started it and no other job uses it."""
        with self._in_turn():
            self._held.close()
            with self._users.open("a+b") as users:
                if self._started is None:
                    return
                if not _lock(users, exclusive=True):
                    self.say(f"service {self.name}: left to another run that uses it")
                    return
                self._stop()
                users.truncate(0)

    def cause_of_death(self) -> str | None:
        """How the service ended, None while it is running."""
        if self._process is not None:
            code = exit_code(self._process)
            return None if code is None else f"ended with {_exit(code)}"
        if self._started is not None:
            return None if process_begun(self._started["pid"]) == self._started["begun"] else "ended"
        self._gone = 0 if self._healthy() else self._gone + 1
        return f"is gone from {self.service.address}" if self._gone >= _GONE_AFTER else None

    def failed(self, what: str) -> ServiceFailed:
        """Print the end of the log and return the error that says what happened."""
        lines = self._tail()
        if not lines or (self._process is None and self._started is None):
            return ServiceFailed(f"service {self.name} {what}; it has no log because no job started it.")
        self.say("\n".join([f"service {self.name}: the end of its log:", *(f"    {line}" for line in lines)]))
        return ServiceFailed(f"service {self.name} {what}: {lines[-1][:300]}  (full log: {self.log})")

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """A block that only one process at a time can enter. Raises AjetError after waiting too long."""
        from filelock import FileLock, Timeout

        seconds = self.service.start_timeout + self.service.stop_timeout
        try:
            with FileLock(self._turn, timeout=seconds, poll_interval=LOOK / 2):
                yield
        except Timeout:
            raise AjetError(
                f"{self._turn}: another run has been starting or stopping this service for {seconds:g} s."
            ) from None

    def _healthy(self) -> bool:
        try:
            return self.service.healthy()
        except TimeoutError:  # timed out: up but busy
            return True

    def _make_way(self) -> None:
        """Stop an unhealthy process that a killed run left behind."""
        if self._started is None:
            return
        with self._users.open("a+b") as users:
            if not _lock(users, exclusive=True):
                pid = self._started["pid"]
                raise ServiceFailed(
                    f"service {self.name}: another run uses it (process {pid}), but it is not healthy at "
                    f"{self.service.address}. Wait for that run, or end it."
                )
            self._stop()

    def _start(self) -> None:
        service, argv = self.service, self.service.argv()
        for name in service.secrets:
            value = os.environ.get(name)
            if not value:
                raise ConfigError(
                    f"services.{self.name}.secrets", f"the environment variable {name} is not set."
                )
            if any(value in word for word in argv):
                raise ConfigError(
                    f"services.{self.name}.command",
                    f"contains the value of {name}, and all users of the machine can read "
                    "commands. Let the service read it from its environment.",
                )
        if self.log.exists():
            self.log.unlink()
        with open(self.log, "xb", opener=_for_us_alone) as log:
            try:
                self._process = subprocess.Popen(
                    argv,
                    cwd=service.workdir,
                    env={**os.environ, **service.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                reason = f"{argv[0]}: {error.strerror or error}"
                raise ConfigError(
                    f"services.{self.name}.command", f"cannot be started in {service.workdir}: {reason}."
                ) from None
        pid = self._process.pid
        self._started = {"pid": pid, "begun": process_begun(pid), "command": shlex.join(argv)}
        self._users.write_text(json.dumps(self._started))
        self.say(f"service {self.name}: starting {shlex.join(argv)} (process {pid}, log {self.log})")
        try:
            self._until_healthy()
        except BaseException:
            self._stop()
            self._users.write_text("")
            raise

    def _until_healthy(self) -> None:
        began = time.monotonic()
        while True:
            if cause := self.cause_of_death():
                raise self.failed(f"{cause} before it was healthy")
            try:
                if self.service.healthy():
                    break
            except TimeoutError:
                pass
            if time.monotonic() - began > self.service.start_timeout:
                raise self.failed(
                    f"was not healthy at {self.service.address} within {self.service.start_timeout:g} s"
                )
            time.sleep(LOOK / 2)
        self.say(f"service {self.name}: healthy after {time.monotonic() - began:.1f} s")

    def _stop(self) -> None:
        """End the process group that was started: terminate it, then kill what is left."""
        assert self._started is not None
        pid, begun = self._started["pid"], self._started["begun"]
        if self._process is None and process_begun(pid) != begun:
            return  # it has ended, and its id may be another process's
        deadline = time.monotonic() + self.service.stop_timeout
        try:
            signal_group(pid, signal.SIGTERM)
            while time.monotonic() < deadline and self._lives(pid, begun):
                time.sleep(0.02)
        finally:
            signal_group(pid, signal.SIGKILL)
            if self._process is not None:
                self._process.wait()
        self.say(f"service {self.name}: stopped")

    def _lives(self, pid: int, begun: str) -> bool:
        return self._process.poll() is None if self._process is not None else process_begun(pid) == begun

    def _recorded(self) -> Mapping[str, Any] | None:
        """The process that a job started, if it is still running."""
        try:
            process: Mapping[str, Any] = json.loads(self._users.read_text())
            return process if process_begun(process["pid"]) == process["begun"] else None
        except (OSError, ValueError, LookupError):
            return None

    def _tail(self) -> list[str]:
        try:
            text = self.log.read_bytes()[-20_000:].decode(errors="replace")
        except OSError:
            return []
        for name in self.service.secrets:
            text = text.replace(os.environ.get(name) or "\0", "***")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-_TAIL_LINES:]


@contextmanager
def _joined(name: str, service: Service, say: Callable[[str], None]) -> Iterator[_Used]:
    used = _Used(name, service, say)
    used.join()
    try:
        yield used
    finally:
        used.leave()


class _Watch:
    """A block that is interrupted when one of its services ends."""

    def __init__(self, used: Iterable[_Used], say: Callable[[str], None]) -> None:
        self._used = list(used)
        self._say = say
        self._ended = threading.Event()
        self._died: ServiceFailed | None = None
        self._thread = threading.Thread(target=self._look, name="ajet-services", daemon=True)
        self._ignored = False

    def __enter__(self) -> None:
        # A shell's background jobs ignore Ctrl-C, which is how the block is interrupted.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            self._ignored = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            while not self._ended.is_set() or self._thread.is_alive():
                try:
                    self._ended.set()
                    self._thread.join()
                except KeyboardInterrupt:  # sent while the block was already ending
                    if self._died is None:
                        raise
        finally:
            if self._ignored:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        if kind is not None and self._died is None:
            self._died = self._dead()  # the job may have noticed first
        if self._died is not None:
            raise self._died from None

    def _look(self) -> None:
        while not self._ended.wait(LOOK):
            self._died = self._dead()
            if self._died is not None:
                self._interrupt()
                return

    def _dead(self) -> ServiceFailed | None:
        for used in self._used:
            if cause := used.cause_of_death():
                return used.failed(f"{cause} while the job ran")
        return None

    def _interrupt(self) -> None:
        """Interrupt the block as by Ctrl-C; if it does not end, end the process: a job must not wait forever for a dead
        service."""
        if interrupt_main_thread(self._ended, (HEED, HEED, HEED)):
            return
        print(f"error: {self._died}", file=sys.stderr, flush=True)
        for used in self._used:
            with contextlib.suppress(Exception):
                used.leave()
        os._exit(1)


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a process that has ended, None while it is running.

    After a kill the process is a zombie until its last threads have ended; only then can it be waited for. This
    function briefly waits for that, so that a dead process also has its exit code.
    """
    code = process.poll()
    if code is None and _is_zombie(process.pid):
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_LAST_THREADS_SECONDS)
    return code


def _is_zombie(pid: int) -> bool:
    """Whether /proc calls the process a zombie; False on systems without /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return False


def _private_folder() -> Path:
    """The folder of this user's services on this machine. Raises AjetError if it is another user's."""
    folder = Path(tempfile.gettempdir()) / f"ajet-services-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise AjetError(f"{folder}: belongs to another user. Set TMPDIR to a folder of your own.")
    return folder


def _lock(file: Any, *, exclusive: bool) -> bool:
    """Take a lock that closing the file releases; False if another process holds it."""
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _exit(code: int) -> str:
    return f"exit {code}" if code >= 0 else f"signal {-code}"


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
