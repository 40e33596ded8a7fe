"""What the argument of `ajet studio` names: runs below a folder, and those that the page looks at; or episodes of a source, which a
thread writes into a temporary folder that the page reads like a run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ajet import AjetError, ConfigError
from ajet.interfaces.source import EpisodeSource
from ajet.plugins import load_plugins
from ajet.rollout.batch_record import BATCHES
from ajet.rollout.image_folder import IMAGES
from ajet.rollout.recorder import FEEDBACK, JOURNAL, METRICS
from ajet.runs.run_dir import RUNNING, TOKENIZER
from ajet_studio.answers import RefusedView, missing
from ajet_studio.feedback import FeedbackFile
from ajet_studio.opened import JOB, REJUDGED, OpenRun, Recent

PAUSE = 1.0
"""Seconds between two looks at a source that had nothing more."""
CACHE = ".studio"
"""The folder in a run folder that holds the index."""
HERE = "."
"""The id of the opened folder if it is a run folder itself."""
_DEPTH = 4
_FILES = (
    JOB,
    JOURNAL,
    METRICS,
    FEEDBACK,
    RUNNING,
    "ended.json",
    "settings.json",
    "versions.json",
    "restarts.jsonl",
    REJUDGED,
)
_FOLDERS = (CACHE, TOKENIZER, BATCHES, IMAGES)
"""What is read or written of a run folder, besides logs."""
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
        self._told: set[str] = set()

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
        """The run of an id. Raises RefusedView: 404 if there is none, 403 if its folder has links or the like."""
        path = self.folder / run
        inside = run == HERE or not (
            Path(run).is_absolute() or {"..", "."} & set(run.split("/")) or "\0" in run
        )
        if not inside or not is_run(path) or not path.resolve().is_relative_to(self.folder):
            with self._guard:
                if gone := self._open.pop(run, None):
                    gone.close()
            raise missing(f"{run}: no such run in {self.folder}; it was deleted, or the address is wrong")
        if strange := _strange(path):
            text = f"{strange}: a link or no plain file, which could lead out of the run folder; replace it by a copy of the file"
            if run not in self._told:
                self._told.add(run)
                print(f"{run} is not shown: {text}", file=sys.stderr)
            raise RefusedView(403, text)
        with self._guard:
            if run not in self._open:
                feedback = self._mirror.source if self._mirror else FeedbackFile(path)
                index = _cache(path) / "index.sqlite"
                self._open[run] = OpenRun(run, path, index, self._recent, feedback, self.problem)
            return self._open[run]

    def beside(self, run: OpenRun) -> list[OpenRun]:
        """The other runs that were opened before and so have an index; the newest names first."""
        others = []
        for id in self.ids():
            with suppress(RefusedView):
                other = self.run(id)
                if other.id != run.id and other.index.file.exists():
                    others.append(other)
        return others

    def close(self) -> None:
        """Stop reading journals."""
        with self._guard:
            for run in self._open.values():
                run.close()
            self._open.clear()
        if self._mirror:
            self._mirror.close()


def _strange(run_dir: Path) -> Path | None:
    """The first of what is read of a run folder that is a link, a pipe or the like, as in folders that come from elsewhere."""
    for name in _FILES + _FOLDERS:
        with suppress(OSError):
            mode = (run_dir / name).lstat().st_mode
            if not (stat.S_ISDIR(mode) if name in _FOLDERS else stat.S_ISREG(mode)):
                return run_dir / name
    for name in _FOLDERS:
        with suppress(OSError), os.scandir(run_dir / name) as entries:
            for entry in entries:
                if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                    return Path(entry.path)
    return None


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


class Mirror:
    """A folder with the files of a run, which follows a source until `close`. Raises AjetError if the source cannot be read."""

    def __init__(self, source: EpisodeSource) -> None:
        self.source = source
        self.problem = ""
        """Why the source cannot be read now; empty while it can."""
        self._above = Path(tempfile.mkdtemp(prefix="ajet-studio-"))
        self.folder = self._above / _last_part(source.name)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="ajet-studio-mirror", daemon=True)
        try:
            self.folder.mkdir()
            (self.folder / RUNNING).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
            source.update(self.folder)
        except BaseException:
            shutil.rmtree(self._above)
            raise
        self._thread.start()

    def close(self) -> None:
        """Stop following, close the source and remove the folder."""
        self._closed.set()
        self._thread.join()
        self.source.close()
        shutil.rmtree(self._above)

    def _follow(self) -> None:
        more = True
        while not self._closed.wait(0.0 if more else PAUSE):
            try:
                more, self.problem = self.source.update(self.folder), ""
            except AjetError as error:
                more, self.problem = False, str(error)


def _last_part(name: str) -> str:
    """A folder's name from that of a source, which is a path or URL: its last part."""
    last = re.split(r"[?#]", name)[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.-]+", "-", last).strip("-.")[:80] or "episodes"


def open_library(what: str) -> Library:
    """The runs in a folder, or the episodes of a source that a plugin opens. Raises ConfigError if it is neither, AjetError if the
    source cannot be read."""
    folder = Path(what).expanduser()
    if not folder.is_dir():
        source: EpisodeSource | None = load_plugins().manager.hook.ajet_episode_source(where=what)
        if source is not None:
            mirror = Mirror(source)
            return Library(mirror.folder, mirror)
        if "://" in what or folder.is_file():
            raise ConfigError(
                f"{what}: is neither a folder nor a store. To look at a store of `ajet online`, install ajet-plugin-online."
            )
    return Library(folder)
