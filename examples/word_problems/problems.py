"""Word problems of one or two steps, and the judge of their answers.

A quarter of all problems, chosen by a checksum of their text, is held out. A third of the held-out ones have sentence
patterns that never occur in training, either: their ids begin with ``new``, those of the others with ``known``.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from typing import Any

from ajet import Task
from ajet.interfaces.reader import DrawnReader

NAMES = ["Tom", "Ada", "Max", "Lea", "Ben", "Eva", "Jan", "Kim", "Ida", "Hugo", "Nora", "Otto"]
THINGS = ["apples", "books", "stamps", "coins", "tickets", "bottles", "pencils", "cards", "eggs", "bricks"]
Answer = Callable[[int, int, int, int, int], int]
"""(hundreds, up to 300, up to 99, up to 60, up to 30) -> the answer."""

KNOWN: tuple[tuple[str, Answer], ...] = (
    ("{n} has {a} {t} and buys {b} more. How many {t} does {n} have now?", lambda a, b, c, s, k: a + b),
    ("A box holds {s} {t}. How many {t} are in {k} boxes?", lambda a, b, c, s, k: s * k),
    ("{n} had {a} {t} and sold {b}. How many {t} are left?", lambda a, b, c, s, k: a - b),
    (
        "{n} has {a} {t}, buys {b} more and gives {c} away. How many {t} does {n} have now?",
        lambda a, b, c, s, k: a + b - c,
    ),
    (
        "A box holds {s} {t}. {n} has {k} boxes and {c} {t} more. How many {t} does {n} have?",
        lambda a, b, c, s, k: s * k + c,
    ),
    (
        "{n} had {a} {t}, sold {b} on Monday and {c} on Tuesday. How many are left?",
        lambda a, b, c, s, k: a - b - c,
    ),
    (
        "{n} buys {k} {t} for {s} euros each and pays {c} euros for delivery. What does it cost?",
        lambda a, b, c, s, k: s * k + c,
    ),
    (
        "A shop had {a} {t}. It sold {c} and got {b} new ones. How many {t} are there?",
        lambda a, b, c, s, k: a - c + b,
    ),
)
NEW: tuple[tuple[str, Answer], ...] = (
    (
        "{n} picked {a} {t}, lost {c} of them and then found {b} more. How many {t} are there?",
        lambda a, b, c, s, k: a - c + b,
    ),
    (
        "Each of {k} shelves holds {s} {t}, and {c} {t} lie on the floor. How many {t} is that?",
        lambda a, b, c, s, k: s * k + c,
    ),
    ("Of {a} {t}, {b} were lost. How many {t} does {n} still have?", lambda a, b, c, s, k: a - b),
)


class Problems(DrawnReader):
    """Problems for training, or held-out ones."""

    name = "word_problems"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        while True:
            is_new = self.held_out and rng.random() < 1 / 3
            pattern, answer = rng.choice(NEW if is_new else KNOWN)
            a, b, c = rng.randint(500, 999), rng.randint(100, 300), rng.randint(10, 99)
            s, k = rng.randint(12, 60), rng.randint(3, 30)
            query = pattern.format(n=rng.choice(NAMES), t=rng.choice(THINGS), a=a, b=b, c=c, s=s, k=k)
            if (zlib.crc32(query.encode()) % 4 == 0) == self.held_out:
                kind = "new" if is_new else "known"
                metadata = {"answer": str(answer(a, b, c, s, k)), "pattern": kind}
                return Task(f"{kind}-{zlib.crc32(query.encode()):08x}", query, metadata=metadata)


def judge(task: Any, output: Any) -> float:
    """1 if the last number of the answer is right, else 0."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", output.response.replace(",", ""))
    return float(numbers[-1:] == [task.metadata["answer"]])
