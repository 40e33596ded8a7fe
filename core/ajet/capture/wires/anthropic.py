"""Anthropic Messages: contents are blocks, tool results come in user messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.capture.wires import Answer, ChatRequest, Events, Piece, Refused
from ajet.capture.wires.fields import (
    VARIABLES,
    Faults,
    flag,
    forced_tool,
    image_part,
    invalid,
    json_text,
    mapping,
    number,
    objects,
    read_object,
    sse,
    stops,
    template_variables,
    text,
    with_images,
)

# Without influence on the tokens: accepted and left alone.
_HARMLESS = {"metadata", "service_tier", "speed", "inference_geo", "cache_control", "user_profile_id"}
_HONOURED = {
    *("model", "messages", "system", "max_tokens", "temperature", "top_p", "stop_sequences", "stream"),
    *("tools", "tool_choice", "thinking", "output_config"),
}
_KNOWN = _HONOURED | _HARMLESS | VARIABLES
_TOOL = {"type", "name", "description", "input_schema", "strict", "cache_control", "eager_input_streaming"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_SUPPORTED = "messages with text, images, tools, thinking and stop_sequences are supported"


@dataclass(slots=True)
class _Request(ChatRequest):
    thinking: bool = False
    """Whether the client asked for thinking. If not, it expects none: many read ``content[0].text``."""


class AnthropicMessages:
    """``POST …/v1/messages``."""

    path = "/v1/messages"  # other services have paths that end with /messages

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`."""
        data = read_object(body)
        faults = Faults()
        faults.parameters(data, _KNOWN)
        messages = list(_messages(data, faults))
        tools = _tools(objects(data.get("tools", []), "tools"), faults)
        choice = mapping(data, "tool_choice")
        must_call = _must_call(choice, tools, faults)
        json_schema = _json_schema(data, faults)
        faults.refuse(_SUPPORTED)
        max_tokens = number(data, "max_tokens", int, 1)
        if max_tokens is None:
            raise invalid("max_tokens must be given")
        return _Request(
            model=str(data.get("model", "")),
            messages=messages,
            tools=tools,
            temperature=number(data, "temperature", float, 0, 1),
            top_p=number(data, "top_p", float, 0, 1),
            max_tokens=max_tokens,
            stop=stops(data.get("stop_sequences"), "stop_sequences"),
            stream=flag(data, "stream"),
            template=template_variables(data),
            may_call=choice.get("type") != "none",
            must_call=must_call,
            one_call=flag(choice, "disable_parallel_tool_use"),
            json_schema=json_schema,
            continues=messages[-1]["role"] == "assistant",
            thinking=_shows_thinking(data),
        )

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The message object."""
        answer = answers[0]
        return _message(request, reply_id) | {
            "content": list(_content(request, answer, reply_id)),
            **_ending(answer),
            "usage": _usage(answer),
        }

    def events(self, request: ChatRequest, reply_id: str) -> Events:
        """See `Events`."""
        return _Events(request, reply_id)

    def error(self, error: Refused) -> dict[str, Any]:
        """Anthropic's error object."""
        kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": f"ajet: {error}"}}


# --------------------------------------------------------------------------- parameters


def _tools(tools: Sequence[Mapping[str, Any]], faults: Faults) -> list[Mapping[str, Any]]:
    """The client's own tools in the chat form; those that Anthropic defines or runs are faults."""
    found: list[Mapping[str, Any]] = []
    for index, tool in enumerate(tools):
        if (tool.get("type") or "custom") != "custom":
            faults.parameter(f"tools[{index}].type", tool["type"])
            continue
        faults.parameters(tool, _TOOL, f"tools[{index}].")
        function: dict[str, Any] = {"name": text(tool, "name", f"tools[{index}].")}
        fields = {"description": "description", "input_schema": "parameters", "strict": "strict"}
        function |= {ours: tool[theirs] for theirs, ours in fields.items() if tool.get(theirs) is not None}
        found.append({"type": "function", "function": function})
    return found


def _must_call(choice: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], faults: Faults) -> str | None:
    kind = choice.get("type", "auto")
    if kind == "any":
        return forced_tool("", tools)
    if kind == "tool":
        return forced_tool(text(choice, "name", "tool_choice."), tools)
    if kind not in ("auto", "none"):
        faults.parameter("tool_choice.type", kind)
    return None


