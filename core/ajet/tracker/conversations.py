"""Which recorded conversation does a request continue? A trie over messages answers it.

Each message is a node below the message before it; a request walks down from the root. A message is found by
its `fingerprint`, the raw form in which a client sent it (cheaper than parsing its JSON); a new form is
normalised once and found by its `exact` text. A message that is not known may be a recorded reply in another
form: without its reasoning, with the last streamed piece of it, with a name, with numbers as JavaScript writes
them. It then counts as that reply, and the form that the client sent is kept with it. Under the policy ``text``
a reply may also be found by its loose text, which counts as drift.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ajet.chat.messages import canonical, exact, fingerprint, loose, normalise, thoughts

if TYPE_CHECKING:
    from ajet.tracker.record import Call

Message = Mapping[str, Any]

_SHORT = 64


@dataclass(frozen=True, slots=True)
class _Form:
    """A recorded reply as a client sent it back."""

    node: Said
    sent: Message
    loosely: bool


class Said:
    """A node: a message (in normal form) after all those above it."""

    __slots__ = (
        "children",
        "depth",
        "ends",
        "forms",
        "heard",
        "last_reasoning",
        "message",
        "parent",
        "replies",
    )

    def __init__(self, parent: Said | None, message: Message) -> None:
        self.parent = parent
        self.message = message
        self.depth: int = parent.depth + 1 if parent else 0
        """How many messages lead here, including this one."""
        self.ends: list[Call] = []
        """The calls that answered with this message, by number."""
        self.children: dict[str | bytes, Said] = {}
        """Children by shortened exact text."""
        self.heard: dict[Hashable, Said] = {}
        """Children by fingerprint."""
        self.replies: dict[str | bytes, list[Said]] | None = None
        """Children that are recorded answers, by shortened canonical text."""
        self.forms: dict[Hashable, _Form] = {}
        """Other forms of these answers, by fingerprint."""
        self.last_reasoning = ""
        """The last piece of a streamed reply's reasoning. OpenAI's Node.js client replaces each piece with the next one,
        so this is what its users send back."""

    def say(self, message: Message) -> Said:
        """The node of a message in normal form that follows this one; added if it is new."""
        return self._say(message, _short(exact(message)))

    def _say(self, message: Message, short: str | bytes) -> Said:
        node = self.children.get(short)
        if node is None:
            node = self.children[short] = Said(self, message)
        return node

    def find(self, message: Message) -> Said | None:
        """The node of a message in normal form if it follows this one, in this form or as a reply in another."""
        node = self.children.get(_short(exact(message)))
        if node is None and self.replies:
            replies = self.replies.get(_short(canonical(message)))
            node = replies[0] if replies else None
        return node

    def answered_by(self, call: Call) -> None:
        """Note that this message is a call's answer."""
        self.ends.append(call)
        self.ends.sort(key=lambda c: c.number)
        above = self.parent
        assert above
        above.replies = above.replies or {}
        replies = above.replies.setdefault(_short(canonical(self.message)), [])
        if self not in replies:
            replies.append(self)
        # A form that was found before this reply existed may be this reply.
        above.heard.clear()
        above.forms.clear()

    def hear(self, message: Message, index: int, by_text: bool) -> Said | _Form:
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
        node = node or self._say(plain, short)
        self.heard[fingerprint(message)] = node
        return node

    def _reply(self, plain: Message, by_text: bool) -> _Form | None:
        """The first recorded reply that a client's message matches: without its reasoning, or with what the client got."""
        assert self.replies is not None
        told = thoughts(plain)
        alike = self.replies.get(_short(canonical(plain)), ())
        found = [node for node in alike if node._thought(told)]
        loosely = not found and by_text
        if loosely:
            text = loose(plain)
            replies = (node for nodes in self.replies.values() for node in nodes)
            found = [node for node in replies if loose(node.message) == text and node._thought(told)]
        if not found:
            return None
        return _Form(min(found, key=lambda node: node.ends[0].number), plain, loosely)

    def _thought(self, told: str) -> bool:
        """Whether a client that sends this reply back may send it with the reasoning ``told``."""
        return not told or told in (thoughts(self.message), self.last_reasoning.strip())

    def path(self) -> list[Said]:
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

    def messages_after(self, held: Said | None) -> list[Message]:
        """The messages below ``held``, this one last."""
        found = []
        node = self
        while node is not held and node.parent is not None:
            found.append(node.message)
            node = node.parent
        return found[::-1]

    def common(self, other: Said) -> int:
        """How many messages at the beginning both chats share."""
        mine, others = self.path(), other.path()
        return sum(a is b for a, b in zip(mine, others, strict=False))

    def held(self) -> Said | None:
        """The nearest message at or above this one that is the answer of a recorded call."""
        node: Said | None = self
        while node is not None and not node.ends:
            node = node.parent
        return node


@dataclass(frozen=True, slots=True)
class Recognised:
    """A client's chat: the node of its last message, how many of its messages were found by loose text only,
    and the messages that are a recorded reply in another form, by their index."""

    said: Said
    drift: int
    sent: Mapping[int, Message]


def recognise(root: Said, messages: Sequence[Message], *, by_text: bool = False) -> Recognised:
    """The place of a client's chat below ``root``; new messages are added. Raises BadMessage."""
    node, drift = root, 0
    sent: dict[int, Message] = {}
    for index, message in enumerate(messages):
        print_ = fingerprint(message)
        child = node.heard.get(print_)
        if child is None:
            form = node.forms.get(print_) or node.hear(message, index, by_text)
            if isinstance(form, _Form):
                sent[index] = form.sent
                drift += form.loosely
                child = form.node
            else:
                child = form
        node = child
    return Recognised(node, drift, sent)


def _short(text: str) -> str | bytes:
    """A text as a key that does not hold the text itself: every message would be stored three times."""
    return text if len(text) <= _SHORT else blake2b(text.encode(), digest_size=16).digest()


def new_root() -> Said:
    """The beginning of all conversations of one merging key."""
    return Said(None, {})
