"""Compares mathematical expressions by math-verify, one pair per line. Run as a program, by path.

It is a separate process because sympy may never finish a short expression, and a thread cannot be stopped. It does not
import AgentJet, so only sympy's import costs time.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

SHARE = 1e-6
"""How far a decimal may be off the value of an expression, as a share of it."""
NOISE = 1e-12
"""As far as decimals are off because they are stored as floats."""


def main() -> None:
    """Print "ready". Then read lines ``{"gold": text, "answer": text, "exact": bool, "tolerance": float, "seconds": float}``, and
    answer each with ``{"gold": whether it was parsed, "equal": bool}``."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, grader, parse, verify

    theirs = grader.sympy_numeric_eq

    logging.disable(logging.CRITICAL)
    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    def is_matrix(value: Any) -> bool:
        return isinstance(value, grader.MatrixBase | grader.MatrixExpr)

    def read(text: str) -> Any:
        return parse(text, targets, parsing_timeout=None, raise_on_error=False)

    def same_number(a: Any, b: Any, *rest: Any) -> bool:
        """In the place of math-verify's, which rounds to six places, so that all small numbers are equal."""
        if any(is_matrix(x) or grader.get_pct_val(x) is not None for x in (a, b)):
            return bool(theirs(a, b, *rest))
        try:
            a, b = grader.safe_sympy_doit(a), grader.safe_sympy_doit(b)
            difference = abs((a - b).evalf(30))
            if a.is_finite is False or b.is_finite is False:
                return bool(a == b)
            share = SHARE if not request["exact"] and (a.has(grader.Float) or b.has(grader.Float)) else NOISE
            return bool(difference <= max(request["tolerance"], share * abs(a.evalf(30))))
        except (TypeError, ValueError, AttributeError):  # symbols
            return bool(a == b)

    grader.sympy_numeric_eq = same_number
    print("ready", flush=True)
    request: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # of processor time, then the process ends
        try:
            gold = read(request["gold"])
            equal = bool(gold) and verify(gold, read(request["answer"]), timeout_seconds=None)
            result = {"gold": bool(gold), "equal": bool(equal)}
        except (Exception, RecursionError):  # a model's text may break the parser in any way
            result = {"gold": True, "equal": False}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
