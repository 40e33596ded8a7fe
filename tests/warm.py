"""`ajet` in processes of their own that start at once.

A cold start imports torch and transformers for seconds, which is most of what a small run takes. These processes are
forked from one that has imported them (multiprocessing's fork server); each is still a process of its own, to be
signalled and killed. tests/cli and a few tests elsewhere start the program cold.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.certificates import trust_one

IMPORTED = (
    "ajet.cli",
    "ajet.job.prepare",
    "ajet.runs.train",
    "ajet_local.backbone",
    "ajet_local.trainer",
    "peft",
)
_STARTS = multiprocessing.get_context("forkserver")
_STARTS.set_forkserver_preload([*IMPORTED, "transformers.models.qwen3.modeling_qwen3", __name__])


class Warm:
    """What `subprocess.Popen` is for a cold start; standard output and error are one text."""

    def __init__(self, *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
        self.arguments = arguments
        handle, output = tempfile.mkstemp(prefix="ajet-output-")
        os.close(handle)
        self._output = Path(output)
        self._process = _STARTS.Process(
            target=_run, args=(arguments, str(cwd), output, dict(environment or os.environ))
        )
        self._process.start()
        assert self._process.pid
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """As `returncode`."""
        return self.returncode

    def wait(self, seconds: float) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(seconds)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(list(self.arguments), seconds, self._output.read_text())
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        """All that it wrote, once it has ended. Raises subprocess.TimeoutExpired."""
        self.wait(timeout)
        return self._output.read_text(errors="replace"), None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _run(arguments: tuple[str, ...], folder: str, output: str, environment: Mapping[str, str]) -> None:
    """In the new process: what `python -m ajet` does."""
    written = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["ajet", *arguments]
    trust_one()
    gc.freeze()  # what is imported is no garbage
    from ajet.cli import main

    main()
