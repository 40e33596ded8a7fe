"""OpenAI's legacy completions: text or tokens to continue, no chat."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.capture.wires.fields import openai_error
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
    read_object,
    sse,
    stops,
)

_HARMLESS = {"user"}  # without influence on the tokens: accepted and left alone
_HONOURED = {
    *("model", "prompt", "n", "max_tokens", "temperature", "top_p", "seed", "stop", "logprobs", "stream"),
    *("stream_options", "best_of"),
}
_KNOWN = _HONOURED | _HARMLESS
_MAX_TOKENS = 16  # the API's own default
_SUPPORTED = "completions of one prompt with n, max_tokens, stop and logprobs up to 1 are supported"


@dataclass(slots=True)
class _CompletionsRequest(ChatRequest):
    usage_chunk: bool = False
    """Whether a stream ends with the usage."""


class Completions:
    """``POST …/completions``."""

    path = "/completions"

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`."""
        data = read_object(body)
        faults = Faults()
        faults.parameters(data, _KNOWN)
        n = number(data, "n", int, 1, 128) or 1
        logprobs = number(data, "logprobs", int, 0, 5)
        if (logprobs or 0) > 1:  # only the chosen tokens' logprobs exist
            faults.parameter("logprobs", logprobs)
        if (number(data, "best_of", int, 1) or n) != n:
            faults.parameter("best_of", data["best_of"])
        prompt = _prompt(data.get("prompt"), faults)
        options = mapping(data, "stream_options")
        faults.parameters(options, ("include_usage", "include_obfuscation"), "stream_options.")
        faults.refuse(_SUPPORTED)
        return _CompletionsRequest(
            model=str(data.get("model", "")),
            messages=(),
            tools=(),
            n=n,
            temperature=number(data, "temperature", float, 0, 2),
            top_p=number(data, "top_p", float, 0, 1),
            max_tokens=number(data, "max_tokens", int, 1) or _MAX_TOKENS,
            seed=number(data, "seed", int),
            stop=stops(data.get("stop")),
            stream=flag(data, "stream"),
            logprobs=logprobs is not None,
            prompt=prompt,
            usage_chunk=flag(options, "include_usage"),
        )

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The text completion object."""
        choices = [_choice(i, _text(a), a) for i, a in enumerate(answers)]
        return _completion(request, reply_id, int(time.time()), choices) | {"usage": _usage(answers)}

    def events(self, request: ChatRequest, reply_id: str) -> Events:
        """See `Events`."""
        return _CompletionEvents(request, reply_id)

    def error(self, error: Refused) -> dict[str, Any]:
        """OpenAI's error object."""
        return openai_error(error)


def _prompt(value: Any, faults: Faults) -> str | Sequence[int]:
    """One prompt: text or token ids, alone or as the only item of a list."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            faults.parameter(f"prompt with {len(value)} prompts")
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise invalid("prompt must be text or a list of token ids")
    if not all(isinstance(t, int) and not isinstance(t, bool) and 0 <= t < 2**31 for t in value):
        raise invalid("prompt must be text or a list of token ids, which are whole numbers from 0")
    return tuple(value)


def _text(answer: Answer) -> str:
    return str(answer.message.get("content") or "")


def _completion(
    request: ChatRequest, reply_id: str, created: int, choices: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "id": f"cmpl-{reply_id}",
        "object": "text_completion",
        "created": created,
        "model": request.model,
        "choices": choices,
    }


def _choice(index: int, said: str, answer: Answer | None) -> dict[str, Any]:
    """A choice, or part of its text while there is no answer yet."""
    reason = ("length" if answer.finish_reason == "length" else "stop") if answer else None
    logprobs = _logprobs(answer.logprobs) if answer and answer.logprobs is not None else None
    return {"index": index, "text": said, "logprobs": logprobs, "finish_reason": reason}


def _logprobs(pairs: Sequence[tuple[str, float]]) -> Mapping[str, Any]:
    offsets, at = [], 0
    for token, _ in pairs:
        offsets.append(at)
        at += len(token)
    return {
        "tokens": [token for token, _ in pairs],
        "token_logprobs": [logprob for _, logprob in pairs],
        "top_logprobs": None,
        "text_offset": offsets,
    }


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    prompt = max(a.prompt_tokens for a in answers)
    completion = sum(a.completion_tokens for a in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


class _CompletionEvents:
    def __init__(self, request: ChatRequest, reply_id: str) -> None:
        self._request = request
        self._reply_id = reply_id
        self._created = int(time.time())

    def begin(self) -> bytes:
        return b""

    def piece(self, piece: Piece) -> bytes:
        return self._chunk([_choice(piece.choice, piece.text, None)]) if piece.kind == "content" else b""

    def end(self, answers: Sequence[Answer]) -> bytes:
        out = b"".join(self._chunk([_choice(i, "", a)]) for i, a in enumerate(answers))
        if isinstance(self._request, _CompletionsRequest) and self._request.usage_chunk:
            out += self._chunk([], usage=_usage(answers))
        return out + b"data: [DONE]\n\n"

    def fail(self, error: Refused) -> bytes:
        return sse(openai_error(error))  # clients take a stream with [DONE] for whole

    def _chunk(self, choices: list[dict[str, Any]], **fields: Any) -> bytes:
        return sse(_completion(self._request, self._reply_id, self._created, choices) | fields)
