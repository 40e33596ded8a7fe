"""LLM calls from trajectories in ATIF, the format of Harbor's agents (versions 1.0 to 1.8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ajet_atif
from ajet.interfaces.reader import content_id
from ajet_readers.traces.spans import seconds
from ajet_readers.traces.trace import Program, TracedCall


def calls_of(trajectory: Mapping[str, Any]) -> Iterator[TracedCall]:
    """The calls of a trajectory and of those embedded in it. Raises one of `ajet_atif.UNREADABLE` for anything else."""
    identity = str(
        trajectory.get("trajectory_id") or trajectory.get("session_id") or content_id(dict(trajectory))
    )
    of, time = None, 0.0  # traces sort their calls by it, and a step need not have one
    for call in ajet_atif.calls_of(trajectory):
        one, agent = call.trajectory, call.trajectory["agent"]
        began = seconds(call.step.get("timestamp"))
        of, time = one, max(time, began) if one is of else began
        yield TracedCall(
            identity,
            call.name,
            time,
            call.messages,
            call.answer,
            str(call.step.get("model_name") or agent.get("model_name") or ""),
            names=frozenset(str(one[name]) for name in ("trajectory_id", "session_id") if one.get(name)),
            program=Program(str(agent["name"]), str(one.get("session_id") or "")),
        )
