"""OpenAI chat completions: the format that most frameworks use."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.capture.wires.fields import TURN, VARIABLES, continues, openai_error, template_variables
from ajet.interfaces.wire import (
    Answer,
    ChatRequest,
    Events,
    Faults,
    Piece,
    Refused,
    flag,
    invalid,
    mapping,
    number,
    objects,
    read_object,
    sse,
    stops,
    text,
)

# Without influence on the tokens: accepted and left alone. How much a hosted model is to think and say
# is among them: what an own model thinks is decided by its chat template and by training.
_HARMLESS = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "prediction", "reasoning_effort", "verbosity"),
}
_HONOURED = {
    *("model", "messages", "tools", "n", "temperature", "top_p", "max_tokens", "max_completion_tokens"),
    *("seed", "stop", "tool_choice", "response_format", "stream", "stream_options", "logprobs"),
    *("top_logprobs", "parallel_tool_calls", "modalities", "frequency_penalty", "presence_penalty"),
}
_KNOWN = _HONOURED | _HARMLESS | TURN | VARIABLES
_SUPPORTED = "chat completions with text, images, tools, n, stop, max_tokens, logprobs and structured output are supported"


@dataclass(slots=True)
class _ChatCompletionsRequest(ChatRequest):
    usage_chunk: bool = False
    """Whether a stream ends with the usage."""


class ChatCompletions:
    """``POST …/chat/completions``."""

    path = "/chat/completions"

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`. The messages are the client's own objects; the session normalises those that are new."""
        data = read_object(body)
        faults = Faults()
        faults.parameters(data, _KNOWN)
        for name in ("frequency_penalty", "presence_penalty"):
            if number(data, name, float):
                faults.parameter(name, data[name])
        if number(data, "top_logprobs", int, 0, 20):  # only the chosen tokens' logprobs exist
            faults.parameter("top_logprobs", data["top_logprobs"])
        if data.get("modalities", ["text"]) != ["text"]:
            faults.parameter("modalities", data["modalities"])
        options = mapping(data, "stream_options")
        faults.parameters(options, ("include_usage", "include_obfuscation"), "stream_options.")
        messages = objects(data.get("messages"), "messages")
        if not messages:
            raise invalid("messages must hold at least one message")
        # What an assistant said in another form than content and tool_calls.
        for name in ("function_call", "audio"):
            if any(message.get(name) for message in messages):
                faults.parameter(f"messages.{name}")
        # A hosted model that refuses says so in the place of its content.
        if any(message.get("refusal") for message in messages):
            messages = [{**m, "content": m.get("content") or m.get("refusal")} for m in messages]
        tools = objects(data.get("tools", []), "tools")
        must_call = _must_call(data.get("tool_choice", "auto"), tools, faults)
        json_schema = _json_schema(data, faults)
        faults.refuse(_SUPPORTED)
        return _ChatCompletionsRequest(
            model=str(data.get("model", "")),
            messages=messages,
            tools=tools,
            n=number(data, "n", int, 1, 128) or 1,
            temperature=number(data, "temperature", float, 0, 2),
            top_p=number(data, "top_p", float, 0, 1),
            max_tokens=number(data, "max_completion_tokens", int, 1) or number(data, "max_tokens", int, 1),
            seed=number(data, "seed", int),
            stop=stops(data.get("stop")),
            stream=flag(data, "stream"),
            logprobs=flag(data, "logprobs"),
            template=template_variables(data),
            may_call=data.get("tool_choice") != "none",
            must_call=must_call,
            one_call=not flag(data, "parallel_tool_calls", True),
            json_schema=json_schema,
            continues=continues(data, messages[-1]),
            usage_chunk=flag(options, "include_usage"),
        )

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The chat completion object."""
        choices = [
            _choice(i, "message", _message(a), a.finish_reason, _logprobs(a)) for i, a in enumerate(answers)
        ]
        head = _head("chat.completion", request, reply_id, int(time.time()))
        return {**head, "choices": choices, "usage": _usage(answers)}

    def events(self, request: ChatRequest, reply_id: str) -> Events:
        """See `Events`."""
        return _ChatEvents(request, reply_id)

    def error(self, error: Refused) -> dict[str, Any]:
        """OpenAI's error object."""
        return openai_error(error)


def _must_call(choice: Any, tools: Sequence[Mapping[str, Any]], faults: Faults) -> str | None:
    if choice in ("auto", "none"):
        return None
    if choice == "required":
        return ""
    if isinstance(choice, dict) and choice.get("type") == "function":
        return text(mapping(choice, "function"), "name", "tool_choice.function.")
    faults.parameter("tool_choice", choice)
    return None


