"""What a model does with an agent's tools before anything is trained: one answer to each request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ajet.capture.json_schema import make_schema
from ajet.chat.messages import normalise_tools
from ajet.chat.renderer import TAIL, Chat
from ajet.interfaces.engine import Engine
from ajet.interfaces.helpers import nearest
from ajet.types import AjetError, ConfigError, GenerateRequest, Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """What a user says, and the tool that it needs if that is known."""

    text: str
    tool: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the model answered: its first call, else text."""

    request: Request
    text: str
    called: str = ""
    arguments: str = ""
    """As JSON."""
    fault: str = ""
    """What is wrong with the call, or why there is none."""

    @property
    def right_tool(self) -> bool:
        """Whether it calls the tool that the request needs, or any if that is not known."""
        return bool(self.called) and self.request.tool in ("", self.called)


def read_tools(path: Path) -> tuple[list[dict[str, Any]], list[Request]]:
    """The tools of a JSON file, a list or ``{"tools": […], "requests": […]}``, and its requests, each a text or ``{"request": text,
    "tool": name}``. Without requests, one is made of each tool's description. Raises ConfigError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tools {path}", f"cannot be read as JSON ({error}).") from None
    given = content if isinstance(content, dict) else {"tools": content}
    listed, asked = given.get("tools"), given.get("requests") or []
    if not (isinstance(listed, list) and listed and isinstance(asked, list)):
        raise ConfigError(f"--tools {path}", 'has no tools: give a list, or {"tools": […], "requests": […]}.')
    try:
        tools = normalise_tools(listed)
        for tool in tools:
            if not isinstance(tool["function"]["parameters"], dict):
                raise AjetError(f"the parameters of {tool['function']['name']} are not a JSON schema")
            make_schema(tool["function"]["parameters"])
        requests = [
            Request(r) if isinstance(r, str) else Request(r["request"], r.get("tool", "")) for r in asked
        ]
    except AjetError as error:
        raise ConfigError(f"--tools {path}", f"{str(error).rstrip('.')}.") from None
    except (TypeError, KeyError):
        raise ConfigError(
            f"--tools {path}", 'a request is a text or {"request": text, "tool": name}.'
        ) from None
    names = [tool["function"]["name"] for tool in tools]
    for request in requests:
        if request.tool and request.tool not in names:
            fault = (
                f"a request needs {request.tool!r}, which is none of its tools{nearest(request.tool, names)}."
            )
            raise ConfigError(f"--tools {path}", fault)
    return tools, requests or [simple_request(tool["function"]) for tool in tools]


def simple_request(function: Mapping[str, Any]) -> Request:
    """A request made of what a tool says of itself, with a value for each parameter that it requires."""
    properties = function["parameters"].get("properties", {})
    values = [
        f"{key}: {_example(properties.get(key, {}))}" for key in function["parameters"].get("required", ())
    ]
    asked = str(function.get("description") or f"Use {function['name']}").rstrip(".")
    return Request(f"{asked}, please{' (' + ', '.join(values) + ')' if values else ''}.", function["name"])


def _example(schema: Mapping[str, Any] | bool) -> str:
    if isinstance(schema, bool):  # any value, or none
        return "example"
    for key in ("example", "default"):
        if key in schema:
            return str(schema[key])
    for key in ("examples", "enum"):
        if schema.get(key):
            return str(schema[key][0])
    return {"integer": "3", "number": "2.5", "boolean": "true", "array": "[]"}.get(
        str(schema.get("type")), "example"
    )


async def attempts(
    engine: Engine,
    chat: Chat,
    tools: Sequence[Mapping[str, Any]],
    requests: Sequence[Request],
    sampling: Sampling,
) -> list[Attempt]:
    """One answer to each request. Raises AjetError if the model's chats cannot have tools."""
    if chat.calls_fault or not chat.shows_tools:
        reason = chat.calls_fault or "its chat template does not write tools; --tool-prompt hermes does."
        raise AjetError(f"the model {chat.name}", reason)
    await engine.start()
    try:
        return await asyncio.gather(
            *(_attempt(engine, chat, tools, request, sampling) for request in requests)
        )
    finally:
        await engine.close()


async def _attempt(
    engine: Engine, chat: Chat, tools: Sequence[Mapping[str, Any]], request: Request, sampling: Sampling
) -> Attempt:
    prompt = chat.render([{"role": "user", "content": request.text}], tools)
    answer = await engine.generate(GenerateRequest(np.array(prompt, dtype=np.int32), sampling))
    ids = answer.token_ids.tolist()
    parsed = chat.parse(ids, prompt[-TAIL:], tools)
    if not parsed.tool_calls:
        why = (
            "its call cannot be read"
            if parsed.malformed
            else "calls an unknown tool"
            if parsed.counts
            else "calls no tool"
        )
        return Attempt(request, " ".join(chat.text(ids).split()), fault=why)
    name, arguments = parsed.tool_calls[0]
    schema = next(tool["function"]["parameters"] for tool in tools if tool["function"]["name"] == name)
    given = json.loads(arguments)
    mismatch = make_schema(schema).fault(given)
    fault = ": ".join(mismatch) if mismatch else ""
    if not fault and "properties" in schema and "additionalProperties" not in schema:
        unknown = [key for key in given if key not in schema["properties"]]
        fault = f"no such parameter: {', '.join(unknown)}" if unknown else ""
    if request.tool not in ("", name):
        fault = f"another tool than {request.tool}"
    return Attempt(request, "", name, arguments, fault)
