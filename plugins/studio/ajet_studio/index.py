"""The index of a journal: where each episode's line is, and its figures, in a file of SQLite.

The journal is read once, in a thread, and then only as far as it has grown. Superseded episodes are deleted from the
index. The file is a cache: it is built anew if it is missing, damaged, of another version, or if the journal's
beginning or the end of the part that was read has changed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ajet_studio.lines import Line, NotALine, parse_line
from ajet_studio.words import CREATE_WORDS, add_words, words_done

VERSION = 4
"""Of the tables. Raise it with every change to them."""
_OURS = 0x616A7374
"""SQLite's application id of an index: any other database is left as it is."""
BLOCK = 16 << 20
_PROBE = 4096
"""Bytes of the journal whose hash tells whether it is still the same file."""
_MOST_FAULTS = 20
_LITTLE = 32 << 20
"""Bytes of a journal that are read so soon that an answer waits for it."""
_PATIENCE, _MOMENT = 2.0, 0.02
"""Seconds that an answer waits for little, and for more; later answers show the rest."""
_CREATE = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value);
CREATE TABLE faults (line INTEGER, fault TEXT);
CREATE TABLE episodes (
    line INTEGER PRIMARY KEY, offset INTEGER, length INTEGER, id TEXT, phase TEXT, step INTEGER, task TEXT, member INTEGER,
    attempt INTEGER, reward REAL, is_success INTEGER, failure TEXT, seconds REAL, calls INTEGER, tokens INTEGER,
    trained_tokens INTEGER, sampled INTEGER, agents TEXT, breaks INTEGER, labels TEXT, rewards TEXT, counters TEXT, ended REAL
);
CREATE INDEX by_step ON episodes (phase, step, ended);
CREATE INDEX by_id ON episodes (id);
CREATE INDEX by_task ON episodes (task);
"""
_INSERT = f"INSERT INTO episodes VALUES ({', '.join('?' * 23)})"
_DELETE = """DELETE FROM episodes WHERE step >= ?1 AND step <= ifnull(?2, step)
    AND id NOT IN (SELECT value FROM json_each(?3))"""


class Index:
    """The index of one journal. Its methods may be called in any thread."""

    def __init__(self, journal: Path, file: Path) -> None:
        self._journal, self.file = journal, file
        self._guard = threading.RLock()
        self._working: threading.Thread | None = None
        self._closed = False
        self._words_wanted = False
        self._seen: tuple[tuple[int, int], int] | None = None
        """The journal and the index's file when the index was last complete."""
        self.problem = ""
        """Why the index cannot be built; empty while it can."""

    def update(self, words: bool = False) -> bool:
        """Read what the journal has gained, in a thread; with ``words``, also the words for a search. Waits for that if it
        is not much. Returns whether the index is complete."""
        self._words_wanted |= words
        deadline = 0.0
        while not self._complete():
            with self._guard:
                if self._working is None or not self._working.is_alive():
                    self._working = threading.Thread(target=self._work, name="ajet-studio-index", daemon=True)
                    self._working.start()
                working = self._working
            now = time.monotonic()
            deadline = deadline or now + (_PATIENCE if self._left() < _LITTLE else _MOMENT)
            working.join(max(0.0, deadline - now))
            if self.problem or now >= deadline:
                return False
        return True

    def progress(self) -> float:
        """The share of the journal that the index covers, 0 to 1."""
        return self._share("offset")

    def words_progress(self) -> float:
        """The share of the journal that can be searched, 0 to 1."""
        return self._share("words_offset")

    def count(self) -> int:
        """The episodes that the index has now; 0 before there is one."""
        with suppress(OSError, sqlite3.Error):
            if self.file.exists():
                with self.reading() as db:
                    return int(db.execute("SELECT count(*) FROM episodes").fetchone()[0])
        return 0

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A block that reads the index. Rows can be used as mappings."""
        if not self.file.exists():
            self._opened().close()
        with closing(sqlite3.connect(f"{self.file.as_uri()}?mode=ro", uri=True, timeout=30)) as db:
            db.row_factory = sqlite3.Row
            try:
                yield db
            except sqlite3.Error as error:
                if _is_damage(error):
                    self._seen = None  # the next `update` finds out, and builds it anew
                raise

    def line(self, offset: int, length: int) -> bytes:
        """A line of the journal, by one seek."""
        with self._journal.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def close(self) -> None:
        """Stop reading the journal."""
        self._closed = True
        if self._working is not None:
            self._working.join()

    # ----------------------------------------------------------------- in the thread

    def _work(self) -> None:
        try:
            before = _state(self._journal)
            with closing(self._opened()) as db:
                file = self._file_number()
                self._extend(db)
                while self._words_wanted and not self._closed and add_words(db, self._journal):
                    pass
            if not self._closed:
                self._seen, self.problem = (before, file), ""
        except sqlite3.Error as error:
            if _is_damage(error):
                _remove(self.file)
            self.problem = f"{self.file}: the index cannot be written ({error})"
        except OSError as error:
            self.problem = f"{error.filename or self._journal}: {error.strerror}"

    def _opened(self) -> sqlite3.Connection:
        """A connection that writes, to a file with all tables."""
        with self._guard:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if self.file.parent.is_symlink() or self.file.is_symlink():
                raise OSError(errno.ELOOP, "a link, which is not followed", str(self.file))
            try:
                return _connect(self.file)
            except sqlite3.Error as error:
                if not _is_damage(error):
                    raise
                _remove(self.file)
                return _connect(self.file)

    def _file_number(self) -> int:
        """Tells the index's file from another one of its name; 0 if there is none."""
        try:
            return self.file.stat().st_ino
        except OSError:
            return 0

    def _extend(self, db: sqlite3.Connection) -> None:
        if not self._journal.exists():  # no episode has ended yet, or the file was removed
            if _get(db, "offset", 0):
                db.execute("BEGIN IMMEDIATE")
                _clear(db)
                db.execute("COMMIT")
            return
        with self._journal.open("rb") as file:
            db.execute("BEGIN IMMEDIATE")
            if not _same(db, file):
                _clear(db)
            offset, number = _get(db, "offset", 0), _get(db, "lines", 0)
            db.execute("COMMIT")
            file.seek(offset)
            rest = b""
            while not self._closed and (block := file.read(BLOCK)):
                data = rest + block if rest else block
                end = data.rfind(b"\n") + 1
                if end:
                    db.execute("BEGIN IMMEDIATE")
                    if _get(db, "offset", 0) != offset:  # another process reads the same journal
                        db.execute("ROLLBACK")
                        return self._extend(db)
                    number = _add(db, memoryview(data)[:end], offset, number)
                    offset += end
                    _put(db, offset=offset, lines=number, tail=_probe(file, offset), head=_head(file, offset))
                    file.seek(offset + len(data) - end)
                    db.execute("COMMIT")
                rest = data[end:]

    # ----------------------------------------------------------------- small questions

    def _complete(self) -> bool:
        """Whether the index covers the journal as it is now."""
        if self._seen != (_state(self._journal), self._file_number()):
            return False
        return not self._words_wanted or self.words_progress() >= 1

    def _left(self) -> float:
        """The bytes of the journal that the index does not cover."""
        covered = self.progress() * (self.words_progress() if self._words_wanted else 1.0)
        return _state(self._journal)[0] * (1 - covered)

    def _share(self, name: str) -> float:
        with suppress(OSError, sqlite3.Error), self.reading() as db:
            done = words_done(db) if name == "words_offset" else _get(db, "offset", 0)
            whole = _get(db, "offset", 0) if name == "words_offset" else _state(self._journal)[0]
            return min(1.0, done / whole) if whole else 1.0
        return 0.0


