"""A call and the conversation that it belongs to: each call ends at a message, each message knows its calls.

Which recorded conversation does a request continue? A trie over messages answers it. Each message is a node below the
message before it; a request walks down from the root. A message is found by its `fingerprint`, the raw form in which
a client sent it (cheaper than parsing its JSON); a new form is normalised once and found by its `exact` text. A
message that is not known may be a recorded reply in another form: without its reasoning, with the last streamed piece
of it, with a name, with numbers as JavaScript writes them. It then counts as that reply, and the form that the client
sent is kept with it. Under the policy ``text`` a reply may also be found by its loose text, which counts as drift.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.chat.messages import canonical, exact, fingerprint, loose, normalise, thoughts
from ajet.tracker.tree import Node, TokenTree
from ajet.types import Generation

if TYPE_CHECKING:
    from ajet.chat.continuing import Written

Message = Mapping[str, Any]

_SHORT = 64
_NOWHERE = TokenTree().root
_NOTHING = Generation(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.int32), "stop")
"""What a call has sampled before it is answered."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One LLM call: what it asked, and what came of it. One that an engine answers is a `Call`. It is made when the request has
    arrived, filled in as it is answered, and recorded when the client gets the answer."""

    number: int
    """Numbers follow the order of the requests."""
    agent: str
    target: str
    key: str
    """Merging key: calls share a tree if target and tool list are the same."""
    _: KW_ONLY
    chat_end: MessageNode | None = None
    """The request's last message; None for a call without messages, which continues text."""
    continues: bool = False
    """Whether the answer continues that message, in the same turn."""
    sent: Mapping[int, Message] = field(default_factory=dict)
    """The request's messages that are a recorded reply in another form, by their index."""
    named: int | None = None
    """The call whose reply the request names."""
    tools: Sequence[Message] = ()
    """Those that the prompt lists."""
    text: str | Sequence[int] | None = None
    """Text or token ids that the request continues, if it has no messages."""
    model: str | None = None
    """The name of the model that the request asked for."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The sampling parameters that the request set."""
    started: float = 0.0
    """When the request arrived, in seconds since 1970; 0 if unknown."""
    seconds: float = 0.0
    """From then until the answer was recorded."""
    answer: MessageNode | None = None
    """The answer below ``chat_end``; None for a call without messages, and for one that was refused."""
    said: str | None = None
    """The answer's text, if the request has no messages."""
    stop: str | None = None
    """The stop string of the request that ended the answer."""
    reasoning_tokens: int | None = None
    """How many of the answer's tokens are reasoning, if they were counted."""
    code: str = ""
    """Why the call got an error instead of an answer: its engine failed or its prompt was too long, for example."""
    status: int = 0
    """The error's HTTP status."""
    error: str = ""
    """The error's message."""

    def chat(self) -> list[Message]:
        """The request's messages, and the answer if there is one."""
        end = self.answer or self.chat_end
        return end.chat() if end else []

    def refused(self, code: str, status: int, error: str) -> Exchange:
        """The record of the request if it gets an error instead of an answer."""
        asked = {each.name: getattr(self, each.name) for each in fields(Exchange)}
        return Exchange(**asked | {"code": code, "status": status, "error": error})


@dataclass(slots=True, eq=False)
class Call(Exchange):
    """A call that an engine answers: a sampled span in a token tree.

    ``prompt`` and ``end`` are nodes: what the engine saw, and the same plus what it sampled.
    """

    prompt: Node = _NOWHERE
    end: Node = _NOWHERE
    generation: Generation = _NOTHING
    temperature: float = 1.0
    trained: bool = False
    """Greedy calls and frozen targets are recorded, but not trained."""
    parent: int | None = None
    """The call whose conversation this prompt continued by stored ids."""
    cause: str = ""
    """Why a recognised conversation could not be continued by its stored ids."""
    drift: int = 0
    """How often the stored ids differ in form from what the client sent (policy ``text``)."""
    rendered: Written | None = None
    """What the chat format knows about the rendering of the prompt; None for a call read from a journal."""
    rendered_messages: int = 0
    """Messages at the beginning that were rendered; those after them follow stored ids."""
    rendered_forms: Mapping[int, Message] = field(default_factory=dict)
    """Those of them that are a recorded reply in another form, by their index."""
    was: str = ""
    """If the chat template is the cause of a break: what it wrote there before."""
    now: str = ""
    """What the chat template writes there now."""
    begun: str = ""
    """The text of the answer that is in the rendering: a prefill."""
    answered_at: int | None = None
    """The length of the prompt that was rendered or continued, if this one also has an earlier part of the answer."""
    turn_at: int | None = None
    """The length of the prompt up to the earlier part of the answer that it has; None if it has none, or if that is not known."""
    side: bool = False
    """Whether it is a side call: see `ajet.tracker.side_calls`, and targets with ``train: false``. Batches leave it out."""
    replayed: bool = False
    """Whether a fork got the answer from its parent's record. It is context only, so it is not ``trained``: its parent is."""
    place: int = 0
    """Where the call that it replays is on its parent's path (`EpisodeRecord.path`)."""


@dataclass(frozen=True, slots=True)
class ReturnedReply:
    """A recorded reply as a client sent it back."""

    node: MessageNode
    sent: Message
    loosely: bool


