"""An episode as a trajectory in ATIF."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ajet import Task
from ajet.chat.messages import BadMessage, normalise
from ajet.interfaces.events import EpisodeCall, EpisodeEnd
from ajet.interfaces.spans import model_of
from ajet.tracker.timelines import Timeline
from ajet.types import Span
from ajet_atif.reading import OURS, ROLES, Message, Trajectory

WRITTEN = "ATIF-v1.7"
"""The version that is written. All versions to 1.8 are read."""
_SOURCES = {role: source for source, role in ROLES.items()}


def trajectory_of(
    event: EpisodeEnd, config: Mapping[str, Any], images: str, *, prompt_ids: bool = True
) -> dict[str, Any]:
    """An episode as a trajectory. ``config`` is the resolved job, which names the models; ``images`` the path of the folder with the
    run's images, as the trajectory is to name it. With ``prompt_ids`` each call has its prompt as token ids, so that the length
    grows with the square of the episode's."""
    return _Writer(event, config, images, prompt_ids).trajectory()


def text_of(trajectory: Trajectory) -> str:
    """A trajectory as a line of JSON that UTF-8 can write."""
    text = json.dumps(trajectory, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode()


@dataclass(slots=True)
class _Conversation:
    """Calls of one agent and target with the same tools, each of which continues the one before it."""

    first: EpisodeCall
    chat: list[Message] = field(default_factory=list)
    answers: dict[int, EpisodeCall] = field(default_factory=dict)
    """By the place of the answer in the chat."""

    def goes_on(self, call: EpisodeCall, prompt: Sequence[Message]) -> bool:
        same = (call.agent, call.target) == (self.first.agent, self.first.target)
        return same and call.tools == self.first.tools and prompt[: len(self.chat)] == self.chat

    def add(self, call: EpisodeCall, chat: Sequence[Message]) -> None:
        self.chat[:] = chat
        self.answers[len(chat) - 1] = call


_NO_CALL = EpisodeCall(
    agent="agent",
    target="",
    started=0.0,
    seconds=0.0,
    prompt_tokens=None,
    sampled_tokens=None,
    truncated=False,
)


class _Writer:
    def __init__(self, event: EpisodeEnd, config: Mapping[str, Any], images: str, prompt_ids: bool) -> None:
        self._event, self._config, self._images, self._prompt_ids = event, config, images, prompt_ids
        self._id = f"{event.run_dir.name}/{event.id}"
        self._sampled = {span.call: (line, span) for line in event.timelines for span in line.spans}

    def trajectory(self) -> dict[str, Any]:
        event, (first, *others) = self._event, self._conversations()
        verdict = {"error": event.error} if event.failure else {"reward": event.reward}
        told = {
            **{"episode": event.id, "task": _told(event.task), "phase": event.phase, "step": event.step},
            **{"failure": event.failure, **verdict, "is_success": event.is_success},
            **{"metrics": event.metrics or None, "response": event.response, "seconds": event.seconds},
        }
        embedded = [self._one(other, f"conversation-{number}", {}) for number, other in enumerate(others, 2)]
        return {
            **self._one(first, self._id, {name: value for name, value in told.items() if value is not None}),
            **({"subagent_trajectories": embedded} if embedded else {}),
        }

    def _conversations(self) -> list[_Conversation]:
        """The conversations of the episode, by their first call; of one without a call, its question."""
        event = self._event
        conversations: list[_Conversation] = []
        for call, chat in zip(event.calls, event.messages, strict=True):
            able = [c for c in conversations if c.goes_on(call, chat[:-1])]
            if not able:
                able = [_Conversation(call)]
                conversations += able
            max(able, key=lambda c: len(c.chat)).add(call, chat)
        return conversations or [_Conversation(_NO_CALL, _question(event.task))]

    def _one(self, conversation: _Conversation, identity: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        first, calls = conversation.first, list(conversation.answers.values())
        agent: dict[str, Any] = {"name": first.agent, "version": "unknown"}
        if first.target and self._config:
            agent["model_name"] = model_of(self._config, first.target)
        if first.tools:
            agent["tool_definitions"] = list(first.tools)
        steps = self._steps(conversation)
        totals: dict[str, Any] = {"total_steps": len(steps)}
        if all(call.prompt_tokens is not None for call in calls):
            totals["total_prompt_tokens"] = sum(call.prompt_tokens or 0 for call in calls)
            totals["total_completion_tokens"] = sum(call.sampled_tokens or 0 for call in calls)
        target = {"target": first.target} if first.target else {}
        return {
            "schema_version": WRITTEN,
            "session_id": self._id,
            "trajectory_id": identity,
            "agent": agent,
            "steps": steps,
            "final_metrics": totals,
            "extra": {name: _plain(value) for name, value in {**extra, **target}.items()},
        }

    def _steps(self, conversation: _Conversation) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = []
        for place, message in enumerate(conversation.chat):
            if message["role"] == "tool" and steps and self._is_result(steps[-1], message):
                continue
            step = self._step(message, conversation.answers.get(place))
            steps.append({"step_id": len(steps) + 1, **step})
        return steps

    def _is_result(self, step: dict[str, Any], message: Message) -> bool:
        """Whether a message is the result of a tool call of a step, to which it is then added."""
        identity = message.get("tool_call_id")
        if not identity or all(call["tool_call_id"] != identity for call in step.get("tool_calls", ())):
            return False
        result = {"source_call_id": identity, "content": self._written(message)}
        results = step.setdefault("observation", {"results": []})["results"]
        results.append(result | _extra(message, ("role", "content", "tool_call_id")))
        return True

    def _step(self, message: Message, call: EpisodeCall | None) -> dict[str, Any]:
        """``call``: the one that answered with the message, if it is an answer of this conversation."""
        source, fits = _SOURCES.get(message["role"]), ["content"]
        step: dict[str, Any] = {"source": source or "user", "message": self._written(message)}
        if source:
            fits.append("role")
        if source == "agent":
            fits.append("tool_calls")
            if message.get("reasoning_content") != step["message"]:
                fits.append("reasoning_content")
            if message.get("reasoning_content") and "reasoning_content" in fits:
                step["reasoning_content"] = message["reasoning_content"]
            if message.get("tool_calls"):
                step["tool_calls"] = [_written_call(each) for each in message["tool_calls"]]
            if call is None:
                step["is_copied_context"] = True
        if call is not None:
            step |= {"llm_call_count": 1, **self._measured(call)}
            if call.started:
                step["timestamp"] = datetime.fromtimestamp(call.started, UTC).isoformat()
        told = _extra(message, fits)
        if call is not None and call.truncated:
            told.setdefault("extra", {})["truncated"] = True
        return step | told

    def _measured(self, call: EpisodeCall) -> dict[str, Any]:
        if call.prompt_tokens is None:
            return {}
        metrics: dict[str, Any] = {
            "prompt_tokens": call.prompt_tokens,
            "completion_tokens": call.sampled_tokens,
        }
        if call.number in self._sampled:
            metrics |= _tokens(*self._sampled[call.number], self._prompt_ids)
        return {"metrics": metrics}

    def _written(self, message: Message) -> str | list[Message]:
        content = message.get("content") or ""
        return content if isinstance(content, str) else [self._part(part) for part in content]

    def _part(self, part: Message) -> Message:
        image = self._event.images.get(part.get("image", ""))
        if image is not None:
            source = {"media_type": f"image/{image.type}", "path": f"{self._images}/{image.file_name}"}
            return {"type": "image", "source": source}
        return {"type": "text", "text": part.get("text") or f"[{part.get('type')} that is missing]"}


def _tokens(line: Timeline, span: Span, prompt_ids: bool) -> dict[str, Any]:
    """The token ids of a call, with its logprobs at its temperature."""
    sampled = slice(span.start, span.end)
    logprobs = line.logprobs[sampled]
    told: dict[str, Any] = {"completion_token_ids": line.token_ids[sampled].tolist()}
    # An image's placeholder, which is below 0, is not a token of the model.
    if prompt_ids and (line.token_ids[: span.start] >= 0).all():
        told["prompt_token_ids"] = line.token_ids[: span.start].tolist()
    if np.isfinite(logprobs).all():
        told["logprobs"] = [float(str(logprob)) for logprob in logprobs]  # the shortest equal float32
    versions = np.unique(line.versions[sampled]).tolist()
    return {**told, "extra": {"temperature": span.temperature, "weight_versions": versions}}


def _written_call(call: Message) -> dict[str, Any]:
    function = call["function"]
    arguments = _object(function.get("arguments") or "")
    written = {
        "tool_call_id": call.get("id") or "",
        "function_name": function["name"],
        "arguments": arguments or {},
    }
    if arguments is None:
        written["extra"] = {OURS: {"arguments": function.get("arguments") or ""}}
    return written


def _object(text: str) -> dict[str, Any] | None:
    """Arguments as an object; None if that is not what they are."""
    try:
        arguments = json.loads(text)
        json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _extra(message: Message, fits: Sequence[str]) -> dict[str, Any]:
    """The fields of a message that have no place in the format."""
    kept = {name: value for name, value in message.items() if name not in fits}
    return {"extra": {OURS: kept}} if kept else {}


def _told(task: Task) -> dict[str, Any]:
    parts = {"query": task.query, "messages": list(task.messages), "metadata": dict(task.metadata)}
    return {"id": task.id, **{name: part for name, part in parts.items() if part}}


def _question(task: Task) -> list[Message]:
    try:
        asked = [normalise(message, index) for index, message in enumerate(task.messages)]
    except BadMessage:
        asked = []
    return list(asked) or [{"role": "user", "content": task.query}]


def _plain(value: Any) -> Any:
    """A value as JSON has it; numbers that JSON has not, as text."""
    try:
        return json.loads(json.dumps(value, default=str), parse_constant=str)
    except (TypeError, ValueError, RecursionError):
        return str(value)
