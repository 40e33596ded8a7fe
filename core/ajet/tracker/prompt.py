"""Token-in-token-out: a prompt is the stored ids of the conversation that it continues, and what is new.

So retokenisation cannot drift: what the engine sampled is what the next prompt holds. Only where the
chat format rewrites what went before is the whole chat rendered anew; the cause is kept with the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ajet.chat import Chat, Turn
from ajet.tracker.conversations import Message, Said
from ajet.tracker.record import Call, EpisodeRecord, as_ids
from ajet.tracker.tree import Node

TAIL = 64
"""Prompt tokens that show how the answer began: the generation header."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is to see. ``parent`` is the call that it continues by stored ids, ``cause`` why a
    recognised conversation could not be continued so, ``drift`` how often the stored ids stand for
    something that the client said otherwise (policy ``text``)."""

    node: Node
    said: Said
    parent: int | None = None
    cause: str = ""
    drift: int = 0


def make_prompt(
    record: EpisodeRecord,
    chat: Chat,
    key: str,
    said: Said,
    tools: Sequence[Message],
    *,
    drift: int = 0,
    by_text: bool = False,
) -> Prompt:
    """The prompt of a chat that ends with ``said``. Raises AjetError if it cannot be rendered.

    An assistant message at the end is a prefill: the answer goes on with it.
    """
    if said.message["role"] != "assistant" or said.parent is None:
        return _after_answer(record, chat, key, said, tools, drift, by_text)
    if said.ends:
        call = said.ends[0]
        node = record.tree(key).extend(call.prompt, as_ids(_without_stop(chat, call)))
        return Prompt(node, said, call.number, drift=drift)
    before = _after_answer(record, chat, key, said.parent, tools, drift, by_text)
    ids = as_ids(chat.prefill_ids(said.message.get("content") or ""))
    return Prompt(record.tree(key).extend(before.node, ids), said, before.parent, before.cause, before.drift)


def _after_answer(
    record: EpisodeRecord,
    chat: Chat,
    key: str,
    said: Said,
    tools: Sequence[Message],
    drift: int,
    by_text: bool,
) -> Prompt:
    tree, held, cause = record.tree(key), said.held(), ""
    if held is not None:
        call = held.ends[0]
        turn = Turn(
            prompt_tail=call.prompt.ids(max(0, call.prompt.length - TAIL)).tolist(),
            completion=call.generation.token_ids.tolist(),
            answer=held.message,
            new=said.messages_after(held),
            count=said.depth,
            whole=said.chat,
        )
        increment = chat.next_turn(turn, tools, keep_thinking=by_text)
        if increment.ids is not None:
            node = tree.extend(call.end, as_ids(increment.ids))
            return Prompt(node, said, call.number, drift=drift + bool(increment.cause))
        cause = increment.cause
    return Prompt(tree.extend(tree.root, as_ids(chat.render(said.chat(), tools))), said, cause=cause)


def _without_stop(chat: Chat, call: Call) -> list[int]:
    ids: list[int] = call.generation.token_ids.tolist()
    return ids[:-1] if ids and ids[-1] in chat.stop_token_ids else ids
