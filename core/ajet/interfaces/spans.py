"""Episodes as spans: one trace an episode, with a span for each call and each tool.

Spans are plain data here; a logger sends them in the form of its receiver. The names of attributes are those of
OpenTelemetry's conventions for generative AI; ours begin with ``ajet.``.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ajet.interfaces.events import EpisodeCall, EpisodeEnd

T = TypeVar("T")
Attributes = Mapping[str, str | bool | int | float | Sequence[str]]
"""All texts can be written as UTF-8."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one time in a span."""

    name: str
    time_ns: int
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class EpisodeSpan:
    """A span. Times are nanoseconds since 1970."""

    trace_id: bytes
    """16 bytes, the same for all spans of an episode."""
    span_id: bytes
    """8 bytes."""
    parent_id: bytes | None
    """None for the span of the episode itself."""
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    is_client: bool = False
    """Whether it is a request to a model."""
    error: str | None = None
    """What failed, None if nothing did."""
    events: tuple[SpanEvent, ...] = ()


CONTENTS = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
)
"""The attributes that hold what was asked and answered."""


def episode_spans(
    event: EpisodeEnd, *, conversation: str, model_of: Callable[[str], str], contents: bool = True
) -> Iterator[EpisodeSpan]:
    """Yield the spans of an episode: ``invoke_agent``, with the reward as an event, then ``chat`` for each call and
    ``execute_tool`` for each tool call whose result is in a later call.

    ``conversation`` is their ``gen_ai.conversation.id``. ``model_of`` names a target's model. Without ``contents`` the
    attributes in `CONTENTS` and the words of errors are left out.
    """
    for span in _Trace(event, conversation, model_of).spans():
        if contents:
            yield span
            continue
        kept = {key: value for key, value in span.attributes.items() if key not in CONTENTS}
        yield replace(span, attributes=kept, error=None if span.error is None else str(event.failure))


