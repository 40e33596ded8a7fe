"""Chat messages as clients send them: their normal form, and when two of them are the same.

Everything behind the wires reads the normal form: no empty fields, tool-call arguments as JSON text, and content as
text or, in a message with images, as a list of parts. It shares nothing with the client's objects and never changes them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from ajet.types import AjetError

Message = Mapping[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text")
REF = re.compile(r"sha256:[0-9a-f]{64}")
"""The form of a reference to an image."""
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)


class BadMessage(AjetError):
    """A message or tool that cannot be passed to a model here. ``code`` is the machine-readable reason."""

    def __init__(self, reason: str, code: str = "invalid_request") -> None:
        super().__init__(reason)
        self.code = code


# --------------------------------------------------------------------------- normal form


def normalise(message: Message, index: int) -> dict[str, Any]:
    """A message in its normal form: ``role`` (a developer is a system), ``content``, and where they are not empty ``name``,
    ``tool_call_id``, ``reasoning_content`` and ``tool_calls`` (``[{id, type, function: {name, arguments}}]``, arguments as JSON
    text). The content is text, or in a message with images a list of ``{"type": "text", "text": ...}`` and
    ``{"type": "image", "image": "sha256:..."}``.

    ``index`` is its index in the request, for errors. Raises BadMessage: ``unsupported_content`` for a
    part that is neither text nor an image and for reasoning that is not text, ``invalid_request`` for everything else.
    """
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise BadMessage(f"{where} must be an object")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadMessage(f"{where}.role is {role!r}; known: {', '.join(_ROLES)}")
    plain: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": _content(message.get("content"), where),
    }
    if role == "assistant" and images_of(plain):
        raise BadMessage(
            f"{where} is the assistant's and has an image; models answer in text", code="unsupported_content"
        )
    plain |= {k: str(message[k]) for k in ("name", "tool_call_id") if message.get(k)}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if role == "assistant" and reasoning:
        if not isinstance(reasoning, str):
            raise BadMessage(
                f"{where} has reasoning of type {type(reasoning).__name__}, which is not supported; send it as text",
                code="unsupported_content",
            )
        plain["reasoning_content"] = reasoning
    if message.get("tool_calls"):
        plain["tool_calls"] = list(_tool_calls(message["tool_calls"], where))
    return plain


def normalise_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Copies of a request's tools; a function without ``parameters`` takes none, and ``strict: false``,
    which only some frameworks write, is dropped. Raises BadMessage for anything but
    ``{"type": "function", "function": {"name": …}}``."""
    copies = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
        if not named or tool.get("type") != "function":
            raise BadMessage(f'tools[{index}] must be {{"type": "function", "function": {{"name": …}}}}')
        plain = copy.deepcopy(dict(tool))
        plain["function"] = dict(plain["function"])
        if plain["function"].get("parameters") is None:
            plain["function"]["parameters"] = {"type": "object", "properties": {}}
        if not plain["function"].get("strict"):
            plain["function"].pop("strict", None)
        copies.append(plain)
    return copies


