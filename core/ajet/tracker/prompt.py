"""Token-in-token-out: a prompt is the stored ids of the conversation that it continues, plus what is new.

So retokenisation cannot drift: the next prompt contains exactly what the engine sampled. If the chat format would
write anything else differently, the client's messages are rendered again, and the cause is kept with the call.
"""

from __future__ import annotations

from collections.abc import Mapping

from ajet.chat.continuing import REWRITTEN, Written
from ajet.chat.renderer import TAIL, Chat, Turn
from ajet.tracker.call import Call, Message, MessageNode
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.tracker.tree import common_length
from ajet.types import AjetError

HIDDEN = "stop string hidden"
"""The cause if the stored ids contain text that the client never saw."""

APART = "prefill sent apart"
REASONING = "thinking stripped"
EDITED = "answer edited"


def make_prompt(record: EpisodeRecord, chat: Chat, call: Call, *, by_text: bool = False) -> None:
    """Fill in the prompt of a call that has messages, and how it was made. Raises AjetError if it cannot be rendered."""
    assert call.chat_end
    if call.continues:
        _within_turn(record, chat, call, call.chat_end, by_text)
    else:
        _new_turn(record, chat, call, call.chat_end, by_text)


def _within_turn(record: EpisodeRecord, chat: Chat, call: Call, chat_end: MessageNode, by_text: bool) -> None:
    """The answer continues the chat's last message: a recorded answer's ids, or a prefill."""
    if chat_end.message.get("role") != "assistant" or chat_end.parent is None:
        raise AjetError("the answer cannot continue the last message, because that is not the assistant's.")
    if chat_end.message.get("tool_calls"):
        raise AjetError(
            "the chat ends with tool calls of the assistant, which an answer cannot continue. Send the tools' results "
            "after them."
        )
    tree, replies = record.tree(call.key), _replies(chat_end, call)
    for earlier in replies:
        if _shows_all(chat, earlier, chat_end):
            call.prompt = tree.extend(earlier.prompt, as_ids(_without_stop(chat, earlier)))
            call.parent, call.answered_at, call.begun = earlier.number, _answered_at(earlier), earlier.begun
            call.turn_at = _turn_at(earlier)
            _rendered_as(call, earlier.rendered, earlier.rendered_messages, earlier.rendered_forms)
            return
    _new_turn(record, chat, call, chat_end.parent, by_text)
    before = call.prompt.ids()
    begun = chat.prefill(as_sent(chat_end, call.sent), call.tools, before.tolist())
    call.turn_at = common_length(before, as_ids(begun.ids or []))
    call.prompt, held = tree.extend(tree.root, as_ids(begun.ids or [])), chat_end.parent.held()
    kept = call.parent is None or (
        held and any(call.prompt.starts_with(earlier.end) for earlier in held.ends)
    )
    call.rendered, call.begun = begun.rendered, chat_end.message["content"]
    rewritten = begun.cause or ("" if kept else REWRITTEN)
    if rewritten:
        call.rendered_messages, call.rendered_forms = chat_end.depth - 1, call.sent
        call.was, call.now = begun.was, begun.now
    if cause := (HIDDEN if replies else APART if chat_end.ends else rewritten):
        call.parent, call.cause = None, call.cause or cause


def _new_turn(record: EpisodeRecord, chat: Chat, call: Call, chat_end: MessageNode, by_text: bool) -> None:
    """The prompt ends with ``chat_end``, and asks for a turn of the assistant."""
    tree, held, cause = record.tree(call.key), chat_end.held(), ""
    if held is not None:
        replies, drift = _replies(held, call), call.drift
        earlier = replies[0] if replies else held.ends[0]
        cause = _unlike(earlier, held, call) if replies else APART
        if earlier.continues and earlier.rendered is None and not cause:
            cause = REWRITTEN  # what the prompt's text was is not known
        if cause == REASONING and by_text:
            cause, drift = "", drift + 1
        if not cause:
            more = chat.next_turn(_turn(earlier, held, chat_end), call.tools, keep_thinking=by_text)
            if more.ids is not None:
                call.prompt = tree.extend(earlier.end, as_ids(more.ids))
                call.parent, call.drift = earlier.number, drift + bool(more.cause)
                _rendered_as(call, more.rendered, earlier.rendered_messages, earlier.rendered_forms)
                return
            cause, call.was, call.now = more.cause, more.was, more.now
    ids, rendered = chat.begin(as_sent(chat_end, call.sent), call.tools)
    call.prompt, call.cause, call.drift = tree.extend(tree.root, ids), cause, 0
    _rendered_as(call, rendered, chat_end.depth, call.sent)


