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
from ajet.types import AjetError

HIDDEN = "stop string hidden"
"""The cause where the stored ids hold text that the client never saw."""
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
    if said.message.get("tool_calls"):
        raise AjetError(
            "the chat ends with tool calls of the assistant, which no answer can go on with. Send the tools' results after "
            "them."
        )
    tree = record.tree(key)
    for call in said.ends:
        if _shows_all(chat, call, said):
            node = tree.extend(call.prompt, as_ids(_without_stop(chat, call)))
            return Prompt(node, said, call.number, drift=drift)
    before = _after_answer(record, chat, key, said.parent, tools, drift, by_text)
    begun = chat.prefill(said.chat(), tools, before.node.ids().tolist())
    node = tree.extend(tree.root, as_ids(begun.ids or []))
    if said.ends:
        return Prompt(node, said, None, HIDDEN, before.drift)
    return Prompt(
        node, said, None if begun.cause else before.parent, before.cause or begun.cause, before.drift
    )


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
            prompt_tail=_tail(call),
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


def _shows_all(chat: Chat, call: Call, said: Said) -> bool:
    """Whether the message has all that the call sampled: a stop string, and what came after it, is hidden."""
    begun = call.said if call.said is not None and call.said is not said.parent else None
    parsed = chat.parse(call.generation.token_ids.tolist(), _tail(call))
    shown = ((begun.message.get("content") or "") if begun else "") + parsed.content
    return shown == (said.message.get("content") or "")


def _tail(call: Call) -> list[int]:
    ids: list[int] = call.prompt.ids(max(0, call.prompt.length - TAIL)).tolist()
    return ids


def _without_stop(chat: Chat, call: Call) -> list[int]:
    ids: list[int] = call.generation.token_ids.tolist()
    return ids[:-1] if ids and ids[-1] in chat.stop_token_ids else ids
