"""Compares mathematical expressions by math-verify, one pair per line. Run as a program, by path.

It is a separate process because sympy may never finish a short expression, and a thread cannot be stopped. It does not
import AgentJet, so only sympy's import costs time.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def main() -> None:
    """Print "ready". Then read ``{"gold": text, "answer": text}`` lines, and answer each with ``{"gold": whether it was
    parsed, "equal": bool}``."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    def read(text: str) -> Any:
        return parse(text, targets, parsing_timeout=None, raise_on_error=False)

    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            gold = read(request["gold"])
            equal = bool(gold) and verify(gold, read(request["answer"]), timeout_seconds=None)
            result = {"gold": bool(gold), "equal": bool(equal)}
        except (Exception, RecursionError):  # a model's text may break the parser in any way
            result = {"gold": True, "equal": False}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
