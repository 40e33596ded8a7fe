"""An agent that solves word problems with a calculator, written with the plain OpenAI SDK.

It shows the model three solved problems: a small model follows what it is shown, not what is described to it.

    OPENAI_BASE_URL=… OPENAI_API_KEY=… python agent.py "Ada has 300 stamps and buys 25 more. How many does she have?"
"""

from __future__ import annotations

import ast
import asyncio
import operator
import os
import re
import sys
from types import SimpleNamespace
from typing import Any

from openai import AsyncOpenAI

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
LONGEST_SUM, LONGEST_NUMBER = 20, 8
"""Tokens of the two answers. A model that begins to ramble costs no more than these."""
OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
SUM = re.compile(r"CALC\(([-+*/\d. ]{1,60})\)")
SHOWN: list[Any] = [
    {"role": "system", "content": "You solve problems with a calculator. Write CALC(expression)."},
    {"role": "user", "content": "Sue has 310 shells and finds 25 more. How many shells does she have?"},
    {"role": "assistant", "content": "CALC(310+25)"},
    {"role": "user", "content": "335\nNow write only the answer."},
    {"role": "assistant", "content": "335"},
    {"role": "user", "content": "Pete packs 4 bags of 12 nails and uses 5. How many nails are left?"},
    {"role": "assistant", "content": "CALC(4*12-5)"},
    {"role": "user", "content": "43\nNow write only the answer."},
    {"role": "assistant", "content": "43"},
    {
        "role": "user",
        "content": "A library had 210 maps. It lost 14 and got 35 new ones. How many maps are there?",
    },
    {"role": "assistant", "content": "CALC(210-14+35)"},
    {"role": "user", "content": "231\nNow write only the answer."},
    {"role": "assistant", "content": "231"},
]

# One client for all problems, so connections are reused. The SDK requires a key even if the endpoint does not.
client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY") or "unset")


async def run(task: Any) -> str:
    """The agent's answer to ``task.query``."""
    messages = [*SHOWN, {"role": "user", "content": task.query}]
    said = await ask(messages, LONGEST_SUM)
    call = SUM.search(said)
    if call is None:
        return said
    messages += [
        {"role": "assistant", "content": said},
        {"role": "user", "content": f"{calculate(call[1])}\nNow write only the answer."},
    ]
    return await ask(messages, LONGEST_NUMBER)


async def ask(messages: list[Any], longest: int) -> str:
    """The model's answer to a chat."""
    completion = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=longest)
    return completion.choices[0].message.content or ""


def calculate(expression: str) -> str:
    """The value of numbers joined by ``+ - * /``; for anything else what is wrong, so that the model can read it."""
    try:
        return f"{_value(ast.parse(expression.strip(), mode='eval').body):.12g}"
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError) as error:
        return f"error: {type(error).__name__}"


def _value(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int(number)) | ast.Constant(value=float(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return float(OPERATORS[type(sign)](_value(left), _value(right)))
    raise ValueError("only numbers and + - * /")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            f'usage: python {sys.argv[0]} "Ada has 300 stamps and buys 25 more. How many does she have?"'
        )
    print(asyncio.run(run(SimpleNamespace(query=sys.argv[1]))))
