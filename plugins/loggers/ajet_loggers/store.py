"""A copy of the run folder in an object store, kept up to date while the run goes on, and the way back.

`fsspec` reaches the store: S3, Google Cloud Storage and Azure through obstore, anything else through the package that fsspec names.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Self

from pydantic import Field, PrivateAttr, model_validator

from ajet import AjetError, ConfigError, Logger
from ajet.interfaces.events import CheckpointSaved, RunEnd, RunStart
from ajet.interfaces.helpers import Outbox
from ajet.interfaces.logger import Metrics
from ajet.interfaces.progress import current_progress
from ajet_loggers.tool import needs

CHECKPOINTS = "checkpoints"
LAST = "files.json"
"""The file without which a checkpoint is not complete: it is sent last, and removed first."""
LEFT_OUT = ("run.lock", "running.json")
"""What belongs to this machine."""
_UNUSABLE = re.compile(rf"{CHECKPOINTS}/(?!step_)|(?!{CHECKPOINTS}/)(.*/)?\.")
"""What is being written, damaged checkpoints, and the studio's index. A complete checkpoint may have hidden files."""
BY_OBSTORE = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")


class Store(Logger):
    """Copies the run folder to an object store (S3, Google Cloud, Azure) at each checkpoint and at the end.

    Any other file system of fsspec will do. ``ajet fetch URL`` brings it back, on this machine or another one, and ``ajet run
    --resume`` goes on there. A thread sends; of checkpoints that the run has removed, the copies are removed, too.
    """

    name = "store"

    to: str = Field(min_length=1, description="Folder for the copies of run folders: s3://bucket/runs.")
    options: dict[str, Any] = Field(
        {},
        description="Options of fsspec's file system, such as {endpoint: https://…}. Keys are best left in the environment, where "
        "its library finds them: AWS_ACCESS_KEY_ID and so on.",
    )
    flush_seconds: float = Field(
        600.0, ge=0, description="How long the end of a run waits until everything is sent, in seconds."
    )

    _outbox: Outbox | None = PrivateAttr(None)
    _copy: Copy | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        needs("fsspec", "store")
        try:
            reached(self.to, self.options)
        except AjetError as error:
            raise ValueError(str(error)) from None
        return self

    def run_start(self, event: RunStart) -> None:
        """Begin to copy the run folder."""
        self._copy = Copy(event.run_dir, self.to, self.options)
        self._outbox = Outbox(
            "logger store", self.to, current_progress().say, unit="copies of the run folder"
        )

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Nothing: metrics are sent with the next checkpoint."""

    def checkpoint_saved(self, event: CheckpointSaved) -> None:
        """Send what is new in the run folder."""
        self._send()

    def run_end(self, event: RunEnd) -> None:
        """Send what is new in the run folder."""
        self._send()

    def close(self) -> None:
        """Wait until everything is sent, for ``flush_seconds`` at most, and say what was not."""
        if self._outbox is not None:
            self._outbox.close(self.flush_seconds)
            self._outbox = None

    def _send(self) -> None:
        if self._outbox is not None and self._copy is not None:
            self._outbox.put(self._copy.update)


class Copy:
    """A run folder in a store."""

    def __init__(self, run_dir: Path, to: str, options: dict[str, Any]) -> None:
        self._run_dir = run_dir
        self._store, folder = reached(to, options)
        self._folder = f"{folder.rstrip('/')}/{run_dir.name}"
        self._sent: dict[str, tuple[int, int]] = {}
        """Size and time of what has been sent."""
        self._earlier: set[str] | None = None
        """Checkpoints' files that an earlier process has sent; None before the first update."""

    def update(self) -> None:
        """Send new and changed files: what the run has recorded before its checkpoints, as resuming needs all that was recorded
        up to a checkpoint."""
        for name in sorted(
            self._files(), key=lambda name: (name.startswith(CHECKPOINTS), name.endswith(LAST))
        ):
            self._send(name)
        self._remove_old()

    def _files(self) -> Iterator[str]:
        for path in self._run_dir.rglob("*"):
            name = path.relative_to(self._run_dir)
            plain = path.is_file() and not path.is_symlink()  # what a link names is not the run's
            if (
                plain
                and not _UNUSABLE.match(name.as_posix())
                and not any(name.match(pattern) for pattern in LEFT_OUT)
            ):
                yield name.as_posix()

    def _send(self, name: str) -> None:
        path = self._run_dir / name
        try:
            stat = path.stat()
            state = (stat.st_size, stat.st_mtime_ns)
            if self._sent.get(name) != state:
                self._store.makedirs(str(PurePosixPath(self._folder, name).parent), exist_ok=True)
                self._store.put_file(str(path), f"{self._folder}/{name}")
        except FileNotFoundError:
            if path.exists():
                raise
            return  # the run has removed a checkpoint meanwhile
        self._sent[name] = state

    def _remove_old(self) -> None:
        here = {path.name for path in (self._run_dir / CHECKPOINTS).glob("step_*")}
        if self._earlier is None:
            root = f"{self._folder}/{CHECKPOINTS}"
            with suppress(FileNotFoundError):
                self._earlier = {f"{CHECKPOINTS}{path.partition(root)[2]}" for path in self._store.find(root)}
            self._earlier = self._earlier or set()
        parts = {name: PurePosixPath(name).parts for name in {*self._sent, *self._earlier}}
        old = {name for name, at in parts.items() if at[0] == CHECKPOINTS and at[1] not in here}
        for name in sorted(old, key=lambda name: not name.endswith(LAST)):
            self._store.rm_file(f"{self._folder}/{name}")
            self._sent.pop(name, None)
            self._earlier.discard(name)


def fetch(url: str, into: Path, options: dict[str, Any]) -> Path:
    """Copy the folder ``url`` of a store, such as a run's, to a new folder of the same name in ``into``; returns it. Raises AjetError
    if the store has no such folder, or this machine already has one of that name."""
    try:
        needs("fsspec", "store")
    except ValueError as error:
        raise AjetError(str(error)) from None
    store, folder = reached(url, options)
    folder = folder.rstrip("/")
    final = into / PurePosixPath(folder).name
    if final.exists():
        raise ConfigError(str(final), "exists; remove it, or name another place with --into.")
    partial_folder = final.with_name(f".fetching_{final.name}")
    shutil.rmtree(partial_folder, ignore_errors=True)
    try:
        names = store.find(folder)
    except Exception as error:
        raise AjetError(f"{url}: cannot be read ({_line(error)}).") from error
    if not names:
        raise AjetError(f"{url}: the store has no such folder, or nothing is in it.")
    for name in names:
        inside = PurePosixPath(name).relative_to(folder)
        if ".." in inside.parts:
            raise AjetError(
                f"{url}: the store has a file {name!r}, which leads out of the folder; nothing is fetched."
            )
        path = partial_folder / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        store.get_file(name, str(path))
    partial_folder.rename(final)
    return final


def reached(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The file system of a URL and the folder in it; nothing is sent. Raises AjetError naming what is missing."""
    import fsspec

    protocol = url.partition("://")[0]
    if protocol in BY_OBSTORE and find_spec("obstore"):
        from obstore.fsspec import register

        register(protocol)
    try:
        store, folder = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError, TypeError) as error:
        raise AjetError(
            f"{url}: {_line(error)}. Name a folder as s3://bucket/folder; pip install 'ajet-plugin-loggers[store]' brings S3, Google "
            "Cloud Storage and Azure."
        ) from None
    return store, folder


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