class MessageNode:
    """A node: a message (in normal form) after all those above it."""

    __slots__ = (
        "by_fingerprint",
        "children",
        "depth",
        "ends",
        "forms",
        "last_reasoning",
        "message",
        "parent",
        "replies",
    )

    def __init__(self, parent: MessageNode | None, message: Message) -> None:
        self.parent = parent
        self.message = message
        self.depth: int = parent.depth + 1 if parent else 0
        """How many messages lead here, including this one."""
        self.ends: list[Call] = []
        """The calls that answered with this message, by number."""
        self.children: dict[str | bytes, MessageNode] = {}
        """Children by shortened exact text."""
        self.by_fingerprint: dict[Hashable, MessageNode] = {}
        """Children by fingerprint."""
        self.replies: dict[str | bytes, list[MessageNode]] | None = None
        """Children that are recorded answers, by shortened canonical text."""
        self.forms: dict[Hashable, ReturnedReply] = {}
        """Other forms of these answers, by fingerprint."""
        self.last_reasoning = ""
        """The last piece of a streamed reply's reasoning. OpenAI's Node.js client replaces each piece with the next one,
        so this is what its users send back."""

    def add(self, message: Message) -> MessageNode:
        """The node of a message in normal form that follows this one; added if it is new."""
        return self._add(message, _short(exact(message)))

    def _add(self, message: Message, short: str | bytes) -> MessageNode:
        node = self.children.get(short)
        if node is None:
            node = self.children[short] = MessageNode(self, message)
        return node

    def find(self, message: Message) -> MessageNode | None:
        """The node of a message in normal form if it follows this one, in this form or as a reply in another."""
        node = self.children.get(_short(exact(message)))
        if node is None and self.replies:
            replies = self.replies.get(_short(canonical(message)))
            node = replies[0] if replies else None
        return node

    def answered_by(self, call: Call) -> None:
        """Note that this message is a call's answer."""
        insort(self.ends, call, key=lambda c: c.number)
        above = self.parent
        assert above
        above.replies = above.replies or {}
        replies = above.replies.setdefault(_short(canonical(self.message)), [])
        if self not in replies:
            replies.append(self)
        # A form that was found before this reply existed may be this reply.
        above.by_fingerprint.clear()
        above.forms.clear()

    def from_client(self, message: Message, index: int, by_text: bool) -> MessageNode | ReturnedReply:
        """The node of a client's message whose fingerprint is new here, or the reply of which it is another
        form. Raises BadMessage."""
        plain = normalise(message, index)
        short = _short(exact(plain))
        node = self.children.get(short)
        if self.replies and plain["role"] == "assistant" and not (node and node.ends):
            form = self._reply(plain, by_text)
            if form is not None:
                self.forms[fingerprint(message)] = form
                return form
        node = node or self._add(plain, short)
        self.by_fingerprint[fingerprint(message)] = node
        return node

    def _reply(self, plain: Message, by_text: bool) -> ReturnedReply | None:
        """The first recorded reply that a client's message matches: without its reasoning, or with what the client got."""
        assert self.replies is not None
        reasoning = thoughts(plain)
        alike = self.replies.get(_short(canonical(plain)), ())
        matching = [node for node in alike if node._may_think(reasoning)]
        loosely = not matching and by_text
        if loosely:
            text = loose(plain)
            replies = (node for nodes in self.replies.values() for node in nodes)
            matching = [
                node for node in replies if loose(node.message) == text and node._may_think(reasoning)
            ]
        if not matching:
            return None
        return ReturnedReply(min(matching, key=lambda node: node.ends[0].number), plain, loosely)

    def _may_think(self, reasoning: str) -> bool:
        """Whether a client that sends this reply back may send it with this reasoning."""
        return not reasoning or reasoning in (thoughts(self.message), self.last_reasoning.strip())

    def path(self) -> list[MessageNode]:
        """The nodes that lead here, the first message first."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def chat(self) -> list[Message]:
        """The messages that lead here, this one last."""
        return [node.message for node in self.path()]

    def messages_after(self, held: MessageNode | None) -> list[Message]:
        """The messages below ``held``, this one last."""
        messages = []
        node = self
        while node is not held and node.parent is not None:
            messages.append(node.message)
            node = node.parent
        return messages[::-1]

    def common(self, other: MessageNode) -> int:
        """How many messages at the beginning both chats share."""
        mine, others = self.path(), other.path()
        return sum(a is b for a, b in zip(mine, others, strict=False))

    def held(self) -> MessageNode | None:
        """The nearest message at or above this one that is the answer of a recorded call."""
        node: MessageNode | None = self
        while node is not None and not node.ends:
            node = node.parent
        return node


def _short(text: str) -> str | bytes:
    """A text as a key that does not hold the text itself: every message would be stored three times."""
    return text if len(text) <= _SHORT else blake2b(text.encode(), digest_size=16).digest()


def new_root() -> MessageNode:
    """The beginning of all conversations of one merging key."""
    return MessageNode(None, {})


def recognise(
    root: MessageNode, messages: Sequence[Message], *, by_text: bool = False
) -> tuple[MessageNode, dict[int, Message], int]:
    """Find a client's chat below ``root``; new messages are added. Returns the node of its last message, those messages that are a
    recorded reply in another form by their index, and how many were found by loose text only. Raises BadMessage."""
    node, drift = root, 0
    sent: dict[int, Message] = {}
    for index, message in enumerate(messages):
        print_ = fingerprint(message)
        child = node.by_fingerprint.get(print_)
        if child is None:
            form = node.forms.get(print_) or node.from_client(message, index, by_text)
            if isinstance(form, ReturnedReply):
                sent[index] = form.sent
                drift += form.loosely
                child = form.node
            else:
                child = form
        node = child
    return node, sent, drift
