"""Conversations that are no longer in memory go on from their stored tokens: the store finds them by a hash of their messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ajet.chat.messages import BadMessage, canonical, normalise, normalise_tools
from ajet.interfaces.engine import Generation
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, merging_key
from ajet.tracker.tree import Node
from ajet_online.trace import Trace

Message = Mapping[str, Any]


def chat_hashes(
    target: str, tools: Sequence[Message], messages: Sequence[Message]
) -> Iterator[tuple[int, str]]:
    """For each assistant message of a chat: how many messages lead to it, including itself, and a hash of them. Replies that
    differ only in what frameworks change when they send them back have the same hash. Raises BadMessage."""
    digest = blake2b(merging_key(target, tools).encode(), digest_size=16)
    for index, message in enumerate(messages):
        plain = normalise(message, index)
        digest.update(canonical(plain).encode() + b"\n")
        if plain["role"] == "assistant":
            yield index + 1, digest.hexdigest()


def hashes_of_request(target: str, tools: Sequence[Any], messages: Sequence[Message]) -> list[str]:
    """The hashes of a request's chat, the longest first; [] for a request that is not valid."""
    try:
        return [digest for _, digest in chat_hashes(target, normalise_tools(tools), messages)][::-1]
    except BadMessage:
        return []


@dataclass(frozen=True, slots=True)
class Recalled:
    """A stored reply, and where it is in a record."""

    call: Call
    trace: Trace


def restore(
    record: EpisodeRecord, chain: Sequence[Trace], first: int, held: Mapping[str, Recalled]
) -> list[Recalled]:
    """Add replies to a record, with numbers from ``first``, each after its parent. Parents that are not among them are
    ``held`` in the record already, by their ids."""
    recalled = dict(held)
    for number, trace in enumerate(chain, first):
        recalled[trace.id] = _restored(
            record, trace, number, recalled[trace.parent] if trace.parent else None
        )
    return [recalled[trace.id] for trace in chain]


def _restored(record: EpisodeRecord, trace: Trace, number: int, before: Recalled | None) -> Recalled:
    key = merging_key(trace.target, trace.tools)
    tree = record.tree(key)
    prompt: Node = tree.extend(before.call.end if before else tree.root, trace.prompt)
    node = before.call.answer if before and before.call.answer else record.chat(key)
    for index, message in enumerate(trace.messages):
        node = node.add(normalise(message, index))
    generation = Generation(trace.tokens, trace.logprobs, trace.versions, trace.finish_reason)  # type: ignore[arg-type]
    call = Call(
        number=number,
        agent=trace.agent,
        target=trace.target,
        key=key,
        tools=trace.tools,
        prompt=prompt,
        end=tree.extend(prompt, trace.tokens),
        generation=generation,
        temperature=trace.temperature,
        trained=trace.trained,
        parent=before.call.number if before else None,
        chat_end=node if trace.chat else None,
        continues=bool(trace.messages and trace.messages[-1].get("prefix")),
    )
    record.add(call, trace.answer)
    return Recalled(call, trace)
