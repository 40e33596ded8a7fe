"""Questions about the database, and the judge of their answers.

A quarter of all questions, chosen by a checksum of their text, is held out. A third of the held-out ones are also worded as no
question of training is: their ids begin with ``new``, those of the others with ``known``.
"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

from agent import SHOWN
from office import FLOORS, NAMES, TEAMS, ask

from ajet import Task
from ajet.interfaces.reader import DrawnReader

DATABASES = 10_000
KNOWN = (
    ("How many people are on floor {floor}?", "SELECT COUNT(*) FROM staff WHERE floor = {floor}"),
    ("How many people are in team {team}?", "SELECT COUNT(*) FROM staff WHERE team = {team}"),
    (
        "How many people of team {team} are on floor {floor}?",
        "SELECT COUNT(*) FROM staff WHERE team = {team} AND floor = {floor}",
    ),
    ("How many people are older than {age}?", "SELECT COUNT(*) FROM staff WHERE age > {age}"),
    ("What is the pay of person {id}?", "SELECT pay FROM staff WHERE id = {id}"),
    ("What is the age of person {id}?", "SELECT age FROM staff WHERE id = {id}"),
    ("What is the highest pay on floor {floor}?", "SELECT MAX(pay) FROM staff WHERE floor = {floor}"),
    ("What is the lowest pay in team {team}?", "SELECT MIN(pay) FROM staff WHERE team = {team}"),
    ("What is the total pay in team {team}?", "SELECT SUM(pay) FROM staff WHERE team = {team}"),
    (
        "Who has the highest pay on floor {floor}?",
        "SELECT name FROM staff WHERE floor = {floor} ORDER BY pay DESC LIMIT 1",
    ),
    (
        "Who has the lowest pay in team {team}?",
        "SELECT name FROM staff WHERE team = {team} ORDER BY pay LIMIT 1",
    ),
)
"""Questions of training, and statements that answer them."""
NEW = (
    ("Count the people on floor {floor}.", "SELECT COUNT(*) FROM staff WHERE floor = {floor}"),
    ("How many people have an age above {age}?", "SELECT COUNT(*) FROM staff WHERE age > {age}"),
    ("What does person {id} earn?", "SELECT pay FROM staff WHERE id = {id}"),
    ("What do all people in team {team} earn together?", "SELECT SUM(pay) FROM staff WHERE team = {team}"),
    (
        "Which person on floor {floor} earns most?",
        "SELECT name FROM staff WHERE floor = {floor} ORDER BY pay DESC LIMIT 1",
    ),
)
"""Held-out wordings."""
VALUE = re.compile(rf"\b(?:\d+|{'|'.join(NAMES)})\b")
"""What may be the answer of a question."""


class Questions(DrawnReader):
    """Questions for training, or held-out ones."""

    name = "questions"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        kind = "new" if self.held_out and rng.random() < 1 / 3 else "known"
        while True:
            question, sql = rng.choice(NEW if kind == "new" else KNOWN)
            words = {
                "id": rng.randint(1, len(NAMES)),
                "floor": rng.choice(FLOORS),
                "team": rng.choice(TEAMS),
                "age": rng.randint(25, 60),
            }
            query, database = question.format(**words), rng.randrange(DATABASES)
            digest = zlib.crc32(query.encode())
            answer = ask(database, sql.format(**words))
            held_out = kind == "new" or digest % 4 == 0
            plain = VALUE.fullmatch(answer) and answer != "0" and answer not in VALUE.findall(query)
            if held_out == self.held_out and plain and query not in SHOWN:
                metadata = {"answer": answer, "database": database}
                return Task(f"{kind}-{digest:08x}-{database}", query, metadata=metadata)


def judge(task: Any, output: Any, episode: Any) -> float:
    """1/2 if a query finds the right value, in one row; 1 if also the answer gives it, and no other one that isn't in the question."""
    answer, asked = task.metadata["answer"], set(VALUE.findall(task.query))
    results = [m["content"] for chat in episode.messages for m in chat if m["role"] == "tool"]
    if not any(answer in VALUE.findall(result) and ";" not in result for result in results):
        return 0.0
    return 1.0 if set(VALUE.findall(output.response)) - asked == {answer} else 0.5
