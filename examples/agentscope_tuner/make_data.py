"""Write data/train.jsonl and data/test.jsonl: questions on differences and sums of numbers up to five.

Most are differences, which the starter model mostly answers with the sum. No question is in both files.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

WORDINGS = (
    "What is {}?",
    "How much is {}?",
    "Compute {}.",
    "{} =",
    "What does {} make?",
    "Calculate {}.",
    "Please compute {}.",
    "Can you tell me what {} is?",
)
PAIRS = [(a, b) for a in range(6) for b in range(a + 1)]


def records(held_out: bool) -> list[dict[str, str]]:
    """The questions for training, or those that are held out: a checksum of the question decides."""
    differences = [(wording.format(f"{a} - {b}"), a - b) for a, b in PAIRS for wording in WORDINGS]
    sums = [(WORDINGS[b].format(f"{a} + {b}"), a + b) for a, b in PAIRS]
    return [
        {"question": question, "answer": str(answer)}
        for question, answer in [*differences, *sums]
        if (zlib.crc32(question.encode()) % 3 == 0) is held_out
    ]


def main() -> None:
    folder = Path(__file__).resolve().parent / "data"
    folder.mkdir(exist_ok=True)
    for name, held_out in (("train", False), ("test", True)):
        text = "".join(f"{json.dumps(record)}\n" for record in records(held_out))
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
