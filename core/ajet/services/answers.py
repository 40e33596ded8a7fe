"""Answers that were paid for, by key: in memory while a job runs, or in a file that survives jobs and kills."""

from __future__ import annotations

import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ajet.types import AjetError

if TYPE_CHECKING:
    import sqlite3


class AnswerStore:
    """Text by key, in an SQLite file that is opened when it is first used. ``file`` None: in memory.

    Threads may share a store, and processes its file, unless it is ``exclusive``. An answer is on disk when `put` returns.
    All methods raise AjetError if the file cannot be used, or is open elsewhere and either side is exclusive.
    """

    def __init__(self, file: Path | None, *, exclusive: bool = False) -> None:
        self._file = file
        self._exclusive = exclusive
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def get(self, key: str) -> str | None:
        """The answer of a key, or None."""
        rows = self._run("select answer from answers where key = ?", key)
        return rows[0][0] if rows else None

    def put(self, key: str, answer: str) -> None:
        """Keep an answer."""
        written = answer.encode(errors="surrogatepass")  # JSON text may hold half a pair
        self._run("insert or replace into answers values (?, cast(? as text))", key, written)

    def close(self) -> None:
        """Close the file."""
        if "_database" in vars(self):
            self._database.close()

    def _run(self, statement: str, *values: str | bytes) -> list[tuple[str]]:
        import sqlite3

        try:
            with self._lock:
                return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            if self._exclusive and "locked" in str(error):
                raise AjetError(
                    f"{self._file}: another process is writing to it. Wait for it, or name another `cache`."
                ) from None
            raise AjetError(f"{self._file}: the cache cannot be used ({error}). Remove the file.") from None

    @cached_property
    def _database(self) -> sqlite3.Connection:
        import sqlite3

        if self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        seconds = 0.0 if self._exclusive else 30.0  # processes that write at once wait for each other
        database = sqlite3.connect(
            self._file or ":memory:", timeout=seconds, isolation_level=None, check_same_thread=False
        )
        database.text_factory = lambda written: written.decode(errors="surrogatepass")
        try:
            if self._exclusive:
                database.execute("pragma locking_mode = exclusive")
            database.execute("pragma journal_mode = wal")
            database.execute("create table if not exists answers (key text primary key, answer text) strict")
        except BaseException:
            database.close()
            raise
        return database
