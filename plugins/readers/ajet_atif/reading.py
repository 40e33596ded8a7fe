"""The chats of a trajectory in ATIF, and the calls of models in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading raises for anything else."""

Message = Mapping[str, Any]
Trajectory = Mapping[str, Any]
ROLES = {"system": "system", "user": "user", "agent": "assistant"}
"""The role of a message, by the source of a step."""
OURS = "ajet"
"""The key of what the format has no place for, in ``extra``."""


@dataclass(frozen=True, slots=True)
class AtifCall:
    """A step of an agent that a model took, as a call: its messages are those of the steps before it."""

    trajectory: Trajectory
    """The trajectory, or one embedded in it, whose step it is."""
    name: str
    """Unique in the outermost trajectory."""
    step: Mapping[str, Any]
    messages: tuple[Message, ...]
    """In the chat completions form. An image is an ``image_url`` with the path or the address that the file names."""
    answer: Message


def calls_of(trajectory: Trajectory) -> Iterator[AtifCall]:
    """The calls of a trajectory and of those embedded in it. Raises one of `UNREADABLE` for anything else."""
    for prefix, one in _with_embedded(trajectory, ""):
        messages: list[Message] = []
        for step in one["steps"]:
            answer, *results = _messages(step)
            if _is_call(step):
                yield AtifCall(one, f"{prefix}{step['step_id']}", step, tuple(messages), answer)
            messages += [answer, *results]


def transcripts_of(trajectory: Trajectory) -> Iterator[tuple[str, list[Message], Sequence[Message]]]:
    """(name, messages, tools) of a trajectory and of those embedded in it that have a call. Answers of no call have ``weight: 0``.
    Raises one of `UNREADABLE` for anything else."""
    for prefix, one in _with_embedded(trajectory, ""):
        chat: list[Message] = []
        for step in one["steps"]:
            answer, *results = _messages(step)
            context = {"weight": 0} if answer["role"] == "assistant" and not _is_call(step) else {}
            chat += [{**answer, **context}, *results]
        if any(_is_call(step) for step in one["steps"]):
            yield prefix.rstrip("/"), chat, one["agent"].get("tool_definitions") or ()


def recorded(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as an episode of a recording. One that another program wrote has its first question as the task. Raises one of
    `UNREADABLE` for anything else."""
    calls, told = list(calls_of(trajectory)), trajectory.get("extra") or {}
    name = str(trajectory.get("trajectory_id") or trajectory.get("session_id") or "trajectory")
    asked = [dict(message) for message in calls[0].messages] if calls else []
    task = told.get("task")
    return {
        "id": told.get("episode", name),
        "group": name,
        "task": task if isinstance(task, Mapping) else {"id": name, "messages": asked},
        "calls": [_of_step(call) for call in calls],
        "response": told.get("response"),
        "verdict": {name: told.get(name) for name in ("reward", "is_success")} if "reward" in told else None,
        **{name: told[name] for name in ("failure", "error") if name in told},
    }


def _of_step(call: AtifCall) -> dict[str, Any]:
    agent, metrics = call.trajectory["agent"], call.step.get("metrics") or {}
    ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
    return {
        "agent": agent["name"],
        "target": (call.trajectory.get("extra") or {}).get("target", "policy"),
        "request": {"messages": list(call.messages), "tools": agent.get("tool_definitions") or []},
        "reply": {
            "message": call.answer,
            "finish_reason": "tool_calls" if call.answer.get("tool_calls") else "stop",
            "usage": {name: metrics.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")},
            "tokens": {"ids": ids, "logprobs": logprobs} if ids and logprobs else None,
        },
    }


def _with_embedded(trajectory: Trajectory, prefix: str) -> Iterator[tuple[str, Trajectory]]:
    yield prefix, trajectory
    for inner in trajectory.get("subagent_trajectories") or ():
        yield from _with_embedded(inner, f"{prefix}{inner['trajectory_id']}/")


def _is_call(step: Mapping[str, Any]) -> bool:
    """A step that was copied is a call of another trajectory; one without a call to a model is the program's own."""
    return step["source"] == "agent" and not step.get("is_copied_context") and step.get("llm_call_count") != 0


def _messages(step: Mapping[str, Any]) -> Iterator[Message]:
    """What a step says, then what came of it: results of its tool calls, or what an agent without tool calls is told as a user's
    message. As some of Harbor's agents write them, results may name no call, and reasoning may repeat the message."""
    said: dict[str, Any] = {"role": ROLES[step["source"]], "content": _content(step["message"])}
    thoughts = step.get("reasoning_content")
    if thoughts and thoughts != said["content"]:
        said["reasoning_content"] = thoughts
    if calls := step.get("tool_calls"):
        said["tool_calls"] = [_read_call(call) for call in calls]
    yield said | _kept(step)
    results = (step.get("observation") or {}).get("results") or ()
    named = {result.get("source_call_id") for result in results}
    unnamed = [call["id"] for call in said.get("tool_calls", ()) if call["id"] not in named]
    for result in results:
        content, kept = _content(result.get("content")), _kept(result)
        if call := result.get("source_call_id") or (unnamed.pop(0) if unnamed else ""):
            yield {"role": "tool", "tool_call_id": call, "content": content} | kept
        elif content:
            yield {"role": "user", "content": content} | kept


def _read_call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    function = {"name": call["function_name"], "arguments": arguments} | _kept(call)
    return {"id": call["tool_call_id"], "type": "function", "function": function}


def _content(content: Any) -> str | list[Message]:
    """Text, or with images a list of parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    if all(part["type"] != "image" for part in content):
        return "\n".join(part["text"] for part in content if part["type"] == "text")
    return [
        {"type": "image_url", "image_url": {"url": part["source"]["path"]}}
        if part["type"] == "image"
        else part
        for part in content
    ]


def _kept(part: Mapping[str, Any]) -> dict[str, Any]:
    return dict((part.get("extra") or {}).get(OURS) or {})
