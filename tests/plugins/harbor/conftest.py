"""Tasks, the image of their sandboxes, and Podman with a storage of its own, of which nothing may be left."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock

from tests.patience import PATIENCE
from tests.plugins.harbor import image

if find_spec("harbor") is None:  # it has an environment of its own: make test-harbor
    collect_ignore = [
        "test_cancelled.py",
        "test_learns.py",
        "test_tasks.py",
        "test_trajectories.py",
        "test_trials.py",
        "test_settings.py",
    ]

TASKS = Path(__file__).parent / "tasks"


@pytest.fixture(scope="session")
def sandboxes() -> Iterator[str]:
    """The image of the tasks' sandboxes. Podman then runs as in every test of this folder, and for one session at a time, which
    would otherwise see what another one has started."""
    if reason := image.lacking():
        pytest.skip(reason)
    name = image.build()
    with FileLock(image.cache() / "tests.lock"):
        yield name


@pytest.fixture
def tasks(tmp_path: Path, sandboxes: str) -> Path:
    """A folder of three tasks, in an empty current folder."""
    folder = Path(shutil.copytree(TASKS, tmp_path / "tasks"))
    for file in folder.glob("*/task.toml"):
        file.write_text(file.read_text().replace("IMAGE", sandboxes))
    return folder


@pytest.fixture
def left(sandboxes: str) -> Iterator[Left]:
    """What trials have left. Nothing may be, in the end."""
    found = Left()
    yield found
    found.gone()


class Left:
    """The containers, networks and volumes that trials have made."""

    def names(self) -> list[str]:
        """Those that are there."""
        listings = (["ps", "-a", "--format", "{{.Names}}"], ["network", "ls"], ["volume", "ls"])
        printed = [
            subprocess.run(["podman", *words], check=True, capture_output=True, text=True).stdout
            for words in listings
        ]
        return [name for text in printed for name in re.findall(r"ajet-[\w-]+", text)]

    def gone(self) -> None:
        """Wait until none is there: a cancelled trial ends in its own time."""
        deadline = time.monotonic() + PATIENCE
        while (names := self.names()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not names
