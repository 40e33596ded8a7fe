"""The runs below a folder, and those that the page looks at."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ajet.rollout.recorder import JOURNAL, METRICS
from ajet.types import ConfigError
from ajet_studio.feedback import FeedbackFile
from ajet_studio.mirror import Mirror
from ajet_studio.opened import OpenRun
from ajet_studio.problems import Refused, missing
from ajet_studio.recent import Recent

CACHE = ".studio"
"""The folder in a run folder that holds the index."""
HERE = "."
"""The id of the opened folder if it is a run folder itself."""
_DEPTH = 4
MOST_BYTES = 48 << 20
"""Of decoded episodes, metrics and tokenizers that are kept."""


class Library:
    """A run folder, or a folder with run folders below it. Raises ConfigError if it is not a folder. ``mirror`` is that of a source,
    if the folder is a mirror's."""

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        if not folder.is_dir():
            raise ConfigError(
                f"{folder}: no such folder. Name the folder of a run, such as runs/20250131-120000, or of runs."
            )
        self.folder = folder.resolve()
        self._mirror = mirror
        self._open: dict[str, OpenRun] = {}
        self._recent = Recent(MOST_BYTES)
        self._guard = threading.Lock()

    @property
    def name(self) -> str:
        """What is shown: the folder, or the name of the source."""
        return self._mirror.source.name if self._mirror else str(self.folder)

    def problem(self) -> str:
        """Why the source cannot be read now; empty while it can."""
        return self._mirror.problem if self._mirror else ""

    def ids(self) -> list[str]:
        """The ids of all runs: their paths below the folder, the newest names first."""
        if is_run(self.folder):
            return [HERE]
        return sorted(
            (path.relative_to(self.folder).as_posix() for path in _below(self.folder, _DEPTH)), reverse=True
        )

    def run(self, run: str) -> OpenRun:
        """The run of an id. Raises Refused (404) if there is none."""
        path = self.folder / run
        inside = run == HERE or not (
            Path(run).is_absolute() or {"..", "."} & set(run.split("/")) or "\0" in run
        )
        if not inside or not is_run(path) or not path.resolve().is_relative_to(self.folder):
            with self._guard:
                if gone := self._open.pop(run, None):
                    gone.close()
            raise missing(f"{run}: no such run in {self.folder}; it was deleted, or the address is wrong")
        with self._guard:
            if run not in self._open:
                feedback = self._mirror.source if self._mirror else FeedbackFile(path)
                index = _cache(path) / "index.sqlite"
                self._open[run] = OpenRun(run, path, index, self._recent, feedback, self.problem)
            return self._open[run]

    def beside(self, run: OpenRun) -> list[OpenRun]:
        """The other runs that were opened before and so have an index; the newest names first."""
        found = []
        for id in self.ids():
            with suppress(Refused):
                other = self.run(id)
                if other.id != run.id and other.index.file.exists():
                    found.append(other)
        return found

    def close(self) -> None:
        """Stop reading journals."""
        with self._guard:
            for run in self._open.values():
                run.close()
            self._open.clear()
        if self._mirror:
            self._mirror.close()


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run."""
    try:
        return any((path / name).is_file() for name in ("job.yaml", JOURNAL, METRICS))
    except (OSError, ValueError):
        return False


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = [
            Path(entry.path)
            for entry in os.scandir(folder)
            if entry.is_dir() and not entry.name.startswith(".")
        ]
    except OSError:
        return
    for path in inside:
        if is_run(path):
            if path.resolve().is_relative_to(folder.resolve()):
                yield path
        elif depth > 1 and not path.is_symlink():
            yield from _below(path, depth - 1)


def _cache(run_dir: Path) -> Path:
    """Where the index of a run is: in the run folder, or in the user's cache if that cannot be written."""
    if os.access(run_dir, os.W_OK):
        return run_dir / CACHE
    user = Path(os.environ.get("AJET_CACHE") or "~/.cache/ajet").expanduser()
    return user / "studio" / hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:16]
