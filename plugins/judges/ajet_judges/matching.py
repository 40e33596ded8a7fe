"""Whether a program's value or output is the expected one."""

from __future__ import annotations

import math
import re
from typing import Any

# Possessive, so that a long number takes no quadratic time.
_NUMBER = re.compile(r"(?<![\w.])([-+]?(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?+)(?![\w.])")


def same_value(actual: Any, expected: Any, tolerance: float) -> bool:
    """Whether two JSON values are equal, floats up to the tolerance. True is not 1."""
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    if isinstance(actual, float) or isinstance(expected, float):
        numbers = isinstance(actual, int | float) and isinstance(expected, int | float)
        return numbers and _near(actual, expected, tolerance)
    if isinstance(actual, list) and isinstance(expected, list):
        pairs = zip(actual, expected, strict=False)
        return len(actual) == len(expected) and all(same_value(f, e, tolerance) for f, e in pairs)
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            same_value(actual[key], value, tolerance) for key, value in expected.items()
        )
    return bool(actual == expected)


def same_output(actual: str, expected: str, tolerance: float) -> bool:
    """Whether two outputs are equal, but for white space at the ends of lines and of the text, and for decimals up to the tolerance."""
    ours, theirs = _lines(actual), _lines(expected)
    return len(ours) == len(theirs) and all(
        f == e or _same_line(f, e, tolerance) for f, e in zip(ours, theirs, strict=True)
    )


def _same_line(actual: str, expected: str, tolerance: float) -> bool:
    ours, theirs = _NUMBER.split(actual), _NUMBER.split(expected)
    if len(ours) != len(theirs):
        return False
    for i, (f, e) in enumerate(zip(ours, theirs, strict=True)):
        if f == e:
            continue
        if i % 2 == 0 or not (_is_decimal(f) or _is_decimal(e)):
            return False  # text, or two whole numbers: 007 is not 7
        if not _near(_read(f), _read(e), tolerance):
            return False
    return True


def _is_decimal(number: str) -> bool:
    return any(c in number for c in ".eE")


def _read(number: str) -> float | int:
    return float(number) if _is_decimal(number) or len(number) > 300 else int(number)


def _near(actual: float, expected: float, tolerance: float) -> bool:
    """Up to ``tolerance``, absolute and relative, as judges of contests accept it; a whole number only absolutely, and one below a
    thousandth only relatively, because 1e-34 is not 6e-34."""
    if actual == expected or (actual != actual and expected != expected):
        return True
    try:
        size = abs(float(expected))
        difference = abs(float(actual) - float(expected))
    except OverflowError:  # an integer above 1e308
        return False
    if math.isinf(size) or not size:
        return difference <= tolerance
    scale = 1.0 if isinstance(expected, int) else max(1.0, size)
    return difference <= tolerance * min(scale, 1000 * size)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
