"""Writes files durably, to the disk and not only to its cache, with errors that name the file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet.types import AjetError, ConfigError

_REMEDIES = {
    errno.ENOSPC: "Free some space on that disk, or choose another one",
    errno.EDQUOT: "Free some of your disk quota, or choose another disk",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "Choose a folder on a writable disk",
    errno.EACCES: "Give this user the permission, or choose another folder",
    errno.EPERM: "Give this user the permission, or choose another folder",
    errno.EIO: "Check the disk",
    errno.EMFILE: "Raise the limit on open files (ulimit -n), or lower rollout.concurrency",
    errno.ENFILE: "The whole machine has too many open files: end other programs",
    errno.ENOMEM: "Free some memory, or raise the memory limit of this process",
}
"""Remedies for operating-system errors, such as a full disk, that only the user can fix."""


def remedy_for(error: OSError) -> str | None:
    """What the user can do about an operating-system error; None if it may be a bug of the program."""
    return _REMEDIES.get(error.errno or 0)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes ``path``, a file or a folder: an OSError in it becomes an AjetError, one line that names the
    path and the remedy."""
    try:
        yield
    except OSError as error:
        cause = error.strerror or str(error) or type(error).__name__
        remedy = remedy_for(error) or "Check the disk and the folder's permissions"
        raise AjetError(f"{path}: cannot be written: {cause}. {remedy}.") from error


def plain(path: Path) -> Path:
    """The path of a file, which may be missing. Raises AjetError for a pipe or a device: reading it might never end."""
    if path.exists() and not path.is_file():
        raise AjetError(f"{path}: is not a plain file. Remove it.")
    return path


def sync(path: Path) -> None:
    """Flush a file, or a folder with everything in it, from the system's cache to the disk."""
    inside = sorted(path.rglob("*")) if path.is_dir() else []
    for one in (*inside, path):
        if not one.is_symlink():
            _sync_one(one)


def replace(new: Path, old: Path) -> None:
    """Replace ``old`` with ``new`` by renaming, so that after a power failure one of the two is complete."""
    sync(new)
    os.replace(new, old)
    _sync_one(old.parent)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that after a crash or a power failure it is complete, or as it was before. Raises AjetError."""
    partial = path.with_name(f".{path.name}")
    with writing(path):
        partial.write_text(text, encoding="utf-8")
        replace(partial, path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_output(flag: str, path: Path) -> None:
    """Create the folder of a file that a command will write, before the command spends time or money. Raises
    ConfigError if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fault = "is a directory" if path.is_dir() else ""
    except OSError as error:
        fault = f"its folder cannot be created ({error.strerror})"
    if not fault and not os.access(path if path.exists() else path.parent, os.W_OK):
        fault = "you have no permission to write it"
    if fault:
        raise ConfigError(f"{flag} {path}: {fault}. Name a file that can be written.")
