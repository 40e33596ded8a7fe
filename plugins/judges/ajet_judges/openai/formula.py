"""The formulas of `multi` graders: numbers, names of graders, ``+ - * / ^``, brackets and a few functions.

A formula is turned into postfix order once (the shunting yard), so neither reading nor computing it recurses, however long it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
}
_SEVERAL = ("max", "min")
"""Functions of any number of values."""
_BINARY: Mapping[str, tuple[int, Callable[[float, float], float]]] = {
    "+": (1, lambda a, b: a + b),
    "-": (1, lambda a, b: a - b),
    "*": (2, lambda a, b: a * b),
    "/": (2, lambda a, b: a / b),
    "^": (4, math.pow),
}
"""Operators with their rank; the sign of a number ranks 3, so that -2 ^ 2 is -4."""
_SIGN = 3
_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)|([A-Za-z_]\w*)|([-+*/^(),]))")


class Formula:
    """A formula over named values."""

    def __init__(self, text: str, names: Collection[str]) -> None:
        """Raises ValueError for what is not a formula over these names."""
        self._program: list[tuple[str, Any]] = []
        self._stack: list[tuple[str, Any]] = []
        before = "("
        """The token before: a value is due after an operator, a comma or an opening bracket."""
        tokens = _tokens(text, names)
        for place, (kind, token) in enumerate(tokens):
            due = before in ("(", ",", "op", "function")
            if kind in ("number", "name"):
                _expect(due, text, token)
                self._program.append((kind, token))
                before = "value"
            elif kind == "function":
                _expect(due and tokens[place + 1 : place + 2] == [("op", "(")], text, token)
                self._stack.append(("function", token))
                before = "function"
            elif token == "(":
                _expect(due, text, token)
                self._stack.append(("(", 1))
                before = "("
            elif token in ",)":
                _expect(not due, text, token)
                self._to_bracket(text, token)
                before = "," if token == "," else "value"
            elif due:
                _expect(token in "+-" and before != "function", text, token)
                self._stack.append(("sign", token))
                before = "op"
            else:
                self._operator(token)
                before = "op"
        _expect(before == "value", text, "the end")
        while self._stack:
            kind, token = self._stack.pop()
            _expect(kind != "(", text, "(")
            self._program.append((kind, token))

    def _operator(self, token: str) -> None:
        rank = _BINARY[token][0]
        while self._stack and self._stack[-1][0] in ("op", "sign"):
            kind, other = self._stack[-1]
            above = _SIGN if kind == "sign" else _BINARY[other][0]
            if above < rank or (above == rank and token == "^"):
                break
            self._program.append(self._stack.pop())
        self._stack.append(("op", token))

    def _to_bracket(self, text: str, token: str) -> None:
        """Write what stands on the stack since the last opening bracket, and for a closing one its function."""
        while self._stack and self._stack[-1][0] != "(":
            self._program.append(self._stack.pop())
        _expect(bool(self._stack), text, token)
        _, count = self._stack.pop()
        of_function = bool(self._stack) and self._stack[-1][0] == "function"
        if token == ",":
            _expect(of_function and self._stack[-1][1] in _SEVERAL, text, token)
            self._stack.append(("(", count + 1))
        elif of_function:
            self._program.append(("call", (self._stack.pop()[1], count)))

    def __call__(self, values: Mapping[str, float]) -> float:
        """The value. Raises ArithmeticError or ValueError where there is none, as for 1 / 0 or sqrt(-1)."""
        stack: list[float] = []
        for kind, token in self._program:
            if kind == "number":
                stack.append(token)
            elif kind == "name":
                stack.append(values[token])
            elif kind == "sign":
                stack.append(-stack.pop() if token == "-" else stack.pop())
            elif kind == "call":
                name, count = token
                given = [stack.pop() for _ in range(count)]
                stack.append(
                    float(FUNCTIONS[name](*given) if len(given) > 1 or name not in _SEVERAL else given[0])
                )
            else:
                right = stack.pop()
                stack.append(_BINARY[token][1](stack.pop(), right))
        (value,) = stack
        if not math.isfinite(value):
            raise ValueError("not a finite number")
        return value


def _tokens(text: str, names: Collection[str]) -> list[tuple[str, Any]]:
    tokens: list[tuple[str, Any]] = []
    text, at = text.rstrip(), 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"{text[at : at + 20].strip()!r} is not part of a formula")
        number, name, op = token.groups()
        if number:
            tokens.append(("number", float(number)))
        elif op:
            tokens.append(("op", op))
        elif name in names:
            tokens.append(("name", name))
        elif name in FUNCTIONS:
            tokens.append(("function", name))
        else:
            known = f"graders: {', '.join(names)}; functions: {', '.join(FUNCTIONS)}"
            raise ValueError(f"{name!r} is neither a grader nor a function. {known}")
        at = token.end()
    return tokens


def _expect(holds: bool, text: str, token: Any) -> None:
    if not holds:
        raise ValueError(f"{text[:80]!r} is not a formula: {token} stands where it cannot")
