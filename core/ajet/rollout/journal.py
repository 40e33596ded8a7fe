"""Episodes as JSON lines, with their tokens: what reports read, and what a resumed run reuses.

One line per episode. Messages and tokens are written as tries: each message and each token once, so the length
of a line depends on what is new in an episode. Arrays are base64 of little-endian int32 or float32.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.capture.judge_calls import JudgeCall
from ajet.capture.process.printed import Printed
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.failures import Failure
from ajet.rollout.recorded import RecordedTask
from ajet.tracker.breaks import Break
from ajet.tracker.call import Call, MessageNode
from ajet.tracker.record import Details, EpisodeRecord, Exchange, RefusedCall
from ajet.tracker.tree import Node, TokenTree
from ajet.types import Generation, Image, Spent, Task, WorkflowOutput

_DETAILS = tuple(field.name for field in fields(Details))
_REFUSED = ("number", "agent", "target", "key", "code", "status", "message")


def episode_to_json(episode: Episode, *, phase: str, step: int) -> dict[str, Any]:
    """The journal's line of an episode."""
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
        "rewards": episode.rewards,
        "is_success": episode.is_success,
        "metrics": episode.metrics,
        "counters": dict(episode.counters),
        "started": round(episode.started, 4),
        "seconds": round(episode.seconds, 4),
        **({"spent": asdict(episode.spent)} if episode.spent != Spent() else {}),
        **({"feedback": episode.feedback} if episode.feedback else {}),
        **({"prompts": dict(episode.prompts)} if episode.prompts else {}),
        **({"printed": episode.printed.text} if episode.printed.text else {}),
        **_given(episode.plan.task),
        **({"judge_calls": [asdict(call) for call in episode.judge_calls]} if episode.judge_calls else {}),
        **({"tools": episode.record.tools} if episode.record.tools else {}),
        **(
            {"images": {i.ref: i.token for i in episode.record.images.values()}}
            if episode.record.images
            else {}
        ),
        "response": plain_response(episode.output.response),
        "breaks": [asdict(b) for b in episode.breaks],
        "trees": {key: _tree_to_json(tree) for key, tree in episode.record.trees.items()},
        **_chats_to_json(episode.record),
    }


@dataclass(frozen=True, slots=True)
class JournalLine:
    """An episode's line as text, which can be sent to the journal's writer before the step that learns from it is known."""

    id: str
    beginning: str
    """The line without its step and its last brace."""
    images: tuple[Image, ...] = ()
    """The images of the episode, which are files of the run folder."""

    @classmethod
    def of(cls, episode: Episode, phase: str) -> JournalLine:
        """The line of an episode that has ended."""
        line = episode_to_json(episode, phase=phase, step=0)
        del line["step"]
        images = tuple(episode.record.images.values())
        return cls(episode.plan.id, json.dumps(line, ensure_ascii=False)[:-1], images)

    def at(self, step: int) -> str:
        """The whole line, with its step."""
        return f'{self.beginning}, "step": {step}}}'


def episode_from_json(line: Mapping[str, Any], plan: Plan) -> Episode:
    """The episode of a line, its token trees rebuilt."""
    record = EpisodeRecord()
    record.trees = {key: _tree_from_json(tree) for key, tree in line["trees"].items()}
    chat_end = {key: _chat_from_json(record.chat(key), rows) for key, rows in line["chats"].items()}
    for data in line["calls"]:
        answer = chat_end[data["key"]][data["answer"]] if "answer" in data else None
        if answer:
            exchange = Exchange(
                data["number"],
                data["agent"],
                data["target"],
                data["key"],
                answer,
                data.get("started", 0.0),
                data.get("seconds", 0.0),
            )
            record.exchanges.append(exchange)
        if "tokens" in data:
            call = _call_from_json(data, record.tree(data["key"]), answer)
            record.calls.append(call)
            if answer:
                answer.ends.append(call)
        if "details" in data:
            record.details[data["number"]] = Details(**data["details"])
    for data in line.get("refused", ()):
        if "details" in data:
            record.details[data["number"]] = Details(**data["details"])
        end = chat_end[data["key"]][data["chat_end"]]
        record.refused.append(RefusedCall(chat_end=end, **{name: data[name] for name in _REFUSED}))
    record.tools = dict(line.get("tools", {}))
    record.image_tokens = {token: ref for ref, token in line.get("images", {}).items()}
    record.close()
    episode = Episode(plan, line["attempt"], WorkflowOutput(response=line["response"]), record)
    episode.counters = Counter(line["counters"])
    episode.failed = Failure.parse(line["failure"], line["error"]) if line["failure"] else None
    episode.reward, episode.rewards = line["reward"], line["rewards"]
    episode.is_success, episode.metrics = line["is_success"], line["metrics"]
    episode.breaks = tuple(
        Break(**{**b, "recorded": tuple(b["recorded"]), "sent": tuple(b["sent"])}) for b in line["breaks"]
    )
    episode.started, episode.seconds = line.get("started", 0.0), line["seconds"]
    episode.spent = Spent(**line.get("spent", {}))
    episode.feedback, episode.prompts = line.get("feedback", ""), line.get("prompts", {})
    episode.printed = Printed(line.get("printed", ""))
    episode.judge_calls = tuple(JudgeCall(**call) for call in line.get("judge_calls", ()))
    return episode


