"""Write train.jsonl and validation.jsonl: sums of two and three terms, worded like reasoning-gym's `chain_sum`.

    python make_tasks.py --seed 0 --train 2000 --validation 256 --out tasks

Equal arguments write equal files. No expression occurs twice, and the two files are disjoint for all seeds, because a
hash of the expression decides whether it is for training (see `held_out`).
"""

from __future__ import annotations

import argparse
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

TERMS = (2, 3)
NUMBERS = (range(10), range(10, 100))
"""The terms of an expression all have one digit or all have two."""
DRAWS = 200_000
"""Maximum expressions to draw per number of terms; only about 16,000 different ones have two terms."""
QUESTION = "State the final answer to the following arithmetic problem: {expression} ="


def held_out(expression: str) -> bool:
    """Whether an expression is kept for validation, by a hash of its content: a quarter of all are."""
    return zlib.crc32(expression.replace(" ", "").encode()) % 4 == 0


def expressions(seed: int, terms: int) -> Iterator[dict[str, str]]:
    """Records of distinct expressions, each of one-digit or of two-digit numbers."""
    rng = random.Random(f"{seed} {terms}")
    seen = set()
    for _ in range(DRAWS):
        numbers = rng.choice(NUMBERS)
        text, value = "", 0
        for sign in ["", *rng.choices("+-", k=terms - 1)]:
            number = rng.choice(numbers)
            text += f" {sign} {number}" if sign else str(number)
            value += -number if sign == "-" else number
        if text not in seen:
            seen.add(text)
            query = QUESTION.format(expression=text)
            yield {"id": text.replace(" ", ""), "query": query, "answer": str(value)}


def make_tasks(seed: int, train: int, validation: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(train, validation) records, alternately with two and three terms. Raises ValueError if there are too few."""
    wanted = {False: train, True: validation}
    chosen: dict[bool, list[dict[str, str]]] = {}
    for held, count in wanted.items():
        sources = [
            (record for record in expressions(seed, terms) if held_out(record["id"]) is held)
            for terms in TERMS
        ]
        records: list[dict[str, str]] = []
        while len(records) < count:
            record = next(sources[len(records) % len(sources)], None)
            if record is None:
                raise ValueError(f"there are not {count} different expressions; ask for fewer")
            records.append(record)
        chosen[held] = records
    return chosen[False], chosen[True]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=2000, help="number of training tasks")
    parser.add_argument("--validation", type=int, default=256, help="number of held-out tasks")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    options = parser.parse_args()
    try:
        train, validation = make_tasks(options.seed, options.train, options.validation)
    except ValueError as error:
        parser.error(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, records in (("train", train), ("validation", validation)):
        path = options.out / f"{name}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        print(f"{path}: {len(records)} tasks")


if __name__ == "__main__":
    main()
