"""Anthropic Messages: contents are blocks, tool results come in user messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ajet.capture.wires.fields import (
    VARIABLES,
    described,
    file_part,
    image_part,
    json_text,
    sealed,
    template_variables,
    unsealed,
    with_images,
)
from ajet.interfaces.wire import (
    Answer,
    ChatRequest,
    Events,
    Faults,
    Piece,
    Refused,
    brief,
    flag,
    in_words,
    invalid,
    mapping,
    number,
    objects,
    read_object,
    sse,
    stops,
    text,
)

# Without influence on the tokens: accepted and left alone.
_HARMLESS = {"metadata", "service_tier", "speed", "inference_geo", "cache_control", "user_profile_id"}
_HONOURED = {
    *("model", "messages", "system", "max_tokens", "temperature", "top_p", "stop_sequences", "stream"),
    *("tools", "tool_choice", "thinking", "output_config", "context_management"),
}
_KNOWN = _HONOURED | _HARMLESS | VARIABLES
_TOOL = {
    *(
        "type",
        "name",
        "description",
        "input_schema",
        "strict",
        "cache_control",
        "eager_input_streaming",
        "defer_loading",
    ),
}
_HOSTED = re.compile(
    r"(web_search|web_fetch|code_execution|tool_search_tool(_\w+)?|advisor)_\d{8}|mcp_toolset"
)
"""Types of the tools that Anthropic's own servers run."""
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_TOO_LONG = "prompt is too long: {tokens} tokens > {longest} maximum"
_SUPPORTED = "messages with text, images, tools, thinking and stop_sequences are supported"


@dataclass(slots=True)
class _AnthropicRequest(ChatRequest):
    thinking: bool = False
    """Whether the client asked for thinking. If not, it expects none: many read ``content[0].text``."""
    seals: bool = False
    """Whether it wants thinking without its text, which it keeps for us in the signature."""
    edits: bool = False
    """Whether the reply says that nothing of the context was removed."""


