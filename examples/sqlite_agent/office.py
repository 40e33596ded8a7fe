"""The database that the agent asks: one small table, and a tool that reads it and can do nothing else."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

COLUMNS = "id, name, floor, team, age, pay"
NAMES = [
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jan", "Kim", "Lea", "Mia", "Nora", "Otto", "Pia",
    "Quin", "Rosa", "Sam", "Tina", "Uwe", "Vera", "Walt", "Yara", "Zoe", "Amy", "Bob", "Carl", "Dora", "Emil", "Fay", "Gus",
    "Hanna", "Ivan", "Jo", "Kurt", "Lars", "Moe", "Nils", "Olga", "Paul", "Rita", "Stan", "Ted", "Ugo", "Wim", "Xenia", "Zita",
]  # fmt: skip
FLOORS, TEAMS, AGES = range(1, 8), range(1, 9), range(20, 66)
ROWS = 3
"""Rows that a statement returns at most."""
STEPS = 100_000
"""Instructions of SQLite's machine that a statement may take."""
LONGEST = 1000
"""Bytes of a statement, and of a value."""
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


def connect(number: int) -> sqlite3.Connection:
    """Database ``number``, in memory: equal numbers give equal rows. No two people have the same pay."""
    rng = random.Random(number)
    pays = rng.sample(range(200, 700), len(NAMES))
    rows = [
        (place + 1, name, rng.choice(FLOORS), rng.choice(TEAMS), rng.choice(AGES), pays[place] * 10)
        for place, name in enumerate(rng.sample(NAMES, len(NAMES)))
    ]
    database = sqlite3.connect(":memory:")
    database.execute(f"CREATE TABLE staff ({COLUMNS})")
    database.executemany("INSERT INTO staff VALUES (?, ?, ?, ?, ?, ?)", rows)
    database.commit()
    return database


def ask(number: int, sql: str) -> str:
    """What a statement finds in database ``number``, as text; for one that fails, writes or takes too long, what is wrong."""
    with closing(connect(number)) as database:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        database.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY
        )
        database.set_progress_handler(lambda: 1, STEPS)
        try:
            rows = database.execute(sql).fetchmany(ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            return f"error: {error}"
    found = "; ".join(", ".join(map(str, row)) for row in rows[:ROWS])
    return (found or "nothing") + ("; …" if len(rows) > ROWS else "")
