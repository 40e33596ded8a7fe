"""OpenAI chat completions, whole answers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.capture.wires import Answer, ChatRequest, Refused

# Said by clients, without influence on the tokens: accepted and left alone.
_HARMLESS = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
_HONOURED = {
    *("model", "messages", "tools", "n", "temperature", "top_p", "max_tokens", "max_completion_tokens"),
    *("seed", "stop", "tool_choice", "response_format", "stream", "logprobs", "parallel_tool_calls"),
    *("frequency_penalty", "presence_penalty"),
}


class ChatCompletions:
    """``POST …/chat/completions``."""

    path = "/chat/completions"

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`."""
        try:
            data = json.loads(body)
        except ValueError as error:
            raise Refused(f"the request body is not JSON: {error}", code="invalid_json") from None
        if not isinstance(data, dict):
            raise Refused("the request body must be a JSON object", code="invalid_request")
        data = {k: v for k, v in data.items() if v is not None}
        _refuse_what_is_not_honoured(data)
        tools = [] if data.get("tool_choice") == "none" else data.get("tools", [])
        return ChatRequest(
            model=str(data.get("model", "")),
            messages=_messages(data.get("messages")),
            tools=_objects(tools, "tools"),
            n=_number(data, "n", int, 1, 128) or 1,
            temperature=_number(data, "temperature", float, 0, 2),
            top_p=_number(data, "top_p", float, 0, 1),
            max_tokens=_number(data, "max_completion_tokens", int, 1) or _number(data, "max_tokens", int, 1),
            seed=_number(data, "seed", int),
            stop=_stop(data.get("stop")),
        )

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The chat completion object."""
        prompt = max(a.prompt_tokens for a in answers)
        completion = sum(a.completion_tokens for a in answers)
        return {
            "id": f"chatcmpl-{reply_id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.model,
            "choices": [
                {"index": i, "message": dict(a.message), "finish_reason": a.finish_reason, "logprobs": None}
                for i, a in enumerate(answers)
            ],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }

    def error(self, error: Refused) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": f"ajet: {error}",
                "type": "invalid_request_error",
                "code": error.code,
                "param": None,
            }
        }


def _refuse_what_is_not_honoured(data: Mapping[str, Any]) -> None:
    faults = sorted(set(data) - _HONOURED - _HARMLESS)
    if data.get("stream"):
        faults.append("stream=true")
    if data.get("logprobs"):
        faults.append("logprobs=true")
    if data.get("tool_choice", "auto") not in ("auto", "none"):
        faults.append(f"tool_choice={json.dumps(data['tool_choice'])}")
    if data.get("parallel_tool_calls") is False:
        faults.append("parallel_tool_calls=false")
    if _type_of(data.get("response_format", {"type": "text"})) != "text":
        faults.append(f"response_format={_type_of(data['response_format'])}")
    faults += [f"{p}={data[p]}" for p in ("frequency_penalty", "presence_penalty") if data.get(p)]
    if faults:
        raise Refused(
            f"cannot honour {', '.join(faults)} of this request; remove it (chat completions with tools, n, stop and "
            "max_tokens are supported)",
            code="unsupported_parameter",
        )


def _type_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else value


def _messages(value: Any) -> list[Mapping[str, Any]]:
    """The client's own objects; whoever answers brings those that are new into normal form."""
    messages = _objects(value, "messages")
    if not messages:
        raise Refused("messages must hold at least one message", code="invalid_request")
    return messages


def _objects(value: Any, name: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise Refused(f"{name} must be a list of objects", code="invalid_request")
    return value


def _number(
    data: Mapping[str, Any], name: str, kind: type, low: float | None = None, high: float | None = None
) -> Any:
    value = data.get(name)
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and (kind is float or whole)
    if not ok or (low is not None and value < low) or (high is not None and value > high):
        raise Refused(
            f"{name} is {value!r}; expected {kind.__name__} in [{low}, {high}]", code="invalid_request"
        )
    return kind(value)


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else (value or [])
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise Refused("stop must be text or a list of texts", code="invalid_request")
    return tuple(stops)