def _json_schema(data: Mapping[str, Any], faults: Faults) -> Mapping[str, Any] | None:
    wanted = mapping(data, "response_format")
    kind = wanted.get("type", "text")
    if kind == "json_object":
        return {}
    if kind == "json_schema":
        described = mapping(wanted, "json_schema")
        if not isinstance(described.get("schema"), dict):
            raise invalid("response_format.json_schema.schema must be an object")
        return mapping(described, "schema")
    if kind != "text":
        faults.parameter("response_format.type", kind)
    return None


# --------------------------------------------------------------------------- answers


def _head(kind: str, request: ChatRequest, reply_id: str, created: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply_id}", "object": kind, "created": created, "model": request.model}


def _choice(
    index: int, key: str, said: Mapping[str, Any], reason: str | None = None, logprobs: Any = None
) -> dict[str, Any]:
    """A choice; ``key`` is ``message``, or ``delta`` in a stream."""
    return {"index": index, key: dict(said), "finish_reason": reason, "logprobs": logprobs}


def _message(answer: Answer) -> Mapping[str, Any]:
    """An answer as clients get it: the content is null if there are only calls."""
    only_calls = answer.message.get("tool_calls") and not answer.message.get("content")
    return {**answer.message, "content": None} if only_calls else answer.message


def _logprobs(answer: Answer) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None
    tokens = [
        {
            "token": token,
            "logprob": logprob,
            # Part of a character is not text, and its bytes are not known here.
            "bytes": None if "\ufffd" in token else list(token.encode(errors="replace")),
            "top_logprobs": [],
        }
        for token, logprob in answer.logprobs
    ]
    return {"content": tokens, "refusal": None}


def _usage(answers: Sequence[Answer]) -> dict[str, Any]:
    prompt = max(a.prompt_tokens for a in answers)
    completion = sum(a.completion_tokens for a in answers)
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    reasoning = [a.reasoning_tokens for a in answers if a.reasoning_tokens is not None]
    if len(reasoning) < len(answers):
        return usage
    return usage | {"completion_tokens_details": {"reasoning_tokens": sum(reasoning)}}


class _ChatEvents:
    def __init__(self, request: ChatRequest, reply_id: str) -> None:
        self._head = _head("chat.completion.chunk", request, reply_id, int(time.time()))
        self._n = request.n
        self._usage_chunk = isinstance(request, _ChatCompletionsRequest) and request.usage_chunk
        self._with_content: set[int] = set()
        """Choices of which some content was sent."""

    def begin(self) -> bytes:
        return b"".join(self._delta(i, {"role": "assistant", "content": None}) for i in range(self._n))

    def piece(self, piece: Piece) -> bytes:
        if piece.kind == "reasoning":
            return self._delta(piece.choice, {"reasoning_content": piece.text})
        self._with_content.add(piece.choice)
        return self._delta(piece.choice, {"content": piece.text})

    def end(self, answers: Sequence[Answer]) -> bytes:
        out = b"".join(self._ending(i, answer) for i, answer in enumerate(answers))
        if self._usage_chunk:
            out += self._chunk([], _usage(answers))
        return out + b"data: [DONE]\n\n"

    def fail(self, error: Refused) -> bytes:
        return sse(openai_error(error))  # clients take a stream with [DONE] for whole

    def _ending(self, index: int, answer: Answer) -> bytes:
        out = b""
        if index not in self._with_content and not answer.message.get("tool_calls"):
            out += self._delta(index, {"content": ""})  # empty, unlike that of a mere tool call
        for i, call in enumerate(answer.message.get("tool_calls") or ()):
            head = {**call, "index": i, "function": {**call["function"], "arguments": ""}}
            out += self._delta(index, {"tool_calls": [head]})
            arguments = {"arguments": call["function"]["arguments"]}
            out += self._delta(index, {"tool_calls": [{"index": i, "function": arguments}]})
        return out + self._chunk([_choice(index, "delta", {}, answer.finish_reason, _logprobs(answer))])

    def _delta(self, index: int, delta: Mapping[str, Any]) -> bytes:
        return self._chunk([_choice(index, "delta", delta)])

    def _chunk(self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None = None) -> bytes:
        return sse({**self._head, "choices": choices} | ({"usage": usage} if self._usage_chunk else {}))
