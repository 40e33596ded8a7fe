"""Token-in-token-out: a prompt is the stored ids of the conversation that it continues, plus what is new.

So retokenisation cannot drift: the next prompt contains exactly what the engine sampled. If the chat format would
write anything else differently, the client's messages are rendered again, and the cause is kept with the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ajet.chat.renderer import Chat, Increment, Turn
from ajet.tracker.call import Basis, Call, Message, MessageNode
from ajet.tracker.conversations import Recognised
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.tracker.tree import Node
from ajet.types import AjetError

HIDDEN = "stop string hidden"
"""The cause if the stored ids contain text that the client never saw."""
TAIL = 64
"""Prompt tokens that show how the answer began: the generation header."""

APART = "prefill sent apart"
REASONING = "thinking stripped"
EDITED = "answer edited"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The engine's prompt. ``parent`` is the call that it continues by stored ids, ``cause`` the reason why a
    recognised conversation could not be continued that way, ``drift`` how often the stored ids differ in form
    from what the client sent (policy ``text``)."""

    node: Node
    chat_end: MessageNode
    parent: int | None = None
    cause: str = ""
    drift: int = 0
    basis: Basis = field(default_factory=Basis)


@dataclass(frozen=True, slots=True)
class ClientChat:
    """A client's chat as it was recognised, and how it may be continued."""

    recognised: Recognised
    named: int | None = None
    """The call whose reply the client named."""
    by_text: bool = False


def make_prompt(
    record: EpisodeRecord, chat: Chat, key: str, client_chat: ClientChat, tools: Sequence[Message]
) -> Prompt:
    """The prompt of a chat. Raises AjetError if it cannot be rendered.

    An assistant message at the end is a prefill: the answer continues it.
    """
    chat_end, drift = client_chat.recognised.chat_end, client_chat.recognised.drift
    if chat_end.message["role"] != "assistant" or chat_end.parent is None:
        return _after_answer(record, chat, key, client_chat, chat_end, tools)
    if chat_end.message.get("tool_calls"):
        raise AjetError(
            "the chat ends with tool calls of the assistant, which an answer cannot continue. Send the tools' results "
            "after them."
        )
    tree = record.tree(key)
    for call in (_reply(chat_end, client_chat), *chat_end.ends) if chat_end.ends else ():
        if _shows_all(chat, call, chat_end):
            node = tree.extend(call.prompt, as_ids(_without_stop(chat, call)))
            return Prompt(node, chat_end, call.number, drift=drift, basis=call.basis or Basis())
    before = _after_answer(record, chat, key, client_chat, chat_end.parent, tools)
    begun = chat.prefill(as_sent(chat_end, client_chat.recognised.sent), tools, before.node.ids().tolist())
    node = tree.extend(tree.root, as_ids(begun.ids or []))
    cause = HIDDEN if chat_end.ends else begun.cause
    if cause:
        return replace(before, node=node, chat_end=chat_end, parent=None, cause=before.cause or cause)
    return replace(before, node=node, chat_end=chat_end)


def _after_answer(
    record: EpisodeRecord,
    chat: Chat,
    key: str,
    client_chat: ClientChat,
    chat_end: MessageNode,
    tools: Sequence[Message],
) -> Prompt:
    tree, held, refused = record.tree(key), chat_end.held(), Increment(None)
    if held is not None:
        call = _reply(held, client_chat)
        basis = call.basis or Basis()
        refused, drift = _unlike(call, held, client_chat), client_chat.recognised.drift
        if refused.cause == REASONING and client_chat.by_text:
            refused, drift = Increment(None), drift + 1
        if not refused.cause:
            increment = chat.next_turn(
                _turn(call, held, chat_end, basis), tools, keep_thinking=client_chat.by_text
            )
            if increment.ids is not None:
                node = tree.extend(call.end, as_ids(increment.ids))
                now = replace(basis, rendered=increment.rendered, was="", now="")
                return Prompt(node, chat_end, call.number, drift=drift + bool(increment.cause), basis=now)
            refused = increment
    ids, rendered = chat.begin(as_sent(chat_end, client_chat.recognised.sent), tools)
    basis = Basis(rendered, chat_end.depth, client_chat.recognised.sent, refused.was, refused.now)
    return Prompt(tree.extend(tree.root, ids), chat_end, cause=refused.cause, basis=basis)


def _reply(chat_end: MessageNode, client_chat: ClientChat) -> Call:
    """The call of a recorded answer: the one that the client named, else the first."""
    return next((call for call in chat_end.ends if call.number == client_chat.named), chat_end.ends[0])


def _unlike(call: Call, held: MessageNode, client_chat: ClientChat) -> Increment:
    """Why the stored ids of a call do not match what the client sent before its answer, if they do not."""
    if (
        call.chat_end is not None
        and call.chat_end is held.parent
        and call.chat_end.message.get("role") == "assistant"
    ):
        return Increment(None, APART)  # the stored ids have both in one turn
    basis = call.basis or Basis()
    sent = {index: m for index, m in client_chat.recognised.sent.items() if index < basis.rendered_messages}
    if sent == basis.sent:
        return Increment(None)
    path = held.chat()
    index = next(i for i in sorted(sent.keys() | basis.sent.keys()) if sent.get(i) != basis.sent.get(i))
    was, now = (forms.get(index, path[index]) for forms in (basis.sent, sent))
    differs = was.get("reasoning_content") != now.get("reasoning_content")
    return Increment(None, REASONING if differs else EDITED)


def _turn(call: Call, held: MessageNode, chat_end: MessageNode, basis: Basis) -> Turn:
    return Turn(
        prompt_tail=_tail(call),
        completion=call.generation.token_ids.tolist(),
        answer=held.message,
        new=chat_end.messages_after(held),
        count=chat_end.depth,
        whole=lambda: as_sent(chat_end, basis.sent),
        rendered=basis.rendered,
    )


def as_sent(chat_end: MessageNode, sent: Mapping[int, Message]) -> list[Message]:
    """The messages that lead to one, some in the form in which they were sent."""
    return [sent.get(index, message) for index, message in enumerate(chat_end.chat())]


def _shows_all(chat: Chat, call: Call, chat_end: MessageNode) -> bool:
    """Whether the message has all that the call sampled: a stop string, and everything after it, is hidden."""
    begun = call.chat_end if call.chat_end is not None and call.chat_end is not chat_end.parent else None
    parsed = chat.parse(call.generation.token_ids.tolist(), _tail(call))
    shown = ((begun.message.get("content") or "") if begun else "") + parsed.content
    return shown == (chat_end.message.get("content") or "")


def _tail(call: Call) -> list[int]:
    ids: list[int] = call.prompt.ids(max(0, call.prompt.length - TAIL)).tolist()
    return ids


def _without_stop(chat: Chat, call: Call) -> list[int]:
    ids: list[int] = call.generation.token_ids.tolist()
    return ids[:-1] if ids and ids[-1] in chat.stop_token_ids else ids
