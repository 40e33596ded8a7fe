"""The lines of training files, checked as OpenAI checks them: the first error is told with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet import ConfigError

Line = dict[str, Any]
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_KEYS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "weight", "tool_calls", "function_call", "refusal", "audio"},
    "tool": {"role", "content", "tool_call_id", "name"},
    "function": {"role", "content", "name"},
}
"""Keys of a message by its role."""
_PARTS = {"user": ("text", "image_url"), "assistant": ("text", "refusal")}


class Bad(Exception):
    """What is wrong with a line."""


def read_lines(path: Path, check: Callable[[Line], Line]) -> Iterator[tuple[int, Line]]:
    """The number of each line and what ``check`` makes of its object. Raises ConfigError with file and line."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file.")
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, check(_object(line))
        except Bad as error:
            raise ConfigError(f"{path}:{number}: {error}") from None


def _object(line: bytes) -> Line:
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise Bad(f"not JSON ({error.msg} at column {error.colno}).") from None
    except (ValueError, RecursionError) as error:
        raise Bad(f"not JSON that can be read ({error}).") from None
    if not isinstance(value, dict):
        raise Bad("not a JSON object.")
    return value


def supervised(line: Line) -> Line:
    """A line of `supervised` as a transcript of `ajet sft`."""
    if "prompt" in line or "completion" in line:
        raise Bad("a prompt and a completion are for base models; write `messages`.")
    _only(line, {"messages", "tools", "functions", "parallel_tool_calls"})
    chat = _chat(line.get("messages"), "messages", weights=True)
    if not any(m["role"] == "assistant" and m.get("weight") != 0 for m in chat):
        raise Bad("messages: has no assistant message to learn; at least one needs a weight other than 0.")
    return {"messages": chat, **_tools(line)}


def dpo(line: Line) -> Line:
    """A line of `dpo` as a pair of `ajet dpo`."""
    _only(line, {"input", "preferred_output", "non_preferred_output"})
    given = line.get("input")
    if not isinstance(given, dict):
        raise Bad("input: must be an object with `messages`.")
    _only(given, {"messages", "tools", "parallel_tool_calls"}, "input.")
    pair: Line = {"prompt": _chat(given.get("messages"), "input.messages", weights=True)}
    for name, key in (("chosen", "preferred_output"), ("rejected", "non_preferred_output")):
        pair[name] = _chat(line.get(key), key, before=pair["prompt"])
        if not any(m["role"] == "assistant" for m in pair[name]):
            raise Bad(f"{key}: has no assistant message.")
        if any(m["role"] not in ("assistant", "tool") for m in pair[name]):
            raise Bad(f"{key}: has a message that is neither of the assistant nor of a tool.")
    if pair["chosen"] == pair["rejected"]:
        raise Bad("preferred_output and non_preferred_output are the same.")
    return {**pair, **_tools(given, "input.")}


def reinforcement(line: Line) -> Line:
    """A line of `reinforcement`, whose other keys are for the grader."""
    chat = _chat(line.get("messages"), "messages", trained=False)
    if chat[-1]["role"] not in ("user", "developer", "tool"):
        raise Bad(
            f"messages: the last one is of the {chat[-1]['role']}; it must be the user's, which the model answers."
        )
    _tools(line)
    return line


def _only(line: Mapping[str, Any], known: set[str], where: str = "") -> None:
    if unknown := [key for key in line if key not in known]:
        raise Bad(f"{where}{unknown[0]}: unknown key; known: {', '.join(sorted(known))}.")


def _chat(
    messages: Any, where: str, weights: bool = False, before: Sequence[Line] = (), trained: bool = True
) -> list[dict[str, Any]]:
    """Checked messages, with deprecated function calls as tool calls; ``trained``: in the form of a transcript."""
    if not isinstance(messages, list) or not messages:
        raise Bad(f"{where}: must be a list of messages that is not empty.")
    chat: list[Line] = []
    open_calls: list[str] = [call["id"] for m in before[-1:] for call in m.get("tool_calls") or ()]
    for index, message in enumerate(messages):
        place = f"{where}[{index}]"
        checked = _message(message, place, weights)
        if trained:
            _without_images(checked, place)
        if checked["role"] == "developer" and trained:
            checked["role"] = "system"
        if checked["role"] == "function":
            checked = {
                "role": "tool",
                "content": checked["content"],
                "tool_call_id": open_calls[0] if open_calls else "",
            }
        if checked["role"] == "tool":
            if checked["tool_call_id"] not in open_calls:
                raise Bad(f"{place}.tool_call_id: answers no call of the assistant before it.")
            open_calls.remove(checked["tool_call_id"])
        elif open_calls:
            raise Bad(f"{place}: the tool call {open_calls[0]!r} before it has no answer.")
        if legacy := checked.pop("function_call", None):
            checked["tool_calls"] = [{"id": f"call_{index}", "type": "function", "function": legacy}]
        open_calls += [call["id"] for call in checked.get("tool_calls") or ()]
        chat.append(checked)
    return chat


