"""LLM calls from trajectories in ATIF, the format of Harbor's agents (versions 1.0 to 1.8)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ajet.interfaces.reader import content_id
from ajet_readers.traces.spans import seconds
from ajet_readers.traces.trace import Message, Program, TracedCall, text_of


def calls_of(trajectory: Mapping[str, Any]) -> Iterator[TracedCall]:
    """The calls of a trajectory and of those embedded in it, each a step of the agent that a model took. Its messages are those of the
    steps before it. Raises ValueError, LookupError, TypeError or AttributeError
    for anything else."""
    identity = str(
        trajectory.get("trajectory_id") or trajectory.get("session_id") or content_id(dict(trajectory))
    )
    yield from _calls(trajectory, identity, "")


def _calls(trajectory: Mapping[str, Any], identity: str, prefix: str) -> Iterator[TracedCall]:
    agent = trajectory["agent"]
    program = Program(str(agent["name"]), str(trajectory.get("session_id") or ""))
    names = frozenset(
        str(trajectory[name]) for name in ("trajectory_id", "session_id") if trajectory.get(name)
    )
    messages: list[Message] = []
    time = 0.0  # traces sort their calls by it, and a step need not have one
    for step in trajectory["steps"]:
        message, time = _message(step), max(time, seconds(step.get("timestamp")))
        # A step that was copied is a call of another trajectory; one without a call to a model is the program's own.
        if (
            step["source"] == "agent"
            and not step.get("is_copied_context")
            and step.get("llm_call_count") != 0
        ):
            yield TracedCall(
                identity,
                f"{prefix}{step['step_id']}",
                time,
                tuple(messages),
                message,
                str(step.get("model_name") or agent.get("model_name") or ""),
                names=names,
                program=program,
            )
        messages += [message, *_results(step)]
    for inner in trajectory.get("subagent_trajectories") or ():
        yield from _calls(inner, identity, f"{prefix}{inner['trajectory_id']}/")


def _message(step: Mapping[str, Any]) -> Message:
    """What a step says, as a message of chat completions."""
    role = {"system": "system", "user": "user", "agent": "assistant"}[step["source"]]
    message: dict[str, Any] = {"role": role, "content": text_of({"content": step["message"]})}
    if thoughts := step.get("reasoning_content"):
        message["reasoning_content"] = thoughts
    if calls := step.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": call["tool_call_id"],
                "type": "function",
                "function": {
                    "name": call["function_name"],
                    "arguments": json.dumps(call["arguments"], ensure_ascii=False),
                },
            }
            for call in calls
        ]
    return message


def _results(step: Mapping[str, Any]) -> Iterator[Message]:
    """What came of a step: results of its tool calls, or what an agent without tool calls is told as a user's message."""
    for result in (step.get("observation") or {}).get("results") or ():
        text = text_of({"content": result.get("content")})
        if call := result.get("source_call_id"):
            yield {"role": "tool", "tool_call_id": call, "content": text}
        elif text:
            yield {"role": "user", "content": text}
