"""What the page shows of a search: the episodes, each with the place where the words are."""

from __future__ import annotations

from typing import Any

from ajet_studio.answers import missing, wrong
from ajet_studio.lines import NotALine, parse_words
from ajet_studio.opened import OpenRun
from ajet_studio.view_episodes import query_of
from ajet_studio.words import excerpt, matching

MOST_ROWS = 100


def search(run: OpenRun, query: str, offset: int, limit: int) -> dict[str, Any]:
    """Episodes that contain the words of a query, the latest first."""
    wanted = matching(query)
    if not wanted:
        raise wrong("q: write at least one word to search for")
    complete = run.index.update(words=True)
    clause = "FROM episodes JOIN words ON words.rowid = episodes.line WHERE words MATCH ?"
    with run.index.reading() as db:
        total = db.execute(f"SELECT count(*) {clause}", (wanted,)).fetchone()[0]
        rows = db.execute(
            f"SELECT episodes.* {clause} ORDER BY line DESC LIMIT ? OFFSET ?",
            (wanted, min(limit, MOST_ROWS), offset),
        ).fetchall()
    shown = []
    for row in rows:
        try:
            where, text, at = excerpt(parse_words(run.index.line(row["offset"], row["length"])), query)
        except NotALine:
            continue
        except OSError as error:
            raise missing(f"{run.name}: {error.strerror}; the run folder was deleted") from None
        known = {name: row[name] for name in ("id", "phase", "step", "task", "reward")}
        shown.append({**known, "query": query_of(run, row), "where": where, "excerpt": text, "at": at})
    done = run.index.words_progress() * run.index.progress()
    return {"total": total, "rows": shown, "indexed": 1.0 if complete else done}