def _connect(file: Path) -> sqlite3.Connection:
    """A connection that writes, to a file with all tables. Raises sqlite3.Error."""
    is_new = not file.exists() or not file.stat().st_size
    db = sqlite3.connect(file, timeout=30, isolation_level=None)
    try:
        if is_new:
            db.execute(f"PRAGMA application_id = {_OURS}")
        elif db.execute("PRAGMA application_id").fetchone()[0] != _OURS:
            raise _NotOurs
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # it can be built again
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("BEGIN IMMEDIATE")
        if db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            _clear(db)
        db.execute("COMMIT")
    except sqlite3.Error:
        db.close()
        raise
    return db


class _NotOurs(sqlite3.DatabaseError):
    """The file is a database of another program, or of an earlier version: a new one takes its name, and it is not written to."""


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file is not a database, or not one of ours."""
    if isinstance(error, _NotOurs):
        return True
    damage = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in damage


def torn(journal: Path) -> bool:
    """Whether the last line of a journal has no end."""
    with suppress(OSError), journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            return file.read(1) != b"\n"
    return False


def faults(db: sqlite3.Connection) -> list[str]:
    """What is wrong with lines of the journal, the first ones in words."""
    faults = [
        f"line {line}: {fault}; it is left out"
        for line, fault in db.execute("SELECT line, fault FROM faults")
    ]
    left = _get(db, "faults", 0) - len(faults)
    unknown = _get(db, "unknown", 0)
    if left > 0:
        faults.append(f"{left} more lines are left out")
    if unknown:
        faults.append(f"{unknown} {'line' if unknown == 1 else 'lines'} of an unknown type: left out")
    return faults


def _add(db: sqlite3.Connection, data: memoryview, offset: int, number: int) -> int:
    """Add whole lines of the journal; ``number`` is that of the line before. Returns the last one's."""
    whole = data.obj
    assert isinstance(whole, bytes)
    rows: list[Sequence[Any]] = []
    start = damaged = unknown = 0
    while start < len(data):
        end = whole.index(b"\n", start) + 1
        number += 1
        try:
            line = parse_line(data[start:end])
        except NotALine as error:
            damaged += 1
            _fault(db, number, str(error))
            start = end
            continue
        if line.type in ("superseded", "replaced"):
            db.executemany(_INSERT, rows)
            rows = []
            if line.type == "superseded":
                db.execute(_DELETE, (line.from_step, line.to_step, json.dumps(line.keep)))
            else:
                db.executemany("DELETE FROM episodes WHERE id = ?", [(id,) for id in line.ids])
        elif line.type == "episode":
            rows.append(_row(line, number, offset + start, end - start))
        else:
            unknown += 1
        start = end
    db.executemany(_INSERT, rows)
    _put(db, faults=_get(db, "faults", 0) + damaged, unknown=_get(db, "unknown", 0) + unknown)
    return number