def _given(task: Task) -> dict[str, Any]:
    """What a task holds besides its id, for recordings; nothing if JSON cannot hold it, or if no workflow ran on it."""
    given = {"query": task.query, "messages": list(task.messages), "metadata": dict(task.metadata)}
    held = not isinstance(task, RecordedTask) and plain_response(given) is given
    return {"given": given} if held else {}


def _chats_to_json(record: EpisodeRecord) -> dict[str, Any]:
    """The messages of each merging key as (index of the one before, message), and the calls."""
    calls = {call.number: call for call in record.calls}
    rows: dict[str, list[tuple[int, Any]]] = {}
    indices: dict[MessageNode, int] = {}

    def index_of(chat_end: MessageNode, key: str) -> int:
        new = []
        node = chat_end
        while node.parent is not None and node not in indices:
            new.append(node)
            node = node.parent
        for node in reversed(new):
            before = indices.get(node.parent, -1) if node.parent else -1
            indices[node] = len(rows[key])
            rows[key].append((before, node.message))
        return indices[chat_end]

    def details_of(number: int) -> dict[str, Any]:
        found = record.details.get(number)
        values = {name: getattr(found, name) for name in _DETAILS} if found else {}
        return {name: value for name, value in values.items() if value not in (None, {})}

    lines = []
    answered: list[Exchange | Call] = [*record.exchanges, *(c for c in record.calls if c.chat_end is None)]
    for one in answered:
        line: dict[str, Any] = {
            "number": one.number,
            "agent": one.agent,
            "target": one.target,
            "key": one.key,
        }
        if isinstance(one, Exchange):
            rows.setdefault(one.key, [])
            line["answer"] = index_of(one.answer, one.key)
            line["started"], line["seconds"] = round(one.started, 4), round(one.seconds, 4)
        if details := details_of(one.number):
            line["details"] = details
        call = calls.get(one.number)
        if call:
            line["tokens"] = _call_to_json(call)
        lines.append(line)
    refused = []
    for failed in record.refused:
        rows.setdefault(failed.key, [])
        given = {name: getattr(failed, name) for name in _REFUSED}
        if found := details_of(failed.number):
            given["details"] = found
        refused.append({**given, "chat_end": index_of(failed.chat_end, failed.key)})
    return {"chats": rows, "calls": lines, **({"refused": refused} if refused else {})}


def _chat_from_json(root: MessageNode, rows: Sequence[tuple[int, Any]]) -> list[MessageNode]:
    nodes: list[MessageNode] = []
    for before, message in rows:
        nodes.append((nodes[before] if before >= 0 else root).add(message))
    return nodes


def _tree_to_json(tree: TokenTree) -> list[tuple[int, int, str]]:
    """Branches as (number of the parent, length at which it is left, tokens)."""
    return [
        (b.parent.number if b.parent else -1, b.start, base64.b64encode(b.data).decode())
        for b in tree.branches
    ]


def _tree_from_json(rows: Sequence[tuple[int, int, str]]) -> TokenTree:
    tree = TokenTree()
    for parent, start, data in rows:
        tree.restore(parent, start, base64.b64decode(data))
    return tree


def _call_to_json(call: Call) -> dict[str, Any]:
    return {
        "prompt": (call.prompt.branch.number, call.prompt.length),
        "end": (call.end.branch.number, call.end.length),
        "logprobs": _pack(call.generation.logprobs, "<f4"),
        "versions": _pack(call.generation.weight_versions, "<i4"),
        "finish_reason": call.generation.finish_reason,
        "temperature": call.temperature,
        "trained": call.trained,
        "parent": call.parent,
        "cause": call.cause,
    }


def _call_from_json(data: Mapping[str, Any], tree: TokenTree, answer: MessageNode | None) -> Call:
    tokens = data["tokens"]
    prompt, end = (Node(tree.branches[b], length) for b, length in (tokens["prompt"], tokens["end"]))
    generation = Generation(
        end.ids(prompt.length),
        _unpack(tokens["logprobs"], "<f4"),
        _unpack(tokens["versions"], "<i4"),
        tokens["finish_reason"],
    )
    return Call(
        number=data["number"],
        agent=data["agent"],
        target=data["target"],
        key=data["key"],
        prompt=prompt,
        end=end,
        generation=generation,
        temperature=tokens["temperature"],
        trained=tokens["trained"],
        parent=tokens["parent"],
        cause=tokens["cause"],
        chat_end=answer.parent if answer else None,
    )


def _pack(array: NDArray[Any], kind: str) -> str:
    return base64.b64encode(array.astype(kind).tobytes()).decode()


def _unpack(text: str, kind: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), kind).astype(kind[1:])


def plain_response(value: Any) -> Any:
    """A workflow's response as JSON, or as text if it is not JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