def bundled(spans: Iterable[T], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Spans in lists whose sizes add up to at most ``most``, in their order; a larger one is alone. They may be encoded already."""
    together: list[T] = []
    total = 0
    for span in spans:
        length = size(span)
        if together and total + length > most:
            yield together
            together, total = [], 0
        together.append(span)
        total += length
    yield together


def model_of(config: Mapping[str, Any], target: str) -> str:
    """The name of the model that answers for a target of a resolved job."""
    settings = (config.get("targets") or {}).get(target) or {}
    frozen = settings.get("frozen_model") or {}
    return str(frozen.get("model") or frozen.get("type") or config["model"])


class _Trace:
    """The spans of an episode."""

    def __init__(self, event: EpisodeEnd, conversation: str, model_of: Callable[[str], str]) -> None:
        self._event, self._conversation, self._model_of = event, conversation, model_of
        self._trace_id, self._root_id = secrets.token_bytes(16), secrets.token_bytes(8)
        began = event.started or time.time() - event.seconds
        last = max((call.started + call.seconds for call in event.calls), default=0.0)
        self._whole = began, max(began + event.seconds, last)

    def spans(self) -> Iterator[EpisodeSpan]:
        """The episode, then its calls and tools in their order."""
        yield self._episode()
        asked: dict[str, _OpenToolCall] = {}
        for call, chat in zip(self._event.calls, self._event.messages, strict=True):
            *prompt, answer = chat
            began, ended = self._times(call)
            for message in prompt:
                if message.get("role") == "tool" and message.get("tool_call_id") in asked:
                    yield self._tool(asked.pop(str(message["tool_call_id"])), message, began)
            yield self._call(call, prompt, answer)
            for identity, name, arguments in _tool_calls(answer):
                asked[identity] = _OpenToolCall(identity, name, arguments, ended)

    def _episode(self) -> EpisodeSpan:
        event = self._event
        agents = ", ".join(dict.fromkeys(call.agent for call in event.calls))
        question = event.task.messages or [{"role": "user", "content": event.task.query}]
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agents,
            "gen_ai.input.messages": _messages_text(question),
            "ajet.episode.id": event.id,
            "ajet.task.id": event.task.id,
            "ajet.phase": event.phase,
            "ajet.step": event.step,
        }
        if event.failure:
            attributes["error.type"] = event.failure
        if event.response is not None:
            answer = {"role": "assistant", "content": _text(event.response)}
            attributes["gen_ai.output.messages"] = _messages_text([answer], finish_reason="stop")
        span = self._span(f"invoke_agent {agents}".strip(), attributes, self._whole)
        if event.failure:  # a failed episode was not judged
            return replace(span, span_id=self._root_id, parent_id=None, error=_plain(event.error))
        verdict: dict[str, Any] = {
            "gen_ai.evaluation.name": "reward",
            "gen_ai.evaluation.score.value": float(event.reward),
        }
        if event.is_success is not None:
            verdict["gen_ai.evaluation.score.label"] = "pass" if event.is_success else "fail"
        result = SpanEvent("gen_ai.evaluation.result", span.end_ns, verdict)
        return replace(span, span_id=self._root_id, parent_id=None, events=(result,))

    def _call(self, call: EpisodeCall, prompt: Sequence[Message], answer: Message) -> EpisodeSpan:
        model = self._model_of(call.target)
        reason = "length" if call.truncated else "tool_call" if answer.get("tool_calls") else "stop"
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.agent.name": call.agent,
            "gen_ai.request.model": model,
            "gen_ai.input.messages": _messages_text(prompt),
            "gen_ai.output.messages": _messages_text([answer], finish_reason=reason),
            "gen_ai.response.finish_reasons": [reason],
            "ajet.target": call.target,
        }
        if call.prompt_tokens is not None:
            attributes["gen_ai.usage.input_tokens"] = call.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = call.sampled_tokens
        return replace(self._span(f"chat {model}", attributes, self._times(call)), is_client=True)

    def _tool(self, tool: _OpenToolCall, result: Message, answered: float) -> EpisodeSpan:
        """From the answer that asks for the tool to the request that holds its result."""
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool.name,
            "gen_ai.tool.call.id": tool.id,
            "gen_ai.tool.call.arguments": _text(tool.arguments),
            "gen_ai.tool.call.result": _text(result.get("content") or ""),
        }
        return self._span(f"execute_tool {tool.name}", attributes, (tool.asked, max(tool.asked, answered)))

    def _times(self, call: EpisodeCall) -> tuple[float, float]:
        """Start and end of a call, in seconds since 1970; those of the episode if they are unknown."""
        return (call.started, call.started + call.seconds) if call.started else self._whole

    def _span(self, name: str, attributes: Mapping[str, Any], times: tuple[float, float]) -> EpisodeSpan:
        began, ended = (int(seconds * 1e9) for seconds in times)
        common = {"gen_ai.conversation.id": self._conversation, "gen_ai.provider.name": "agentjet"}
        texts = {
            key: _plain(value) if isinstance(value, str) else value
            for key, value in {**common, **attributes}.items()
        }
        return EpisodeSpan(
            self._trace_id, secrets.token_bytes(8), self._root_id, _plain(name), began, ended, texts
        )


@dataclass(frozen=True, slots=True)
class _OpenToolCall:
    """A tool call whose result has not been seen yet; ``asked`` is when the answer with it ended."""

    id: str
    name: str
    arguments: Any
    asked: float


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _plain(text: str) -> str:
    """Text that UTF-8 can write: a model's answer may contain halves of characters."""
    return text.encode("utf-8", "replace").decode()


# Messages of chat completions as OpenTelemetry's conventions for generative AI write them.

Message = Mapping[str, Any]


def _messages_text(messages: Sequence[Message], **fields: Any) -> str:
    """Messages as the JSON text of ``gen_ai.input.messages``; ``fields`` are added to each."""
    items = [{"role": m.get("role", "user"), "parts": list(_parts(m)), **fields} for m in messages]
    return json.dumps(items, ensure_ascii=False, default=str)


def _tool_calls(message: Message) -> Iterator[tuple[str, str, Any]]:
    """(id, name, arguments) of each tool call in an answer. Arguments are an object where their text is JSON."""
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield str(call.get("id") or ""), str(function.get("name") or ""), _loaded(function.get("arguments"))


def _parts(message: Message) -> Iterator[Message]:
    if message.get("role") == "tool":
        answered = str(message.get("tool_call_id") or "")
        yield {"type": "tool_call_response", "id": answered, "response": message.get("content") or ""}
        return
    if message.get("reasoning_content"):
        yield {"type": "reasoning", "content": message["reasoning_content"]}
    content = message.get("content") or ()
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        yield {"type": "text", "content": part["text"]} if "text" in part else part
    for identity, name, arguments in _tool_calls(message):
        yield {"type": "tool_call", "id": identity, "name": name, "arguments": arguments}


def _loaded(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments
