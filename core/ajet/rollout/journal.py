"""Episodes as JSON lines, with their tokens: what reports read, and what a resumed run reuses.

One line an episode. A call holds only what is new in it: the prompt ids after its parent's end, the
messages after its parent's. Arrays are base64 of little-endian int32 or float32.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.capture.session import Exchange
from ajet.rollout.episode import Episode, Plan
from ajet.tracker.record import Call, Conversation, EpisodeRecord
from ajet.types import Generation, WorkflowOutput


def episode_to_json(episode: Episode, *, phase: str, step: int) -> dict[str, Any]:
    """The journal's line of an episode."""
    calls = {call.number: call for call in episode.record.calls}
    ends = {call.number: call.end.length for call in episode.record.calls}
    return {
        "type": "episode",
        "id": episode.plan.id,
        "phase": phase,
        "step": step,
        "task": episode.plan.task.id,
        "member": episode.plan.member,
        "attempt": episode.attempt,
        "failure": episode.failure,
        "error": episode.error,
        "reward": episode.reward,
        "is_success": episode.is_success,
        "metrics": episode.metrics,
        "counters": dict(episode.counters),
        "seconds": round(episode.seconds, 4),
        "response": _plain(episode.output.response),
        "calls": [_call_to_json(e, calls.get(e.number), ends) for e in episode.exchanges],
    }


def episode_from_json(line: Mapping[str, Any], plan: Plan) -> Episode:
    """The episode of a line, its token trees rebuilt."""
    record = EpisodeRecord()
    exchanges = []
    for data in line["calls"]:
        exchanges.append(
            Exchange(
                data["number"],
                data["agent"],
                data["target"],
                data["parent"],
                data["held"],
                tuple(data["messages"]),
                data["answer"],
            )
        )
        if "tokens" in data:
            record.calls.append(_call_from_json(data, record))
    record.close()
    episode = Episode(plan, line["attempt"], WorkflowOutput(response=line["response"]), record, exchanges)
    episode.counters = Counter(line["counters"])
    episode.failure, episode.error = line["failure"], line["error"]
    episode.reward, episode.is_success, episode.metrics = line["reward"], line["is_success"], line["metrics"]
    episode.seconds = line["seconds"]
    return episode


def _call_to_json(exchange: Exchange, call: Call | None, ends: Mapping[int, int]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "number": exchange.number,
        "agent": exchange.agent,
        "target": exchange.target,
        "parent": exchange.parent,
        "held": exchange.held,
        "messages": list(exchange.messages),
        "answer": exchange.answer,
    }
    if call:
        known = ends[call.parent] if call.parent is not None else 0
        data["tokens"] = {
            "key": call.key,
            "prompt": _pack(call.prompt.ids()[known:], "<i4"),
            "sampled": _pack(call.generation.token_ids, "<i4"),
            "logprobs": _pack(call.generation.logprobs, "<f4"),
            "versions": _pack(call.generation.weight_versions, "<i4"),
            "finish_reason": call.generation.finish_reason,
            "temperature": call.temperature,
            "trained": call.trained,
        }
    return data


def _call_from_json(data: Mapping[str, Any], record: EpisodeRecord) -> Call:
    tokens = data["tokens"]
    parent = next((c for c in record.calls if c.number == data["parent"]), None)
    after = Conversation(parent.number, parent.prompt, parent.end) if parent else None
    prompt = record.prompt_node(tokens["key"], _unpack(tokens["prompt"], "<i4"), after)
    sampled = _unpack(tokens["sampled"], "<i4")
    generation = Generation(
        sampled,
        _unpack(tokens["logprobs"], "<f4"),
        _unpack(tokens["versions"], "<i4"),
        tokens["finish_reason"],
    )
    return Call(
        data["number"],
        data["agent"],
        data["target"],
        tokens["key"],
        prompt,
        record.end_node(tokens["key"], prompt, sampled),
        generation,
        tokens["temperature"],
        tokens["trained"],
        data["parent"],
    )


def _pack(array: NDArray[Any], kind: str) -> str:
    return base64.b64encode(array.astype(kind).tobytes()).decode()


def _unpack(text: str, kind: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), kind).astype(kind[1:])


def _plain(value: Any) -> Any:
    """A workflow's response as JSON, or as text where it is no JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
