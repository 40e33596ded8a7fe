"""Answers that were paid for: in memory while a job runs, or in a file over jobs and processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ajet import AjetError

FILE = "verdicts.sqlite"


class AnswerCache:
    """Text by key. ``folder`` None: in memory. Raises AjetError if the file is none of ours."""

    def __init__(self, folder: Path | None) -> None:
        import sqlite3

        self._error: type[Exception] = sqlite3.Error
        self._place: Any = ":memory:"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._place = folder / FILE
        try:
            # Processes that judge at once share the file: each waits for the other's write.
            self._db = sqlite3.connect(self._place, timeout=30.0, isolation_level=None)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("create table if not exists answers (key text primary key, answer text) strict")
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def get(self, key: str) -> str | None:
        """The answer of a key."""
        try:
            row = self._db.execute("select answer from answers where key = ?", [key]).fetchone()
        except self._error as error:
            raise self._unusable(error) from None
        return None if row is None else str(row[0])

    def put(self, key: str, answer: str) -> None:
        """Keep an answer."""
        try:
            self._db.execute("insert or replace into answers values (?, ?)", [key, answer])
        except self._error as error:
            raise self._unusable(error) from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _unusable(self, error: Exception) -> AjetError:
        return AjetError(f"{self._place}: the cache cannot be used ({error}). Remove the file.")
