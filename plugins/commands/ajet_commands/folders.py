"""The folders of an episode: a workspace and a home of its own, and the files that the judge gets of it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ajet.interfaces.workflow import WorkflowFailed

MOST_FILES = 1000
"""Files of an episode that the judge gets."""
MOST_BYTES = 64 << 20
"""Their size together."""
MOST_SEEN = 100_000
"""Paths that are looked at for them."""


class Collected(dict[str, Path]):
    """Copies of an episode's files by relative path. They are removed when nothing refers to this any more."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ajet-files-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


def write_files(folder: Path, files: Any, what: str) -> None:
    """Write texts by relative path. Raises WorkflowFailed for what is not such a mapping, or leads out of the folder."""
    if not isinstance(files, Mapping) or not all(isinstance(text, str) for text in files.values()):
        raise WorkflowFailed("files", f"{what} is not a mapping of relative paths to texts")
    for name, text in files.items():
        path = PurePosixPath(str(name))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise WorkflowFailed("files", f"{what} has the path {name!r}, which leads out of the workspace")
        target = folder / path
        # A copied folder may have links, which lead out of it or into other parts of it.
        if os.path.realpath(target) != os.path.join(os.path.realpath(folder), path):
            raise WorkflowFailed("files", f"{what} has the path {name!r}, which leads through a link")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", errors="surrogatepass")


def below(folder: Path, named: str, what: str) -> Path:
    """A path that a task names below a folder. Raises WorkflowFailed if it is none of those there, also if a link leads out."""
    path = Path(os.path.realpath(folder / named))
    root = os.path.realpath(folder)
    if os.path.isabs(named) or ".." in Path(named).parts or not path.is_relative_to(root):
        raise WorkflowFailed("copy", f"{what} would be {named!r}, which leads out of {folder}")
    return path


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder; links stay links. Raises WorkflowFailed if that fails."""
    try:
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise WorkflowFailed("copy", f"{source} cannot be copied: {str(error)[:500]}") from error


def remove_folder(folder: Path) -> None:
    """Remove a folder, also one whose parts were made unreadable."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for path, names, _ in os.walk(folder):  # top-down: a folder is opened before it is read
            for inner in (os.path.join(path, name) for name in names):
                if not os.path.islink(inner):
                    os.chmod(inner, stat.S_IRWXU)
        shutil.rmtree(folder, ignore_errors=True)


def collect(workspace: Path, patterns: Sequence[str]) -> tuple[Collected, dict[str, str]]:
    """Copies of the regular files of a workspace that match a pattern, and what was left out, by path with the reason. No
    link is followed."""
    collected, left, size = Collected(), dict[str, str](), 0
    root = Path(os.path.realpath(workspace))
    for path in _matching(root, patterns, left):
        name = path.relative_to(root).as_posix()
        reason = _fault(path)
        if reason is None and len(collected) == MOST_FILES:
            reason = f"more than {MOST_FILES} files"
        if reason is None and size + path.stat().st_size > MOST_BYTES:
            reason = f"more than {MOST_BYTES >> 20} MiB together"
        if reason:
            left[name] = reason
            continue
        copy = collected.folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy(path, copy, follow_symlinks=False)
        except OSError as error:
            left[name] = error.strerror or "cannot be read"
            continue
        size += copy.stat().st_size
        collected[name] = copy
    return collected, left


def _matching(root: Path, patterns: Sequence[str], left: dict[str, str]) -> Iterator[Path]:
    seen, count = set[Path](), 0
    for pattern in patterns:
        try:
            for path in root.glob(pattern):
                count += 1
                if count > MOST_SEEN:
                    left[pattern] = f"more than {MOST_SEEN} paths"
                    return
                if path not in seen and not path.is_dir():
                    seen.add(path)
                    yield path
        except OSError as error:
            left[pattern] = error.strerror or "cannot be read"


def _fault(path: Path) -> str | None:
    if os.path.realpath(path) != str(path):
        return "a link"
    return None if path.is_file() else "not a regular file"
