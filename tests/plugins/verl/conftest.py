"""Jobs of verl on this CPU, by the installed `ajet` program, in folders of their own; nothing may be left of them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.patience import PATIENCE

if importlib.util.find_spec("verl") is None:  # it has an environment of its own: make test-verl
    collect_ignore_glob = ["test_*.py"]
MARK = "AJET_TEST_OF_VERL"
"""In the environment of all that a test starts, so that what is left can be found."""
SHARED_MEMORY = Path("/dev/shm")
GONE_SECONDS = PATIENCE
"""Ray's agent of a killed node waits a minute for Ray's control store before it ends."""


LONGEST = (
    *("test_sync.py", "test_colocate_async.py", "test_lora.py", "test_engine.py", "test_exactness.py"),
    *("test_training.py", "test_serve.py", "test_lost_units.py", "test_step_groups.py", "test_health.py"),
)
"""Files, of vLLM too, whose tests start a job, a cluster or a server. They begin first, so that no process waits for the other at
the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move them to the front."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose without the defaults of the CPU platform of these tests, which are for the engine dp."""
    monkeypatch.setattr("ajet_verl.alignment.platform_defaults", lambda backbone: {})


@dataclass
class Machine:
    """What a test runs on: a folder, an environment, a Ray session folder."""

    folder: Path
    ray: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    shared: frozenset[Path] = field(default_factory=lambda: frozenset(SHARED_MEMORY.iterdir()))

    @property
    def environment(self) -> dict[str, str]:
        """Of everything that a test starts."""
        return {
            **os.environ,
            MARK: self.mark,
            "RAY_TMPDIR": str(self.ray),
            "RAY_AUTH_MODE": "token",  # or Ray would keep one in the home folder
            "RAY_AUTH_TOKEN": self.mark,
            "HF_HUB_OFFLINE": "1",
        }

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """A process in a group of its own, whose output goes to a file."""
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        process.log = log  # type: ignore[attr-defined]
        return process

    def run(self, *command: str, seconds: float, **environment: str) -> str:
        """What a command printed; an AssertionError with it, if it fails or takes too long."""
        process = self.start(*command, **environment)
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE)
        printed = printed_by(process)
        assert code == 0, f"{' '.join(command)} ended with {code}:\n{printed[-6000:]}"
        return printed

    def ajet(self, *arguments: str, seconds: float, **environment: str) -> str:
        """Run `ajet`."""
        return self.run(sys.executable, "-m", "ajet", *arguments, seconds=seconds, **environment)

    def processes(self) -> list[psutil.Process]:
        """Those of this test that are alive."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def orphans(self) -> list[Path]:
        """Shared memory that has come since the test began and that no process uses. Folders are other programs', and so is what
        PostgreSQL, of tests that run beside, opens only for moments."""
        found = (path for path in SHARED_MEMORY.iterdir() if not path.name.startswith("PostgreSQL."))
        files = (path for path in found if path.is_file())
        return sorted(path for path in files if path not in self.shared and not _in_use(path))

    def commands(self) -> list[str]:
        """The command lines of those processes."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                found.append(" ".join(process.cmdline())[:200])
        return found

    def kill(self) -> list[str]:
        """End what is left, with SIGKILL; returns the command lines."""
        left = self.commands()
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        return left


def printed_by(process: subprocess.Popen[str]) -> str:
    """What a process of `Machine.start` has printed so far."""
    text: str = process.log.read_text(errors="replace")  # type: ignore[attr-defined]
    return text


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """See `open_machine`."""
    with open_machine(tmp_path) as machine:
        yield machine


@contextmanager
def open_machine(folder: Path) -> Iterator[Machine]:
    """A `Machine`. After the block, no process, no Ray session and no shared memory may be left of it."""
    # Ray's sockets lie deep below; their paths may have 107 characters.
    machine = Machine(folder, Path(tempfile.mkdtemp(prefix="ajet", dir="/tmp")))
    try:
        yield machine
        deadline = time.monotonic() + GONE_SECONDS
        while machine.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        # Another test's engine leaves a file for a moment, too, before it removes it: only one that stays is an error.
        orphans = set(machine.orphans())
        deadline = time.monotonic() + GONE_SECONDS
        while orphans and time.monotonic() < deadline:
            time.sleep(0.2)
            orphans &= set(machine.orphans())
    finally:
        left = machine.kill()
        for logs in machine.ray.glob("ray/session_2*/logs"):  # to look at when a test has failed
            shutil.copytree(logs, folder / "ray_logs", dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(machine.ray, ignore_errors=True)
    assert not left, f"processes were left: {left}"
    assert not orphans, f"shared memory was left: {sorted(orphans)}"


def _in_use(path: Path) -> bool:
    """Whether a process, of another program on this machine, has mapped it."""
    for process in psutil.process_iter():
        try:
            if any(map_.path == str(path) for map_ in process.memory_maps()):
                return True
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return False


def write_job(folder: Path, job: dict[str, Any]) -> Path:
    """A job file in a folder."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def run_folder(folder: Path) -> Path:
    """The one run folder below ``folder/runs``."""
    (found,) = (folder / "runs").iterdir()
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
