"""Token-in-token-out: a prompt is the stored ids of the conversation that it continues, plus what is new.

So retokenisation cannot drift: the next prompt contains exactly what the engine sampled. If the chat format would
write anything else differently, the client's messages are rendered again, and the cause is kept with the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ajet.chat.continuing import REWRITTEN
from ajet.chat.renderer import Chat, Increment, Turn
from ajet.tracker.call import Call, Message, MessageNode, Prompt
from ajet.tracker.conversations import ClientChat
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import AjetError

HIDDEN = "stop string hidden"
"""The cause if the stored ids contain text that the client never saw."""
TAIL = 64
"""Prompt tokens that show how the answer began: the generation header."""

APART = "prefill sent apart"
REASONING = "thinking stripped"
EDITED = "answer edited"


def make_prompt(
    record: EpisodeRecord, chat: Chat, key: str, client_chat: ClientChat, tools: Sequence[Message]
) -> Prompt:
    """The prompt of a chat. Raises AjetError if it cannot be rendered."""
    if client_chat.continues:
        return _within_turn(record, chat, key, client_chat, tools)
    return _new_turn(record, chat, key, client_chat, client_chat.chat_end, tools)


def _within_turn(
    record: EpisodeRecord, chat: Chat, key: str, client_chat: ClientChat, tools: Sequence[Message]
) -> Prompt:
    """A prompt whose answer continues the chat's last message: a recorded answer's ids, or a prefill."""
    chat_end, sent = client_chat.chat_end, client_chat.sent
    if chat_end.message.get("role") != "assistant" or chat_end.parent is None:
        raise AjetError("the answer cannot continue the last message, because that is not the assistant's.")
    if chat_end.message.get("tool_calls"):
        raise AjetError(
            "the chat ends with tool calls of the assistant, which an answer cannot continue. Send the tools' results "
            "after them."
        )
    tree = record.tree(key)
    for call in _replies(chat_end, client_chat):
        if _shows_all(chat, call, chat_end):
            node = tree.extend(call.prompt, as_ids(_without_stop(chat, call)))
            made, drift = _made(call), client_chat.drift
            at = _answered_at(call, made)
            return replace(made, node=node, parent=call.number, cause="", drift=drift, answered_at=at)
    before = _new_turn(record, chat, key, client_chat, chat_end.parent, tools)
    begun = chat.prefill(as_sent(chat_end, sent), tools, before.node.ids().tolist())
    node, held = tree.extend(tree.root, as_ids(begun.ids or [])), chat_end.parent.held()
    kept = before.parent is None or (held and any(node.starts_with(call.end) for call in held.ends))
    rewritten = begun.cause or ("" if kept else REWRITTEN)
    hidden = HIDDEN if _replies(chat_end, client_chat) else APART if chat_end.ends else ""
    cause = hidden or rewritten
    anew = Prompt(node, rendered_messages=chat_end.depth - 1, sent=sent, was=begun.was, now=begun.now)
    return replace(
        anew if rewritten else before,
        node=node,
        parent=None if cause else before.parent,
        cause=before.cause or cause,
        drift=before.drift,
        rendered=begun.rendered,
        begun=chat_end.message["content"],
    )


def _new_turn(
    record: EpisodeRecord,
    chat: Chat,
    key: str,
    client_chat: ClientChat,
    chat_end: MessageNode,
    tools: Sequence[Message],
) -> Prompt:
    tree, held, refused = record.tree(key), chat_end.held(), Increment(None)
    if held is not None:
        replies = _replies(held, client_chat)
        call = replies[0] if replies else held.ends[0]
        made, drift = _made(call), client_chat.drift
        refused = _unlike(made, held, client_chat) if replies else Increment(None, APART)
        if call.continues and made.rendered is None and not refused.cause:
            refused = Increment(None, REWRITTEN)  # what the prompt's text was is not known
        if refused.cause == REASONING and client_chat.by_text:
            refused, drift = Increment(None), drift + 1
        if not refused.cause:
            increment = chat.next_turn(
                _turn(call, held, chat_end, made), tools, keep_thinking=client_chat.by_text
            )
            if increment.ids is not None:
                node = tree.extend(call.end, as_ids(increment.ids))
                return Prompt(
                    node,
                    call.number,
                    drift=drift + bool(increment.cause),
                    rendered=increment.rendered,
                    rendered_messages=made.rendered_messages,
                    sent=made.sent,
                )
            refused = increment
    sent = client_chat.sent
    ids, rendered = chat.begin(as_sent(chat_end, sent), tools)
    return Prompt(
        tree.extend(tree.root, ids),
        cause=refused.cause,
        rendered=rendered,
        rendered_messages=chat_end.depth,
        sent=sent,
        was=refused.was,
        now=refused.now,
    )


def _replies(answer: MessageNode, client_chat: ClientChat) -> list[Call]:
    """The calls whose ids a recorded answer stands for: first the one that the client named. Not one that was to continue
    the message above: its ids have both in one turn."""
    found = [call for call in answer.ends if not (call.continues and call.chat_end is answer.parent)]
    return sorted(found, key=lambda call: call.number != client_chat.named)


def _made(call: Call) -> Prompt:
    return call.made or Prompt(call.prompt)


def _unlike(made: Prompt, held: MessageNode, client_chat: ClientChat) -> Increment:
    """Why the stored ids of a call do not match what the client sent before its answer, if they do not."""
    sent = {index: m for index, m in client_chat.sent.items() if index < made.rendered_messages}
    if sent == made.sent:
        return Increment(None)
    path = held.chat()
    index = next(i for i in sorted(sent.keys() | made.sent.keys()) if sent.get(i) != made.sent.get(i))
    was, now = (forms.get(index, path[index]) for forms in (made.sent, sent))
    differs = was.get("reasoning_content") != now.get("reasoning_content")
    return Increment(None, REASONING if differs else EDITED)


def _turn(call: Call, held: MessageNode, chat_end: MessageNode, made: Prompt) -> Turn:
    at, answer = _answered_at(call, made), held.message
    ids = call.end.ids(max(0, at - TAIL)).tolist()
    if made.begun:
        answer = {**answer, "content": answer["content"][len(made.begun) :]}
    return Turn(
        prompt_tail=ids[: min(at, TAIL)],
        completion=ids[min(at, TAIL) :],
        answer=answer,
        new=chat_end.messages_after(held),
        count=chat_end.depth,
        whole=lambda: as_sent(chat_end, made.sent),
        rendered=made.rendered,
    )


def _answered_at(call: Call, made: Prompt) -> int:
    """The length of what came before the answer; if the answer continues an earlier one, before that."""
    return call.prompt.length if made.answered_at is None else made.answered_at


def as_sent(chat_end: MessageNode, sent: Mapping[int, Message]) -> list[Message]:
    """The messages that lead to one, some in the form in which they were sent."""
    return [sent.get(index, message) for index, message in enumerate(chat_end.chat())]


def _shows_all(chat: Chat, call: Call, answer: MessageNode) -> bool:
    """Whether the message has all that the call sampled: a stop string, and everything after it, is hidden."""
    begun = call.chat_end.message["content"] if call.continues and call.chat_end else ""
    parsed = chat.parse(call.generation.token_ids.tolist(), _tail(call), ())
    return bool(begun + parsed.content == answer.message["content"])


def _tail(call: Call) -> list[int]:
    ids: list[int] = call.prompt.ids(max(0, call.prompt.length - TAIL)).tolist()
    return ids


def _without_stop(chat: Chat, call: Call) -> list[int]:
    ids: list[int] = call.generation.token_ids.tolist()
    return ids[:-1] if ids and ids[-1] in chat.stop_token_ids else ids