def _rendered_as(call: Call, rendered: Written | None, messages: int, forms: Mapping[int, Message]) -> None:
    call.rendered, call.rendered_messages, call.rendered_forms = rendered, messages, forms


def _replies(answer: MessageNode, call: Call) -> list[Call]:
    """The calls whose ids a recorded answer stands for: first the one that the client named. Not one that was to continue
    the message above: its ids have both in one turn."""
    replies = [each for each in answer.ends if not (each.continues and each.chat_end is answer.parent)]
    return sorted(replies, key=lambda each: each.number != call.named)


def _unlike(earlier: Call, held: MessageNode, call: Call) -> str:
    """Why the stored ids of an earlier call do not match what the client sent before its answer; empty if they do."""
    before = earlier.rendered_forms
    sent = {index: m for index, m in call.sent.items() if index < earlier.rendered_messages}
    if sent == before:
        return ""
    path = held.chat()
    index = next(i for i in sorted(sent.keys() | before.keys()) if sent.get(i) != before.get(i))
    was, now = (forms.get(index, path[index]) for forms in (before, sent))
    return REASONING if was.get("reasoning_content") != now.get("reasoning_content") else EDITED


def _turn(earlier: Call, held: MessageNode, chat_end: MessageNode) -> Turn:
    at, answer = _answered_at(earlier), held.message
    start = max(0, _turn_at(earlier) - TAIL)
    ids = earlier.end.ids(start).tolist()
    if earlier.begun:
        answer = {**answer, "content": answer["content"][len(earlier.begun) :]}
    return Turn(
        prompt_tail=ids[: at - start],
        completion=ids[at - start :],
        answer=answer,
        new=chat_end.messages_after(held),
        count=chat_end.depth,
        whole=lambda: as_sent(chat_end, earlier.rendered_forms),
        rendered=earlier.rendered,
    )


def _answered_at(call: Call) -> int:
    """The length of what came before the answer; if the answer continues an earlier one, before that."""
    return call.prompt.length if call.answered_at is None else call.answered_at


def _turn_at(call: Call) -> int:
    if call.turn_at is None:  # if it continues a message, it was read from a journal
        return 0 if call.continues else call.prompt.length
    return call.turn_at


def as_sent(chat_end: MessageNode, sent: Mapping[int, Message]) -> list[Message]:
    """The messages that lead to one, some in the form in which they were sent."""
    return [sent.get(index, message) for index, message in enumerate(chat_end.chat())]


def _shows_all(chat: Chat, call: Call, answer: MessageNode) -> bool:
    """Whether the message has all that the call sampled: a stop string, and everything after it, is hidden."""
    begun = call.chat_end.message["content"] if call.continues and call.chat_end else ""
    ids = call.generation.token_ids.tolist()
    parsed = chat.parse(ids, prompt_tail(call), goes_on=call.continues)
    return bool(begun + parsed.content == answer.message["content"])


def prompt_tail(call: Call) -> list[int]:
    """The last ids of the prompt, which show how the answer began."""
    ids: list[int] = call.prompt.ids(max(0, _turn_at(call) - TAIL)).tolist()
    return ids


def _without_stop(chat: Chat, call: Call) -> list[int]:
    ids: list[int] = call.generation.token_ids.tolist()
    return ids[:-1] if ids and ids[-1] in chat.stop_token_ids else ids
