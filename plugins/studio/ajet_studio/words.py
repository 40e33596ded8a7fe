"""Full-text search: which episodes contain some words, and where.

SQLite's FTS5 keeps the words of messages, responses and task ids, without the texts: those are read from the journal for
the page of results that is shown. Chinese, Japanese and Korean have no spaces, so each of their characters is a word.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ajet_studio.lines import NotALine, Words, parse_words

CREATE_WORDS = """CREATE VIRTUAL TABLE words USING fts5(
    text, content = '', columnsize = 0, tokenize = 'unicode61 remove_diacritics 0')"""
BATCH = 16 << 20
"""Bytes of the journal that one transaction covers."""
AROUND = 80
"""Characters of an excerpt before and after what was found."""
_CJK = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_EACH = re.compile(f"([{_CJK}])")
_TERM = re.compile(r'"([^"]*)"?|(\S+)')
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_ROLES = {"assistant": "answer"}


def words_done(db: sqlite3.Connection) -> int:
    """The end of the part of the journal whose words are in the index."""
    row = db.execute("SELECT value FROM meta WHERE name = 'words_offset'").fetchone()
    return row[0] if row else 0


def add_words(db: sqlite3.Connection, journal: Path) -> bool:
    """Add the words of the next lines that the index has; returns whether there were any."""
    done = words_done(db)
    db.execute("BEGIN IMMEDIATE")
    end = db.execute("SELECT value FROM meta WHERE name = 'offset'").fetchone()
    if not end or done >= end[0]:
        db.execute("COMMIT")
        return False
    rows = db.execute(
        "SELECT line, offset, length FROM episodes WHERE offset >= ? AND offset < ? ORDER BY line",
        (done, done + BATCH),
    ).fetchall()
    with journal.open("rb") as file:
        db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", _found(file, rows))
    upto = max([done + BATCH, *(offset + length for _, offset, length in rows[-1:])])
    db.execute("INSERT OR REPLACE INTO meta VALUES ('words_offset', ?)", (min(upto, end[0]),))
    db.execute("COMMIT")
    return True


def matching(query: str) -> str:
    """A query of FTS5 for episodes that contain all words of ``query``, or longer words that begin with them; words in
    quotes are found in this order only. Empty if there is no word in it."""
    terms = []
    for quoted, plain in _TERM.findall(query):
        words = _WORD.findall(quoted or plain)
        if words:
            terms.append(f'"{" ".join(words)}"' + ("" if quoted else "*"))
    return " AND ".join(terms)


def excerpt(words: Words, query: str) -> tuple[str, str, tuple[int, int]]:
    """The first place of a text where a word of the query is, the one with most of them first: where it is, the text
    around it, and its start and length in that text."""
    patterns = [_pattern(quoted or plain, bool(quoted)) for quoted, plain in _TERM.findall(query)]
    wanted = [pattern for pattern in patterns if pattern is not None]
    best: tuple[int, str, str, re.Match[str]] | None = None
    for where, text in texts(words):
        matches = [match for pattern in wanted if (match := pattern.search(text))]
        if matches and (best is None or len(matches) > best[0]):
            best = len(matches), where, text, matches[0]
    if best is None:
        where, text = next(iter(texts(words)), ("task", ""))
        return where, text[: 2 * AROUND], (0, 0)
    _, where, text, match = best
    start = max(0, match.start() - AROUND)
    length = min(match.end() - match.start(), 4 * AROUND)
    return where, text[start : match.start() + length + AROUND], (match.start() - start, length)


def texts(words: Words) -> Iterator[tuple[str, str]]:
    """The texts of an episode, each with where it is: task, system, user, answer, reasoning, tool, response."""
    for rows in words.chats.values():
        for _, message in rows:
            where = _ROLES.get(message.role, message.role)
            for name, value in ((where, message.content), ("reasoning", message.reasoning_content)):
                if value:
                    yield name, _text(value)
            if message.tool_calls:
                yield where, _text(message.tool_calls)
    if words.response is not None:
        yield "response", _text(words.response)
    yield "task", words.task


def _found(file: Any, rows: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, str]]:
    for line, offset, length in rows:
        file.seek(offset)
        try:
            parsed = parse_words(file.read(length))
        except NotALine:
            continue
        text = "\n".join(text for _, text in texts(parsed))
        yield line, text if text.isascii() else _EACH.sub(r" \1 ", text).encode("utf-8", "replace").decode()


def _text(value: Any) -> str:
    """Text as it is; the texts of a list of parts; anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in value
    ):
        return "\n".join(part["text"] for part in value)
    return json.dumps(value, ensure_ascii=False)


def _pattern(term: str, whole: bool) -> re.Pattern[str] | None:
    """Finds what `matching` finds for a term."""
    words = _WORD.findall(term)
    if not words:
        return None
    before = "" if _EACH.match(words[0]) else r"(?<![^\W_])"
    after = r"(?![^\W_])" if whole and not _EACH.match(words[-1]) else ""
    return re.compile(before + r"[\W_]*".join(map(re.escape, words)) + after, re.IGNORECASE)
