"""Compares mathematical expressions by math-verify, a pair a line: run as a program, by path.

It is a process of its own, as sympy can think about a short expression for ever, and a thread cannot be
stopped. It imports nothing of ours, so that it starts as fast as sympy does.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def main() -> None:
    """Say "ready"; then read ``{"gold", "answer"}`` a line and write ``{"gold": was it read, "equal"}`` a line."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    def read(text: str) -> Any:
        return parse(text, targets, parsing_timeout=None, raise_on_error=False)

    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            gold = read(asked["gold"])
            equal = bool(gold) and verify(gold, read(asked["answer"]), timeout_seconds=None)
            said = {"gold": bool(gold), "equal": bool(equal)}
        except (Exception, RecursionError):  # what a model wrote may break the parser in any way
            said = {"gold": True, "equal": False}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
