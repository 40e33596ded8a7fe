"""An append-only file of answers by key: what was paid for survives whatever ends the process."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from pathlib import Path
from typing import BinaryIO, Self

from ajet import AjetError

log = logging.getLogger("ajet")


class Journal:
    """One JSON object a line, ``{"key": …, "answer": …}``. Open in one process at a time; from many threads.

    A line that was cut off by a kill is removed when the file is opened again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._file: BinaryIO | None = None  # opened when first used: most readers ask nothing
        self._values: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            self._file.close()

    def get(self, key: str) -> str | None:
        """The answer of a key, or None. Raises AjetError if another process has the file open."""
        with self._lock:
            self._opened()
            return self._values.get(key)

    def put(self, key: str, answer: str) -> None:
        """Keep an answer; it is on disk when this returns."""
        line = json.dumps({"key": key, "answer": answer}, ensure_ascii=False)
        with self._lock:
            file = self._opened()
            file.write(line.encode(errors="surrogatepass") + b"\n")  # JSON text may hold half a pair
            file.flush()
            os.fsync(file.fileno())
            self._values[key] = answer

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("a+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise AjetError(
                    f"{self._path}: another process is writing to it. Wait for it, or name another `cache`."
                ) from None
            self._values = _load(file, self._path)
            self._file = file
        return self._file


def _load(file: BinaryIO, path: Path) -> dict[str, str]:
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        file.truncate(whole)
    known: dict[str, str] = {}
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        try:
            value = json.loads(line)
            known[value["key"]] = str(value["answer"])
        except (ValueError, LookupError, TypeError):
            log.warning("%s:%d: not a line of this journal; ignored", path, number)
    return known
