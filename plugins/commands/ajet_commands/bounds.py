"""How much memory and disk the processes of a program may have, as far as files of the kernel show it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LEAST = 4096
"""Bytes that every file counts as: a folder can be filled with empty ones, too."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a program."""

    memory: int
    """Bytes of all its processes together, with files that are only in memory."""
    disk: int
    """Bytes of its folders together, with files that it has deleted and not closed."""
    folders: Sequence[Path]

    def exceeded(self, processes: Sequence[int]) -> str:
        """Which bound its processes exceed, ``memory`` or ``disk``; empty if neither."""
        on_disk, in_memory = 0, 0
        devices = {folder.stat().st_dev for folder in self.folders if folder.exists()}
        unnamed: dict[tuple[int, int], int] = {}
        for process in processes:
            with contextlib.suppress(OSError):
                for entry in os.scandir(f"/proc/{process}/fd"):
                    with contextlib.suppress(OSError):
                        status = os.stat(entry.path)
                        if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                            unnamed[status.st_dev, status.st_ino] = 512 * status.st_blocks
        for (device, _), size in unnamed.items():
            if device in devices:
                on_disk += size
            else:
                in_memory += size
        # What processes share, as after a fork, is held once; to find how much that is takes longer.
        if all(in_memory + sum(map(held, processes)) > self.memory for held in (resident, _own_share)):
            return "memory"
        waiting: list[str | Path] = list(self.folders)
        while waiting and on_disk <= self.disk:
            try:
                with os.scandir(folder := waiting.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        with contextlib.suppress(OSError):  # it has just been removed
                            on_disk += max(512 * entry.stat(follow_symlinks=False).st_blocks, _LEAST)
            except PermissionError:  # a folder that its owner has closed, and could fill all the same
                with contextlib.suppress(OSError):
                    os.chmod(folder, stat.S_IRWXU)
                    waiting.append(folder)
            except OSError:
                continue
        return "disk" if on_disk > self.disk else ""


def _own_share(process: int) -> int:
    """Bytes of a process in memory, those that it shares divided by the processes that do."""
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        return 1024 * next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return resident(process)


def resident(process: int) -> int:
    """Bytes of a process in memory, those that it shares included; 0 where that is unknown."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