def _content(content: Any, where: str) -> str | list[dict[str, str]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise BadMessage(f"{where}.content must be text or a list of parts")
    parts: list[dict[str, str]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind == "refusal":
            kind, part = "text", {"text": part.get("refusal")}
        if kind == "image" and REF.fullmatch(str(part.get("image"))):
            parts.append({"type": "image", "image": part["image"]})
        elif kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise BadMessage(
                f"{where}.content has a part of type {kind!r}, which is not supported; send text or images",
                code="unsupported_content",
            )
        elif parts and parts[-1]["type"] == "text":
            parts[-1]["text"] += part["text"]
        elif part["text"]:
            parts.append({"type": "text", "text": part["text"]})
    if any(part["type"] == "image" for part in parts):
        return parts
    return parts[0]["text"] if parts else ""


def images_of(message: Message) -> list[str]:
    """The references of the images of a message in normal form, in their order."""
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else ()
    return [part["image"] for part in parts if part.get("type") == "image"]


def text_of(message: Message) -> str:
    """The text of a message in normal form, with the beginning of its hash in brackets for each image."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(
        part["text"] if part.get("type") == "text" else f"[image {part['image'][7:15]}]" for part in content
    )


def _tool_calls(calls: Any, where: str) -> Iterator[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise BadMessage(f"{where}.tool_calls must be a list of objects")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadMessage(f"{where}.tool_calls: each needs function.name")
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if not isinstance(arguments, str | None):
            raise BadMessage(f"{where}.tool_calls: arguments must be JSON text")
        yield {
            "id": str(call.get("id") or ""),
            "type": "function",
            "function": {"name": function["name"], "arguments": arguments or ""},
        }


# --------------------------------------------------------------------------- identity


def fingerprint(message: Message) -> Hashable:
    """A fast identity of a client's message, as it was sent: equal fingerprints mean the same message;
    the same message may come in forms whose fingerprints differ (see `exact`)."""
    get = message.get
    role, content, name, call_id, calls = (
        get("role"),
        get("content"),
        get("name"),
        get("tool_call_id"),
        get("tool_calls"),
    )
    if role == "assistant" and len(message) > 2:
        reasoning = get("reasoning_content") or get("reasoning")
        if reasoning:
            return reasoning.__class__ is str, str(reasoning), fingerprint(_without_reasoning(message))
    # Texts and None only: among other values 1, 1.0 and True would be the same key.
    if not (
        role.__class__ is str
        and (content.__class__ is str or content is None)
        and (name is None or name.__class__ is str)
        and (call_id is None or call_id.__class__ is str)
    ):
        return _unusual(role, content, name, call_id, calls)
    if not calls:
        return role, content, name, call_id, ()
    try:
        told = tuple([(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls])
    except (TypeError, KeyError, AttributeError, IndexError):
        return _unusual(role, content, name, call_id, calls)
    for call in told:
        for field in call:
            if field.__class__ is not str:
                return _unusual(role, content, name, call_id, calls)
    return role, content, name, call_id, told


def exact(message: Message) -> str:
    """The identity of a message in normal form as a chat template sees it: two messages that a template could
    render differently differ here, in the reasoning, an assistant's name, the order of arguments or the last
    digit of a number. ASCII, so that it can be hashed whatever the content."""
    calls = [
        [c.get("id"), c["function"]["name"], _exact_arguments(c["function"].get("arguments", ""))]
        for c in message.get("tool_calls") or ()
    ]
    fields = [message.get(k) for k in ("role", "name", "tool_call_id", "reasoning_content")]
    return json.dumps([*fields, message.get("content") or "", calls])


def canonical(message: Message) -> str:
    """The identity by which a reply is recognised when it comes back, in normal form: role, name, tool call id,
    content, and tool calls with their ids, names and arguments in one spelling. An assistant's name does not count,
    because frameworks add it to the answers that they send back, nor does reasoning, which many leave out. ASCII, so
    that it can be hashed whatever the content."""
    calls = [
        [c.get("id"), c["function"]["name"], canonical_tool_arguments(c["function"].get("arguments", ""))]
        for c in message.get("tool_calls") or ()
    ]
    fields = [message.get("role"), _name(message), message.get("tool_call_id")]
    return json.dumps([*fields, message.get("content") or "", calls])


def loose(message: Message) -> str:
    """The identity of a message in normal form under the merge policy ``text``: like `canonical`, but
    without ids, outer whitespace and an assistant's reasoning (``<think>…</think>``)."""
    calls = [
        [c["function"]["name"], canonical_tool_arguments(c["function"].get("arguments", ""))]
        for c in message.get("tool_calls") or ()
    ]
    return json.dumps(
        [message.get("role"), _name(message), spoken(message).strip(), calls, images_of(message)]
    )


def spoken(message: Message) -> str:
    """The text of a message in normal form, an assistant's without its reasoning (``<think>…</think>``)."""
    content = text_of(message)
    return _THOUGHTS.sub("", content) if message.get("role") == "assistant" else content


def thoughts(message: Message) -> str:
    """An assistant's reasoning, wherever it is in a message in normal form, without outer whitespace."""
    apart = message.get("reasoning_content") or ""
    inside = _THOUGHTS.findall(text_of(message))
    pieces = [apart, *(text.removeprefix("<think>").removesuffix("</think>") for text in inside)]
    return "\n".join(text.strip() for text in pieces if text.strip())


def canonical_tool_arguments(arguments: Any) -> str:
    """Tool-call arguments in one spelling, however a framework serialised them again: numbers follow JavaScript,
    whose clients send 1.0 back as 1 and keep 53 bits of an integer."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        arguments = json.loads(text, parse_float=_number, parse_int=_number)
    except (ValueError, RecursionError):
        return text
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _exact_arguments(text: str) -> str:
    """Arguments as a template gets them, which excludes the spaces between them."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(arguments) if isinstance(arguments, dict) else text


def _without_reasoning(message: Message) -> Message:
    return {k: v for k, v in message.items() if k not in ("reasoning_content", "reasoning")}


def _name(message: Message) -> Any:
    return None if message.get("role") == "assistant" else message.get("name")


def _number(text: str) -> int | float:
    double = float(text)
    if double.is_integer():
        return int(double)
    return int(text) if text.lstrip("-").isdecimal() else double  # beyond all doubles


def _unusual(*fields: Any) -> Hashable:
    """The fingerprint of a message with lists or objects in it. It is one text, so it never equals a usual one."""
    return json.dumps(fields)