class AnthropicMessages:
    """``POST …/v1/messages``."""

    path = "/v1/messages"  # other services have paths that end with /messages

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`."""
        data = read_object(body)
        faults = Faults()
        faults.parameters(data, _KNOWN)
        chat = _AnthropicChat(data, faults)
        choice = mapping(data, "tool_choice")
        must_call = _must_call(choice, faults)
        faults.forced(must_call, [*chat.tools, *chat.told.values()])
        json_schema = _json_schema(data, faults)
        _edits(data, faults)
        faults.refuse(_SUPPORTED)
        thinking = mapping(data, "thinking")
        return _AnthropicRequest(
            model=str(data.get("model", "")),
            messages=chat.messages,
            tools=chat.tools,
            told=list(chat.told.values()),
            left_out=faults.left_out,
            temperature=number(data, "temperature", float, 0, 1),
            top_p=number(data, "top_p", float, 0, 1),
            max_tokens=self._max_tokens(data),
            stop=stops(data.get("stop_sequences"), "stop_sequences"),
            stream=flag(data, "stream"),
            template=template_variables(data),
            may_call=choice.get("type") != "none",
            must_call=must_call,
            one_call=flag(choice, "disable_parallel_tool_use"),
            json_schema=json_schema,
            continues=chat.messages[-1]["role"] == "assistant",
            thinking=thinking.get("type", "disabled") != "disabled",
            seals=thinking.get("display") == "omitted",
            edits="context_management" in data,
        )

    def _max_tokens(self, data: Mapping[str, Any]) -> int | None:
        if data.get("max_tokens") is None:
            raise invalid("max_tokens must be given")
        return cast("int", number(data, "max_tokens", int, 1))

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The message object."""
        answer = answers[0]
        return _message(request, reply_id) | {
            "content": list(_content(request, answer, reply_id)),
            **_ending(answer),
            "usage": _usage(answer),
            **_edited(request),
        }

    def events(self, request: ChatRequest, reply_id: str) -> Events:
        """See `Events`."""
        return _AnthropicEvents(request, reply_id)

    def error(self, error: Refused) -> dict[str, Any]:
        """Anthropic's error object."""
        kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": f"ajet: {in_words(error, _TOO_LONG)}"}}


# --------------------------------------------------------------------------- parameters


def _tool(tool: Mapping[str, Any], where: str, faults: Faults) -> dict[str, Any] | None:
    """A tool in the chat form, if the client runs it and says how; those that Anthropic runs are left out, and others are
    faults."""
    kind = str(tool.get("type") or "custom")
    if _HOSTED.fullmatch(kind):
        faults.hosted(f"{where}.type", kind)
        return None
    if kind != "custom":
        faults.parameter(f"{where}.type", tool["type"])
        return None
    faults.parameters(tool, _TOOL, f"{where}.")
    function: dict[str, Any] = {"name": text(tool, "name", f"{where}.")}
    fields = {"description": "description", "input_schema": "parameters", "strict": "strict"}
    function |= {ours: tool[theirs] for theirs, ours in fields.items() if tool.get(theirs) is not None}
    return {"type": "function", "function": function}


def _must_call(choice: Mapping[str, Any], faults: Faults) -> str | None:
    kind = choice.get("type", "auto")
    if kind == "any":
        return ""
    if kind == "tool":
        return text(choice, "name", "tool_choice.")
    if kind not in ("auto", "none"):
        faults.parameter("tool_choice.type", kind)
    return None


def _edits(data: Mapping[str, Any], faults: Faults) -> None:
    """Edits that keep everything ask for nothing; what others write in the place of what they remove is not known here."""
    config = mapping(data, "context_management")
    faults.parameters(config, ("edits",), "context_management.")
    for index, edit in enumerate(objects(config.get("edits") or [], "context_management.edits")):
        keeps_all = edit.get("keep") in ("all", {"type": "all"})
        if not (edit.get("type") == "clear_thinking_20251015" and keeps_all):
            faults.parameter(f"context_management.edits[{index}]", edit)


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


# --------------------------------------------------------------------------- messages in


class _AnthropicChat:
    """A request's messages and tools in the chat form. Raises Refused."""

    def __init__(self, data: Mapping[str, Any], faults: Faults) -> None:
        self._faults = faults
        self.tools: list[Mapping[str, Any]] = []
        self.told: dict[str, Mapping[str, Any]] = {}
        """Tools that come with a message, by name."""
        self._deferred: dict[str, Mapping[str, Any]] = {}
        """Tools that are unknown to the model until a message refers to them, by name."""
        for index, given in enumerate(objects(data.get("tools", []), "tools")):
            if (tool := _tool(given, f"tools[{index}]", faults)) is None:
                continue
            if given.get("defer_loading"):
                self._deferred[tool["function"]["name"]] = tool
            else:
                self.tools.append(tool)
        self.messages = list(self._messages(data))

    def _messages(self, data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if data.get("system"):
            yield {"role": "system", "content": self._text(data["system"], "system")}
        messages = objects(data.get("messages"), "messages")
        if not messages:
            raise invalid("messages must hold at least one message")
        last_user = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
        for index, message in enumerate(messages):
            where = f"messages[{index}]"
            role = message.get("role")
            if role == "user":
                yield from self._user(message.get("content"), where)
            elif role == "assistant":
                yield self._assistant(message.get("content"), where)
            elif role != "system":
                raise invalid(f"{where}.role must be user, assistant or system")
            elif message.get("clear_at", "never") == "never" or index > last_user:
                yield {"role": "system", "content": self._text(message.get("content"), where)}

    def _user(self, content: Any, where: str) -> Iterator[Mapping[str, Any]]:
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
                    "content": with_images(self._parts(block.get("content") or "", path)),
                }
            else:
                said += self._parts([block], path)
        if said or not results:
            yield {"role": "user", "content": with_images(said)}

    def _assistant(self, content: Any, where: str) -> Mapping[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for path, block in _blocks(content, where):
            kind = block.get("type")
            if kind == "tool_use":
                message.setdefault("tool_calls", []).append(_call(block, path))
            elif kind == "thinking":
                thought = text(block, "thinking", f"{path}.") or unsealed(block.get("signature")) or ""
                message["reasoning_content"] = message.get("reasoning_content", "") + thought
            elif kind == "redacted_thinking":
                self._faults.leave_out("encrypted thoughts")
            else:
                message["content"] += self._text([block], path)
        return message

    def _text(self, content: Any, where: str) -> str:
        """A content of nothing but text."""
        parts = self._parts(content, where)
        for part in parts:
            if part["type"] != "text":
                self._faults.content(f"{where} type", part["type"].removesuffix("_url"))
        return "".join(part["text"] for part in parts if part["type"] == "text")

    def _parts(self, content: Any, where: str) -> list[Mapping[str, Any]]:
        """A content's blocks in the chat form."""
        if isinstance(content, str):
            return [_text_part(content)]
        return [part for block in objects(content, f"{where} content") for part in self._part(block, where)]

    def _part(self, block: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
        kind, source = (
            block.get("type"),
            mapping(block, "source") if block.get("type") != "search_result" else {},
        )
        form = source.get("type")
        if kind == "text":
            return [_text_part(text(block, "text", f"{where}."))]
        if kind == "image" and form == "base64":
            media, data = (text(source, name, f"{where}.source.") for name in ("media_type", "data"))
            return [image_part(f"data:{media};base64,{data}")]
        if kind == "image" and form == "url":
            return [image_part(text(source, "url", f"{where}.source."))]
        if kind == "document" and form in ("text", "content"):
            head = [f"{text(block, name, f'{where}.')}\n" for name in ("title", "context") if block.get(name)]
            if form == "text":
                return [_text_part("".join([*head, text(source, "data", f"{where}.source.")]))]
            return [*map(_text_part, head), *self._parts(source.get("content"), f"{where}.source")]
        if kind == "document" and form in ("base64", "url", "file"):
            return [file_part(source.get("media_type") or "document")]
        if kind == "search_result":
            head = [text(block, name, f"{where}.") for name in ("title", "source")]
            return [_text_part("\n".join([*head, self._text(block.get("content"), where)]))]
        if kind == "tool_reference":
            return [_text_part(self._load(text(block, "tool_name", f"{where}."), where))]
        if kind in ("image", "document"):
            self._faults.content(f"{where}.source.type", form)
        else:
            self._faults.content(f"{where} type", kind)
        return []

    def _load(self, name: str, where: str) -> str:
        """Make a tool known to which a message refers; return its description."""
        tool = self._deferred.get(name)
        if tool is None:
            if any(tool["function"]["name"] == name for tool in self.tools):
                return f"The tool {name} is there."
            raise invalid(f"{where} refers to the tool {brief(name)}, which tools does not have")
        self.told[name] = tool
        return described([tool])


def _text_part(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


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
    thoughts, asked = message.get("reasoning_content"), _asked(request)
    if thoughts and asked.thinking:
        shown, signature = ("", sealed(thoughts)) if asked.seals else (thoughts, _signature(reply_id))
        yield {"type": "thinking", "thinking": shown, "signature": signature}
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
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


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


def _edited(request: ChatRequest) -> dict[str, Any]:
    """What was removed of the context: nothing."""
    return {"context_management": {"applied_edits": []}} if _asked(request).edits else {}


def _asked(request: ChatRequest) -> _AnthropicRequest:
    assert isinstance(request, _AnthropicRequest)
    return request


def _signature(reply_id: str) -> str:
    """Clients send it back with the thinking, and some require one; it is never checked."""
    return f"ajet{reply_id}"


class _AnthropicEvents:
    """One block after the other: thinking and text as they are sampled, complete calls at the end. The tokens of
    the prompt are reported at the end, because they are not known earlier."""

    def __init__(self, request: ChatRequest, reply_id: str) -> None:
        self._request = request
        self._reply_id = reply_id
        self._index = 0
        self._open: str | None = None
        """Kind of the piece whose block is open."""
        self._hidden = ""
        """Thoughts that the client does not see."""

    def begin(self) -> bytes:
        return _event("message_start", message=_message(self._request, self._reply_id)) + _event("ping")

    def piece(self, piece: Piece) -> bytes:
        asked = _asked(self._request)
        if piece.kind == "reasoning" and not asked.thinking:
            return _event("ping")  # the stream is alive
        out = b""
        if self._open != piece.kind:
            out = self._close()
            empty = {"thinking": "", "signature": ""} if piece.kind == "reasoning" else {"text": ""}
            out += self._start({"type": "thinking" if piece.kind == "reasoning" else "text", **empty})
            self._open = piece.kind
        if piece.kind == "reasoning" and asked.seals:
            self._hidden += piece.text
            return out + _event("ping")
        if piece.kind == "reasoning":
            return out + self._delta("thinking_delta", thinking=piece.text)
        return out + self._delta("text_delta", text=piece.text)

    def end(self, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        out = self._close()
        for call in answer.message.get("tool_calls") or ():
            out += self._call(call)
        out += _event("message_delta", delta=_ending(answer), usage=_usage(answer), **_edited(self._request))
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
        signature = sealed(self._hidden) if self._hidden else _signature(self._reply_id)
        self._open, self._hidden = None, ""
        return (self._delta("signature_delta", signature=signature) if signed else b"") + self._stop()

    def _start(self, block: Mapping[str, Any]) -> bytes:
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, **fields: Any) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **fields})

    def _stop(self) -> bytes:
        self._index += 1
        return _event("content_block_stop", index=self._index - 1)


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


class AnthropicTokenCount(AnthropicMessages):
    """``POST …/v1/messages/count_tokens``: the tokens of the prompt that the same call would have."""

    path = "/v1/messages/count_tokens"

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`."""
        request = super().parse(body)
        request.only_count = True
        return request

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The count; an edit of the context removes nothing, so it is the count without edits, too."""
        tokens = answers[0].prompt_tokens
        edited = {"context_management": {"original_input_tokens": tokens}} if _asked(request).edits else {}
        return {"input_tokens": tokens, **edited}

    def _max_tokens(self, data: Mapping[str, Any]) -> int | None:
        return None
