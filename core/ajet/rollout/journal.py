"""Episodes as JSON lines, with their tokens: what reports read, and what a resumed run reuses.

One line per episode. Messages and tokens are written as tries: each message and each token once, so the length
of a line depends on what is new in an episode. Arrays are base64 of little-endian int32 or float32.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.capture.judge_calls import JudgeCall
from ajet.capture.process.printed import Printed
from ajet.rollout.episode import Episode, Fork, Plan, RecordedTask
from ajet.rollout.failures import Failure
from ajet.tracker.breaks import Break
from ajet.tracker.call import Call, Exchange, MessageNode
from ajet.tracker.record import EpisodeRecord, nodes_of_answer
from ajet.tracker.tree import Node, TokenTree
from ajet.types import Generation, Image, Spent, Task, WorkflowOutput

_DETAILS = {
    "model": "model",
    "sampling": "sampling",
    "prompt": "text",
    "said": "said",
    "stop": "stop",
    "reasoning_tokens": "reasoning_tokens",
}
_NAMED = {"number": "number", "agent": "agent", "target": "target", "key": "key"}
_REFUSED = {**_NAMED, "code": "code", "status": "status", "message": "error"}
"""Fields of a line, and those of an `Exchange`."""


def episode_to_json(episode: Episode, *, phase: str, step: int) -> dict[str, Any]:
    """The journal's line of an episode."""
    return {
        "type": "episode",
        "id": episode.plan.id,
        "phase": phase,
        "step": step,
        "task": episode.plan.task.id,
        "member": episode.plan.member,
        **({"fork": _fork_to_json(fork)} if (fork := episode.plan.fork) else {}),
        "attempt": episode.attempt,
        "failure": episode.failure,
        "error": episode.error,
        "reward": episode.reward,
        "rewards": episode.rewards,
        **({"call_rewards": episode.call_rewards} if episode.call_rewards else {}),
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
    record.tools = dict(line.get("tools", {}))
    chat_end = {key: _chat_from_json(record.chat(key), rows) for key, rows in line["chats"].items()}
    for data in line["calls"]:
        answer = chat_end[data["key"]][data["answer"]] if "answer" in data else None
        call = _call_from_json(data, record, answer)
        record.asked.append(call)
        if isinstance(call, Call):
            record.calls.append(call)
            if answer:
                for node in nodes_of_answer(call, answer):
                    node.ends.append(call)
    for data in line.get("refused", ()):
        end = chat_end[data["key"]][data["chat_end"]]
        kept = _from_line(data, _REFUSED) | _from_line(data.get("details", {}), _DETAILS)
        record.asked.append(Exchange(**kept, chat_end=end, tools=record.tools.get(data["key"], ())))
    record.image_tokens = {token: ref for ref, token in line.get("images", {}).items()}
    record.close()
    if "fork" in line:
        plan = replace(plan, fork=Fork(**line["fork"]))
    episode = Episode(plan, line["attempt"], WorkflowOutput(response=line["response"]), record)
    episode.counters = Counter(line["counters"])
    episode.failed = Failure.parse(line["failure"], line["error"]) if line["failure"] else None
    episode.reward, episode.rewards = line["reward"], line["rewards"]
    episode.call_rewards = {int(number): r for number, r in line.get("call_rewards", {}).items()}
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


def _fork_to_json(fork: Fork) -> dict[str, Any]:
    plain = {"parent": fork.parent, "calls": fork.calls}
    return {**plain, "steered": True} if fork.steered else plain


def _given(task: Task) -> dict[str, Any]:
    """What a task holds besides its id, for recordings; nothing if JSON cannot hold it, or if no workflow ran on it."""
    given = {"query": task.query, "messages": list(task.messages), "metadata": dict(task.metadata)}
    held = not isinstance(task, RecordedTask) and plain_response(given) is given
    return {"given": given} if held else {}


def _chats_to_json(record: EpisodeRecord) -> dict[str, Any]:
    """The messages of each merging key as (index of the one before, message), and the calls."""
    rows: dict[str, list[tuple[int, Any]]] = {}
    indices: dict[MessageNode, int] = {}

    def index_of(chat_end: MessageNode, key: str) -> int:
        new = []
        node = chat_end
        while node.parent is not None and node not in indices:
            new.append(node)
            node = node.parent
        rows.setdefault(key, [])
        for node in reversed(new):
            before = indices.get(node.parent, -1) if node.parent else -1
            indices[node] = len(rows[key])
            rows[key].append((before, node.message))
        return indices[chat_end]

    def line_of(call: Exchange, names: Mapping[str, str]) -> dict[str, Any]:
        details = {name: getattr(call, field) for name, field in _DETAILS.items()}
        told = {name: value for name, value in details.items() if value not in (None, {})}
        given = {name: getattr(call, field) for name, field in names.items()}
        return {**given, "details": told} if told else given

    calls, refused = [], []
    for call in record.asked:
        if call.code:
            assert call.chat_end
            refused.append({**line_of(call, _REFUSED), "chat_end": index_of(call.chat_end, call.key)})
        elif call.answer or isinstance(call, Call):
            line = line_of(call, _NAMED)
            if call.answer:
                line["answer"] = index_of(call.answer, call.key)
                line["started"], line["seconds"] = round(call.started, 4), round(call.seconds, 4)
            if isinstance(call, Call):
                line["tokens"] = _tokens_to_json(call)
            calls.append(line)
    return {"chats": rows, "calls": calls, **({"refused": refused} if refused else {})}


def _from_line(data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: data[name] for name, field in names.items() if name in data}


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


def _tokens_to_json(call: Call) -> dict[str, Any]:
    return {
        "prompt": (call.prompt.branch.number, call.prompt.length),
        "end": (call.end.branch.number, call.end.length),
        "logprobs": _pack(call.generation.logprobs, "<f4"),
        "versions": _pack(call.generation.weight_versions, "<i4"),
        "finish_reason": call.generation.finish_reason,
        "temperature": call.temperature,
        "trained": call.trained,
        **({"continues": True} if call.continues else {}),
        **({"side": True} if call.side else {}),
        **({"replayed": True, "place": call.place} if call.replayed else {}),
        **({"truncated": True} if call.generation.kept else {}),  # its logprobs are over kept tokens
        "parent": call.parent,
        "cause": call.cause,
    }


def _call_from_json(data: Mapping[str, Any], record: EpisodeRecord, answer: MessageNode | None) -> Exchange:
    kept = _from_line(data, _NAMED) | _from_line(data.get("details", {}), _DETAILS)
    kept |= {name: data[name] for name in ("started", "seconds") if name in data}
    kept |= {"answer": answer, "chat_end": answer.parent if answer else None}
    kept["tools"] = record.tools.get(data["key"], ())
    if "tokens" not in data:
        return Exchange(**kept)
    tokens, branches = data["tokens"], record.tree(data["key"]).branches
    prompt, end = (Node(branches[b], length) for b, length in (tokens["prompt"], tokens["end"]))
    generation = Generation(
        end.ids(prompt.length),
        _unpack(tokens["logprobs"], "<f4"),
        _unpack(tokens["versions"], "<i4"),
        tokens["finish_reason"],
    )
    same = {name: tokens[name] for name in ("temperature", "trained", "parent", "cause")}
    same |= _from_line(tokens, {name: name for name in ("continues", "side", "replayed", "place")})
    return Call(**kept, **same, prompt=prompt, end=end, generation=generation)


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