def _without_images(message: Line, place: str) -> None:
    if isinstance(message["content"], list) and any(p["type"] == "image_url" for p in message["content"]):
        raise Bad(
            f"{place}.content: has an image, and transcripts are trained as text alone. Leave the line out."
        )


def _message(message: Any, place: str, weights: bool) -> Line:
    if not isinstance(message, dict):
        raise Bad(f"{place}: not an object.")
    role = message.get("role")
    if not isinstance(role, str) or role not in _KEYS:
        raise Bad(f"{place}.role: {role!r} is not one of {', '.join(_KEYS)}.")
    _only(message, _KEYS[role], f"{place}.")
    kept = {key: value for key, value in message.items() if value is not None}
    if "audio" in kept:
        raise Bad(f"{place}.audio: messages for fine-tuning contain text and images only.")
    if "weight" in kept and (not weights or isinstance(kept["weight"], bool) or kept["weight"] not in (0, 1)):
        raise Bad(f"{place}.weight: must be 0 or 1" + ("." if weights else ", and has no meaning here."))
    if role == "assistant":
        _calls(kept, place)
        if not any(key in kept for key in ("content", "refusal", "tool_calls", "function_call")):
            raise Bad(f"{place}: has neither content nor tool calls.")
        kept.setdefault("content", kept.pop("refusal", None))
    elif "content" not in kept:
        raise Bad(f"{place}.content: is missing.")
    _content(kept["content"], role, place)
    if role == "tool" and not isinstance(kept.get("tool_call_id"), str):
        raise Bad(f"{place}.tool_call_id: is missing.")
    return kept


def _content(content: Any, role: str, place: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise Bad(f"{place}.content: must be a text or a list of parts.")
    kinds = _PARTS.get(role, ("text",))
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds:
            raise Bad(
                f"{place}.content[{index}].type: {kind!r} is not one of {', '.join(kinds)}, as the {role} may write."
            )


def _calls(message: Line, place: str) -> None:
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list) or ("tool_calls" in message and not calls):
        raise Bad(f"{place}.tool_calls: must be a list that is not empty.")
    functions = [(f"{place}.tool_calls[{i}]", call) for i, call in enumerate(calls)]
    for where, call in functions:
        if (
            not isinstance(call, dict)
            or call.get("type") != "function"
            or not isinstance(call.get("id"), str)
        ):
            raise Bad(f"{where}: must have an id and the type function.")
    named = [(f"{where}.function", call.get("function")) for where, call in functions]
    named += [(f"{place}.function_call", message["function_call"])] if "function_call" in message else []
    for where, function in named:
        if not isinstance(function, dict) or not _is_name(function.get("name")):
            raise Bad(f"{where}.name: must be letters, digits, _ and -, at most 64.")
        if not isinstance(function.get("arguments"), str):
            raise Bad(f"{where}.arguments: must be a text with JSON.")


def _tools(line: Mapping[str, Any], where: str = "") -> Line:
    tools = line.get("tools")
    if line.get("functions"):
        if not isinstance(line["functions"], list):
            raise Bad("functions: must be a list.")
        tools = [{"type": "function", "function": function} for function in line["functions"]]
    if tools is None:
        return {}
    if not isinstance(tools, list):
        raise Bad(f"{where}tools: must be a list.")
    for index, tool in enumerate(tools):
        place = f"{where}tools[{index}]"
        if (
            not isinstance(tool, dict)
            or tool.get("type") != "function"
            or not isinstance(tool.get("function"), dict)
        ):
            raise Bad(f"{place}: must be {{type: function, function: {{name, description, parameters}}}}.")
        if not _is_name(tool["function"].get("name")):
            raise Bad(f"{place}.function.name: must be letters, digits, _ and -, at most 64.")
        if not isinstance(tool["function"].get("parameters", {}), dict):
            raise Bad(f"{place}.function.parameters: must be a JSON schema.")
    return {"tools": tools} if tools else {}


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