def _row(line: Line, number: int, offset: int, length: int) -> Sequence[Any]:
    return (
        number, offset, length, line.id, line.phase, line.step, line.task, line.member, line.attempt, line.reward,
        line.is_success, line.failure, line.seconds, len(line.calls), line.tokens, line.trained, line.sampled,
        _json(line.agents()), len(line.breaks), _json(line.targets()), _json(line.rewards), _json(line.counters),
        line.started + (line.seconds or 0.0) if line.started else None,
    )  # fmt: skip


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _fault(db: sqlite3.Connection, number: int, fault: str) -> None:
    if db.execute("SELECT count(*) FROM faults").fetchone()[0] < _MOST_FAULTS:
        db.execute("INSERT INTO faults VALUES (?, ?)", (number, " ".join(fault.split())[:300]))


def _clear(db: sqlite3.Connection) -> None:
    """Empty the database, within a transaction."""
    for kind, name in db.execute(
        "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'index') AND sql NOT NULL AND name NOT LIKE 'words_%'"
    ).fetchall():
        if kind == "table":
            db.execute(f"DROP TABLE IF EXISTS {name}")
    for statement in (*_CREATE.split(";"), CREATE_WORDS):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")


def _same(db: sqlite3.Connection, file: BinaryIO) -> bool:
    """Whether the journal begins with what the index has read of it."""
    offset = _get(db, "offset", 0)
    return not offset or (
        _get(db, "head", b"") == _head(file, offset) and _get(db, "tail", b"") == _probe(file, offset)
    )


def _head(file: BinaryIO, offset: int) -> bytes:
    return _probe(file, min(offset, _PROBE))


def _probe(file: BinaryIO, end: int) -> bytes:
    """A hash of the bytes before a position."""
    file.seek(max(0, end - _PROBE))
    return hashlib.blake2b(file.read(min(end, _PROBE)), digest_size=16).digest()


def _state(path: Path) -> tuple[int, int]:
    """Size and time of a file; of a missing one, zeros."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _get(db: sqlite3.Connection, name: str, default: Any) -> Any:
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return row[0] if row else default


def _put(db: sqlite3.Connection, **values: Any) -> None:
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())


def _remove(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            Path(f"{file}{suffix}").unlink()
