"""The learner: a group of processes in which Trinity trains, started and ended by the run.

Trinity logs an exception of its trainer, saves the failed step, reports success and exits with 0. So nothing that it says of
itself counts: a step has succeeded when its report and its weights are there, and any end of the process before the run ends
it is a failure.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ajet import AjetError
from ajet_trinity.spool import Spool

POLL_SECONDS = 0.02
ENDING_SECONDS = 20.0
"""Maximum seconds for Ray to end its processes."""
CAUSE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*")
"""The last line of a traceback."""
PREFIX = re.compile(
    r"^(?:\x1b\[\d+m)?(?:\([^)]*pid=\d+[^)]*\)(?:\x1b\[0m)?\s*)?(?:(?:ERROR|WARNING|INFO) \S+ \S+ \[[^\]]*\] )?"
)
"""What Ray and Trinity write before a line of their logs."""
OF_MACHINES = (
    "ActorDied",
    "ActorUnavailable",
    "LocalRayletDied",
    "NodeDied",
    "OutOfMemory",
    "RayActorError",
    "WorkerCrashed",
)
"""Parts of the names of errors that say that a process or a machine has died."""


class LearnerFailed(AjetError):
    """Trinity did not complete a step. ``machine`` tells whether a process or machine died, so that resuming may help."""

    def __init__(self, text: str, *, machine: bool) -> None:
        super().__init__(text)
        self.machine = machine


class TrinityLearner:
    """Trinity with a configuration, in a spool's folder. ``environment`` is added to that of this process, and ``patience`` are
    the maximum seconds to wait for anything."""

    def __init__(
        self, spool: Spool, config: Mapping[str, Any], environment: Mapping[str, str], patience: float
    ) -> None:
        self.spool = spool
        self.config = config
        self.environment = environment
        self.patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._ray = ""

    @property
    def pid(self) -> int | None:
        """The process id of its first process, which is also that of its group."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it, and return at once. Does nothing if it has been started. Raises OSError."""
        if self._process is not None:
            return
        self.spool.config.write_text(yaml.safe_dump(dict(self.config), sort_keys=False), encoding="utf-8")
        # The paths of Ray's sockets have a maximum length of 107 bytes, so they are not in the run folder.
        self._ray = tempfile.mkdtemp(prefix="ajet-ray-")
        environment = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "TOKENIZERS_PARALLELISM": "false",
            **os.environ,
            **self.environment,
            "RAY_TMPDIR": self._ray,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with self.spool.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ajet_trinity.remote.launch", str(self.spool.config)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def wait_for(self, path: Path, what: str) -> None:
        """Start the learner if needed, and wait for a file of it. Raises LearnerFailed."""
        self.start()
        assert self._process is not None
        deadline = time.monotonic() + self.patience
        while not path.exists():
            if self._process.poll() is not None and not path.exists():
                raise self._ended(self._process.returncode, what)
            if time.monotonic() > deadline:
                raise LearnerFailed(
                    f"backbone trinity: {what} took more than {self.patience:g} s (backbone.trinity.patience). {self._log()}",
                    machine=True,
                )
            time.sleep(POLL_SECONDS)

    def _ended(self, status: int, what: str) -> LearnerFailed:
        cause = self.cause()
        if status < 0:
            ending = f"its process was ended by {signal.Signals(-status).name}"
            return LearnerFailed(f"backbone trinity: {ending} during {what}. {self._log()}", machine=True)
        return LearnerFailed(
            f"backbone trinity: {what} failed: {cause or f'the learner exited with {status}'}. {self._log()}",
            machine=any(name in cause for name in OF_MACHINES),
        )

    def cause(self) -> str:
        """The last line of the last traceback that Trinity has logged; "" if there is none."""
        trainer = self.spool.checkpoints / "log" / "trainer.log"
        for log in (trainer, self.spool.log):
            if error := last_error(log):
                return error
        return ""

    def _log(self) -> str:
        return f"See the end of {self.spool.log}."

    def close(self) -> None:
        """End all of its processes. Calling it twice is allowed."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # it then ends Ray and itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)
        # Ray gives each worker a process group of its own, and a worker outlives a killed raylet for a while.
        for one in (process.pid, *session(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.wait()
        shutil.rmtree(self._ray, ignore_errors=True)


def session(number: int) -> list[int]:
    """The ids of the processes of a session."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(entry.name)) == number:
                processes.append(int(entry.name))
    return processes


def last_error(log: Path) -> str:
    """The first line of the last exception in a log, without its final full stop."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    plain = (PREFIX.sub("", line).strip() for line in reversed(lines))
    return next((line.rstrip(".") for line in plain if CAUSE.match(line)), "")
