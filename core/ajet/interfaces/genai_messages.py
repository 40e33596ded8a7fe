"""Messages of chat completions as OpenTelemetry's conventions for generative AI write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Part = Mapping[str, Any]


def written(messages: Sequence[Message], **fields: Any) -> str:
    """Messages as the JSON text of ``gen_ai.input.messages``; ``fields`` are added to each."""
    items = [{"role": m.get("role", "user"), "parts": list(_parts(m)), **fields} for m in messages]
    return json.dumps(items, ensure_ascii=False, default=str)


def tool_calls(message: Message) -> Iterator[tuple[str, str, Any]]:
    """(id, name, arguments) of each tool call in an answer. Arguments are an object where their text is JSON."""
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield str(call.get("id") or ""), str(function.get("name") or ""), _loaded(function.get("arguments"))


def _parts(message: Message) -> Iterator[Part]:
    if message.get("role") == "tool":
        answered = str(message.get("tool_call_id") or "")
        yield {"type": "tool_call_response", "id": answered, "response": message.get("content") or ""}
        return
    if message.get("reasoning_content"):
        yield {"type": "reasoning", "content": message["reasoning_content"]}
    content = message.get("content") or ()
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        yield {"type": "text", "content": part["text"]} if "text" in part else part
    for identity, name, arguments in tool_calls(message):
        yield {"type": "tool_call", "id": identity, "name": name, "arguments": arguments}


def _loaded(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments
