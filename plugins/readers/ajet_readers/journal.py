"""An append-only file of answers by key: what was paid for survives whatever ends the process."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ajet import AjetError

log = logging.getLogger("ajet")


class Journal:
    """One JSON object a line, ``{"key": …, …}``. Open in one process at a time; from many threads.

    A line that was cut off by a kill is removed when the file is opened again.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise AjetError(
                f"{path}: another process is writing to it. Wait for it, or name another `cache`."
            ) from None
        self._known = self._load(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Mapping[str, Any] | None:
        """What was added under the key, or None."""
        return self._known.get(key)

    def add(self, key: str, value: Mapping[str, Any]) -> None:
        """Remember a value; it is on disk when this returns."""
        line = json.dumps({"key": key, **value}, ensure_ascii=False)
        with self._lock:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._known[key] = value

    def _load(self, path: Path) -> dict[str, Mapping[str, Any]]:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        known: dict[str, Mapping[str, Any]] = {}
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                value = json.loads(line)
                known[value.pop("key")] = value
            except (ValueError, LookupError, AttributeError, TypeError):
                log.warning("%s:%d: not a line of this journal; ignored", path, number)
        return known
