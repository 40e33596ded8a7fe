"""An agent that answers with one call of a function, written with the plain OpenAI SDK.

The functions stand in its prompt as Python would declare them: that is shorter than their JSON, and the model has read Python before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
LONGEST = 64
"""Tokens of an answer."""
SYSTEM = "Answer with one Python call of one of these functions, with keyword arguments.\n\n"
TYPES = {"string": "str", "integer": "int", "boolean": "bool", "array": "list", "any": "object"}

# One client for all questions, so connections are reused. The SDK requires a key even if the endpoint does not.
client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY") or "unset")


async def run(task: Any) -> str:
    """The call that answers ``task.query`` with one of the functions in ``task.metadata["functions"]``."""
    messages: Any = prompt(task.query, task.metadata["functions"])
    completion = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=LONGEST)
    return completion.choices[0].message.content or ""


def prompt(query: str, functions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages for a question."""
    return [
        {"role": "system", "content": SYSTEM + "\n\n".join(map(declared, functions))},
        {"role": "user", "content": query},
    ]


def declared(function: Mapping[str, Any]) -> str:
    """A function of the benchmark, whose parameters are described by a JSON schema, as a declaration in Python."""
    schema = function["parameters"]
    parameters = [
        f"{name}: {typed(about)}" + ("" if name in schema["required"] else f" = {about.get('default')!r}")
        for name, about in schema["properties"].items()
    ]
    lines = [f"def {function['name']}({', '.join(parameters)}):", f"    # {function['description']}"]
    for name, about in schema["properties"].items():
        choices = about.get("enum") or about.get("items", {}).get("enum")
        one_of = f" One of {', '.join(map(repr, choices))}." if choices else ""
        lines.append(f"    # {name}: {about['description']}{one_of}")
    return "\n".join(lines)


def typed(about: Mapping[str, Any]) -> str:
    """A type as Python writes it: ``list[str]``."""
    name = TYPES.get(about["type"], about["type"])
    return f"{name}[{typed(about['items'])}]" if "items" in about else name