def _json_schema(data: Mapping[str, Any], faults: Faults) -> Mapping[str, Any] | None:
    config = mapping(data, "output_config")
    # How much a hosted model should think; training decides how much your own model thinks.
    faults.parameters(config, ("format", "effort"), "output_config.")
    wanted = mapping(config, "format")
    if not wanted:
        return None
    if wanted.get("type") != "json_schema":
        faults.parameter("output_config.format.type", wanted.get("type"))
    if not isinstance(wanted.get("schema"), dict):
        raise invalid("output_config.format.schema must be an object")
    return mapping(wanted, "schema")


def _shows_thinking(data: Mapping[str, Any]) -> bool:
    config = mapping(data, "thinking")
    return config.get("type", "disabled") != "disabled" and config.get("display") != "omitted"


# --------------------------------------------------------------------------- messages in


def _messages(data: Mapping[str, Any], faults: Faults) -> Iterator[Mapping[str, Any]]:
    if data.get("system"):
        yield {"role": "system", "content": _text(data["system"], "system", faults)}
    messages = objects(data.get("messages"), "messages")
    if not messages:
        raise invalid("messages must hold at least one message")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if role == "user":
            yield from _user(message.get("content"), where, faults)
        elif role == "assistant":
            yield _assistant(message.get("content"), where, faults)
        elif role == "system":
            yield {"role": "system", "content": _text(message.get("content"), where, faults)}
        else:
            raise invalid(f"{where}.role must be user, assistant or system")


def _user(content: Any, where: str, faults: Faults) -> Iterator[Mapping[str, Any]]:
    """Tool results as tool messages, then the user's other content."""
    said: list[Mapping[str, Any]] = []
    results = False
    for path, block in _blocks(content, where):
        if block.get("type") == "tool_result":
            results = True
            yield {
                "role": "tool",
                "tool_call_id": text(block, "tool_use_id", f"{path}."),
                # is_error adds nothing that the model could see: the content says what went wrong.
                "content": with_images(_parts(block.get("content") or "", path, faults)),
            }
        else:
            said += _parts([block], path, faults)
    if said or not results:
        yield {"role": "user", "content": with_images(said)}


