"""Stores on both databases: SQLite in a file, and a private cluster of PostgreSQL, which Debian's package runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet_online.store import TraceStore
from ajet_online.trace import Trace


def programs() -> Path:
    """The folder of PostgreSQL's programs, which are installed if they are missing and this process may."""
    for attempt in range(2):
        if found := shutil.which("initdb"):
            return Path(found).resolve().parent
        if folders := sorted(Path("/usr/lib/postgresql").glob("*/bin")):
            return folders[-1]
        if attempt or os.geteuid() or not shutil.which("apt-get"):
            break
        install = ["apt-get", "install", "-y", "--no-install-recommends", "postgresql"]
        subprocess.run(
            install, check=False, capture_output=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
    pytest.skip("PostgreSQL is not installed (Debian's package `postgresql`)")


class Cluster:
    """A private PostgreSQL that listens on a socket in its own folder."""

    def __init__(self) -> None:
        self._programs = programs()
        self._empty = ""
        self.folder = Path(tempfile.mkdtemp(prefix="ajet-pg-", dir="/tmp"))
        # PostgreSQL does not run as root.
        self._user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(self.folder, "postgres", "postgres")
        self.folder.chmod(0o755)
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "--no-sync")
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off"
        self._run(
            "pg_ctl", "-D", str(self.data), "-w", "-o", options, "-l", str(self.folder / "log"), "start"
        )

    def stop(self, how: str = "fast") -> None:
        """``immediate`` ends it as a crash does."""
        self._run("pg_ctl", "-D", str(self.data), "-w", "-m", how, "stop")

    @contextmanager
    def crashed(self) -> Iterator[None]:
        """A block in which it does not run."""
        self.stop("immediate")
        try:
            yield
        finally:
            self.start()

    def database(self, *like: str) -> str:
        """The URL of a new database."""
        name = f"db{uuid.uuid4().hex}"
        self._run("createdb", "-h", str(self.folder), "-U", "postgres", name, *like)
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def store(self) -> str:
        """The URL of a new store: a copy, as its tables take longer than most tests."""
        if not self._empty:
            url = self.database()
            TraceStore.open(url).close()
            self._empty = url.removeprefix("postgresql://postgres@/").partition("?")[0]
        return self.database("-T", self._empty)

    def close(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **self._user)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store without traces."""
    file = tmp_path_factory.mktemp("store") / "traces.db"
    TraceStore.open(str(file)).close()
    return file


@pytest.fixture
def file(empty: Path, tmp_path: Path) -> Path:
    """The file of a new store: a copy, as its tables take longer than most tests."""
    return Path(shutil.copy(empty, tmp_path / "traces.db"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a new store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('file')}"
    made: Cluster = request.getfixturevalue("cluster")
    return made.store()


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    opened = TraceStore.open(url)
    yield opened
    opened.close()


@pytest.fixture
def serve(store: TraceStore) -> Iterator[Any]:
    """See `tests.plugins.online.serving.starting`."""
    from tests.plugins.online.serving import starting  # it needs the engine's packages

    with starting(store) as start:
        yield start


@pytest.fixture(scope="module")
def standing(empty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An explorer for all tests of a file that change nothing."""
    from tests.plugins.online.serving import starting

    store = TraceStore.open(str(shutil.copy(empty, tmp_path_factory.mktemp("standing") / "traces.db")))
    with starting(store) as start:
        yield start()
    store.close()


def trace(name: str, **fields: Any) -> Trace:
    """A trace of three tokens."""
    usual: dict[str, Any] = {
        "id": name,
        "at": 1000.0,
        "key": "k",
        "agent": "agent",
        "target": "policy",
        "conversation": name,
        "parent": None,
        "prompt": np.array([1, 2], np.int32),
        "tokens": np.array([3, 4, 5], np.int32),
        "logprobs": np.array([-0.5, -1.0, -0.25], np.float32),
        "versions": np.array([7, 7, 7], np.int32),
        "temperature": 1.0,
        "trained": True,
        "finish_reason": "stop",
        "messages": [{"role": "user", "content": "hi"}],
        "answer": {"role": "assistant", "content": "hello"},
    }
    return Trace(**{**usual, **fields})
