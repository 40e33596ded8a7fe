"""An agent that does sums with a calculator, written with the plain OpenAI SDK.

Like any program with the SDK, it uses the endpoint in OPENAI_BASE_URL and the key in OPENAI_API_KEY:

    python agent.py "What is 12 + 30 - 7?"
"""

from __future__ import annotations

import ast
import asyncio
import json
import operator
import os
import sys
from types import SimpleNamespace
from typing import Any

from openai import AsyncOpenAI

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
MAX_TURNS = 4
SYSTEM = "Solve the problem with the calculator."
CALCULATOR: Any = {
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

# One client for all questions, so connections are reused. The SDK requires a key even if the endpoint does not.
client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY") or "unset")


async def run(task: Any) -> str:
    """The agent's answer to ``task.query``."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.query},
    ]
    text = ""
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(model=MODEL, messages=messages, tools=[CALCULATOR])
        message = completion.choices[0].message
        text = message.content or ""
        if not message.tool_calls:
            break
        messages.append(message)
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": use_tool(call)})
    return text


def use_tool(call: Any) -> str:
    """The tool's result as text. If the model's call is invalid, the text is the error, so the model can correct it."""
    try:
        if call.function.name != "calculator":
            raise ValueError(f"there is no tool {call.function.name!r}")
        arguments = json.loads(call.function.arguments)
        if not isinstance(arguments, dict) or not isinstance(arguments.get("expression"), str):
            raise ValueError("the calculator needs an expression")
        return str(calculate(arguments["expression"]))
    except ValueError as error:
        return f"error: {error}"


OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def calculate(expression: str) -> int:
    """The value of integers joined by ``+ - *`` and parentheses. Raises ValueError on anything else."""
    if len(expression) > 200:
        raise ValueError("the expression is too long")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"cannot read {expression!r}") from None


def _value(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(left), _value(right))
    raise ValueError("only whole numbers, + - * and parentheses")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f'usage: python {sys.argv[0]} "What is 12 + 30 - 7?"')
    print(asyncio.run(run(SimpleNamespace(query=sys.argv[1]))))