def _assistant(content: Any, where: str, faults: Faults) -> Mapping[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for path, block in _blocks(content, where):
        kind = block.get("type")
        if kind == "tool_use":
            message.setdefault("tool_calls", []).append(_call(block, path))
        elif kind == "thinking":
            thought = message.get("reasoning_content", "") + text(block, "thinking", f"{path}.")
            message["reasoning_content"] = thought
        else:
            message["content"] += _text([block], path, faults)
    return message


def _call(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    arguments = block.get("input")
    if isinstance(arguments, dict):
        arguments = json_text(arguments, f"{path}.input")
    if not isinstance(arguments, str):  # text: arguments that are not an object, see `_input`
        raise invalid(f"{path}.input must be an object")
    name, call_id = text(block, "name", f"{path}."), text(block, "id", f"{path}.")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _blocks(content: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A content's blocks with their places, for errors."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for index, block in enumerate(objects(content, f"{where}.content")):
        yield f"{where}.content[{index}]", block


def _text(content: Any, where: str, faults: Faults) -> str:
    """A content without images."""
    parts = _parts(content, where, faults)
    if any(part["type"] != "text" for part in parts):
        faults.content(f"{where} type", "image")
    return "".join(part["text"] for part in parts if part["type"] == "text")


def _parts(content: Any, where: str, faults: Faults) -> list[Mapping[str, Any]]:
    """A content's blocks in the chat form."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts: list[Mapping[str, Any]] = []
    for block in objects(content, f"{where} content"):
        if block.get("type") == "text":
            parts.append({"type": "text", "text": text(block, "text", f"{where}.")})
        elif block.get("type") == "image":
            source = mapping(block, "source")
            if source.get("type") == "base64":
                kind, data = (text(source, name, f"{where}.source.") for name in ("media_type", "data"))
                parts.append(image_part(f"data:{kind};base64,{data}"))
            elif source.get("type") == "url":
                parts.append(image_part(text(source, "url", f"{where}.source.")))
            else:
                faults.content(f"{where}.source.type", source.get("type"))
        else:
            faults.content(f"{where} type", block.get("type"))
    return parts


# --------------------------------------------------------------------------- messages out


def _message(request: ChatRequest, reply_id: str) -> dict[str, Any]:
    """An empty message object."""
    return {
        "id": f"msg_{reply_id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(None),
    }


def _content(request: ChatRequest, answer: Answer, reply_id: str) -> Iterator[dict[str, Any]]:
    message = answer.message
    if message.get("reasoning_content") and _thinks(request):
        yield {
            "type": "thinking",
            "thinking": message["reasoning_content"],
            "signature": _signature(reply_id),
        }
    if message.get("content"):
        yield {"type": "text", "text": message["content"]}
    for call in message.get("tool_calls") or ():
        yield _tool_use(call) | {"input": _input(call)}


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}


def _input(call: Mapping[str, Any]) -> Any:
    """A call's arguments as an object; as their text if the model wrote something else, so that they come back
    unchanged."""
    arguments = call["function"]["arguments"]
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _ending(answer: Answer) -> dict[str, Any]:
    """Why the answer ended."""
    if answer.finish_reason == "stop" and answer.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop}
    return {"stop_reason": _STOP_REASONS[answer.finish_reason], "stop_sequence": None}


def _usage(answer: Answer | None) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "input_tokens": answer.prompt_tokens if answer else 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": answer.completion_tokens if answer else 0,
    }
    if answer and answer.reasoning_tokens is not None:
        usage["output_tokens_details"] = {"thinking_tokens": answer.reasoning_tokens}
    return usage


def _thinks(request: ChatRequest) -> bool:
    return isinstance(request, _Request) and request.thinking


def _signature(reply_id: str) -> str:
    """Clients send it back with the thinking, and some require one; it is never checked."""
    return f"ajet{reply_id}"


class _Events:
    """One block after the other: thinking and text as they are sampled, complete calls at the end. The tokens of
    the prompt are reported at the end, because they are not known earlier."""

    def __init__(self, request: ChatRequest, reply_id: str) -> None:
        self._request = request
        self._reply_id = reply_id
        self._index = 0
        self._open: str | None = None
        """Kind of the piece whose block is open."""

    def begin(self) -> bytes:
        return _event("message_start", message=_message(self._request, self._reply_id)) + _event("ping")

    def piece(self, piece: Piece) -> bytes:
        if piece.kind == "reasoning" and not _thinks(self._request):
            return _event("ping")  # the stream is alive
        out = b""
        if self._open != piece.kind:
            out = self._close()
            empty = {"thinking": "", "signature": ""} if piece.kind == "reasoning" else {"text": ""}
            out += self._start({"type": "thinking" if piece.kind == "reasoning" else "text", **empty})
            self._open = piece.kind
        if piece.kind == "reasoning":
            return out + self._delta("thinking_delta", thinking=piece.text)
        return out + self._delta("text_delta", text=piece.text)

    def end(self, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        out = self._close()
        for call in answer.message.get("tool_calls") or ():
            out += self._call(call)
        out += _event("message_delta", delta=_ending(answer), usage=_usage(answer))
        return out + _event("message_stop")

    def fail(self, error: Refused) -> bytes:
        return sse(AnthropicMessages().error(error), "error")

    def _call(self, call: Mapping[str, Any]) -> bytes:
        arguments = _input(call)
        if not isinstance(arguments, dict):
            return self._start(_tool_use(call) | {"input": arguments}) + self._stop()
        out = self._start(_tool_use(call))
        out += self._delta("input_json_delta", partial_json=call["function"]["arguments"])
        return out + self._stop()

    def _close(self) -> bytes:
        """End the open block."""
        if self._open is None:
            return b""
        signed = self._open == "reasoning"
        self._open = None
        return (
            self._delta("signature_delta", signature=_signature(self._reply_id)) if signed else b""
        ) + self._stop()

    def _start(self, block: Mapping[str, Any]) -> bytes:
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, **fields: Any) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **fields})

    def _stop(self) -> bytes:
        self._index += 1
        return _event("content_block_stop", index=self._index - 1)


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)
