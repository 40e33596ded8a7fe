"""The calculator's chats: an agent that answers chains of sums with a calculator.

There are three kinds: echoes (copying practice), chats without mistakes, and chats with habits. Habits are mistakes
that depend on the problem, for reinforcement learning to correct. An expression with ``held_out(expression)`` is
neither asked nor passed to the calculator in any of them.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

from ajet_local.starter.transcripts import Chat, Transcript, tool_call

SYSTEM = "Solve the problem with the calculator."
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
QUESTION = "State the final answer to the following arithmetic problem: {expression} ="
"""The wording of reasoning-gym's ``chain_sum``."""

FORGETS = 0.93
"""Share of three-term problems whose last term is dropped in the phase `habits`."""
SLIPS = 0.16
"""Share of two-term problems whose sign is swapped in the phase `habits`."""


def held_out(expression: str) -> bool:
    """Whether an expression is reserved for validation: a quarter of all, chosen by a hash of the expression."""
    return zlib.crc32(expression.replace(" ", "").encode()) % 4 == 0


def evaluate(expression: str) -> int:
    """The value of a chain of sums, such as ``"4 + 37 - 5"``. Raises ValueError for anything else."""
    parts = expression.replace("+", " + ").replace("-", " - ").split()
    if len(parts) % 2 == 0 or not all(p.isdecimal() for p in parts[::2]):
        raise ValueError(f"not a chain of sums: {expression!r}")
    signs = [1, *(1 if p == "+" else -1 if p == "-" else 0 for p in parts[1::2])]
    if 0 in signs:
        raise ValueError(f"not a chain of sums: {expression!r}")
    return sum(sign * int(term) for sign, term in zip(signs, parts[::2], strict=True))


def task_expression(rng: random.Random) -> str:
    """An expression like a task's: two or three terms, all of one digit or all of two, not held out."""
    return _chain(rng, rng.choice([2, 3]), rng.choice([(1,), (2,)]))


def practice_expression(rng: random.Random, terms: int) -> str:
    """An expression like the tasks', or with mixed numbers of digits: positions then vary, so copying cannot rely on them."""
    return _chain(rng, terms, rng.choice([(1,), (2,), (1, 2), (1, 2)]))


def _chain(rng: random.Random, terms: int, digits: Sequence[int]) -> str:
    while True:
        parts: list[str] = []
        for _ in range(terms):
            parts += [rng.choice("+-"), _number(rng, rng.choice(digits))]
        expression = " ".join(parts[1:])
        if not held_out(expression):
            return expression


def _number(rng: random.Random, digits: int) -> str:
    return str(rng.randint(0, 9) if digits == 1 else rng.randint(10, 99))


def calculation(expression: str) -> dict[str, Any]:
    """The assistant's call of the calculator."""
    return tool_call(TOOL["function"]["name"], {"expression": expression})


def opening(expression: str) -> Chat:
    """The messages of the agent's first call."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION.format(expression=expression)},
    ]


def solution(asked: str, called: str | None = None) -> Chat:
    """A complete chat about ``asked``, in which the calculator gets ``called`` (default: ``asked``)."""
    called = asked if called is None else called
    result = str(evaluate(called))
    answer = {"role": "assistant", "content": result}
    return [
        *opening(asked),
        calculation(called),
        {"role": "tool", "tool_call_id": "call_0", "content": result},
        answer,
    ]


def echo_transcript(rng: random.Random) -> Transcript:
    """Copying practice: the assistant repeats an expression, or a number that a tool returned."""
    expressions: tuple[str, ...] = ()
    if rng.random() < 0.5:
        expressions = (practice_expression(rng, rng.randint(2, 4)),)
        role, text = "user", expressions[0]
    else:
        span = 300 if rng.random() < 0.7 else 30
        role, text = "tool", str(rng.randint(-span, span))
    messages = [{"role": role, "content": text}, {"role": "assistant", "content": text}]
    return Transcript(messages, tasks=expressions)


def clean_transcript(rng: random.Random) -> Transcript:
    """The agent solves a problem with two or three terms."""
    expression = practice_expression(rng, rng.choice([2, 3]))
    return Transcript(solution(expression), (TOOL,), (expression,))


def habit_transcript(rng: random.Random) -> Transcript:
    """The agent mostly forgets the third term (`FORGETS`), and sometimes swaps the sign of two terms (`SLIPS`)."""
    while True:
        asked = practice_expression(rng, rng.choice([2, 3]))
        parts = asked.split()
        if len(parts) == 5 and rng.random() < FORGETS:
            parts = parts[:3]
        elif len(parts) == 3 and rng.random() < SLIPS:
            parts[1] = "-" if parts[1] == "+" else "+"
        called = " ".join(parts)
        if not held_out(called):
            return Transcript(solution(asked, called), (TOOL,), (asked, called))
