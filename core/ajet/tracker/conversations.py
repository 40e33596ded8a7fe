"""Which recorded conversation does a request continue? A trie over messages answers it.

Each message is a node below the message before it; a request walks down from the root. A message is
found by its `fingerprint`, the raw form in which a client said it (cheap: less than parsing its JSON);
a form not met before is brought into normal form once and then found by its canonical text, so that
arguments serialised again or text sent as parts are still the same message. Under the policy ``text``
a message may also be found by its loose text, which counts as drift.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ajet.messages import canonical, fingerprint, loose, normalise

if TYPE_CHECKING:
    from ajet.tracker.record import Call

Message = Mapping[str, Any]

_SHORT = 64


class Said:
    """A message (in normal form) after all those above it."""

    __slots__ = ("alike", "children", "depth", "drifted", "ends", "message", "parent")

    def __init__(self, parent: Said | None, message: Message) -> None:
        self.parent = parent
        self.message = message
        self.depth: int = parent.depth + 1 if parent else 0
        """How many messages lead here, this one included."""
        self.ends: list[Call] = []
        """Calls whose answer this message is, by number."""
        self.children: dict[Hashable, Said] = {}
        """By fingerprint, and by canonical text in short."""
        self.alike: dict[str | bytes, Said] | None = None
        """Children by loose text in short, from the first look on."""
        self.drifted: dict[Hashable, Said] = {}
        """Children by the fingerprint of a message that is like theirs only loosely."""

    def say(self, message: Message) -> Said:
        """The node of a message in normal form, said next."""
        exact = _short(canonical(message))
        return self.children.get(exact) or self._add(message, exact)

    def hear(self, message: Message, index: int, by_text: bool) -> tuple[Said, bool]:
        """The node of a client's message whose fingerprint is new here, and whether it is only like it.
        Raises BadMessage."""
        plain = normalise(message, index)
        exact = _short(canonical(plain))
        node = self.children.get(exact)
        if node is None and by_text:
            node = self._alike().get(_short(loose(plain)))
            if node is not None:
                self.drifted[fingerprint(message)] = node
                return node, True
        node = node or self._add(plain, exact)
        self.children[fingerprint(message)] = node
        return node, False

    def _add(self, plain: Message, exact: str | bytes) -> Said:
        node = Said(self, plain)
        self.children[exact] = node
        if self.alike is not None:
            self.alike.setdefault(_short(loose(plain)), node)
        return node

    def _alike(self) -> dict[str | bytes, Said]:
        if self.alike is None:
            self.alike = {}
            for child in self.children.values():
                self.alike.setdefault(_short(loose(child.message)), child)
        return self.alike

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

    def held(self) -> Said | None:
        """The nearest message at or above this one that is the answer of a recorded call."""
        node: Said | None = self
        while node is not None and not node.ends:
            node = node.parent
        return node


def recognise(root: Said, messages: Sequence[Message], *, by_text: bool = False) -> tuple[Said, int]:
    """The node of a client's chat below ``root``, added where it is new, and how many of its messages
    were found by loose text only. Raises BadMessage."""
    node, drift = root, 0
    for index, message in enumerate(messages):
        print_ = fingerprint(message)
        child = node.children.get(print_)
        if child is None:
            child = node.drifted.get(print_) if by_text else None
            if child is None:
                child, loosely = node.hear(message, index, by_text)
                drift += loosely
            else:
                drift += 1
        node = child
    return node, drift


def _short(text: str) -> str | bytes:
    """A text as a key that does not keep it: every message would be held three times."""
    return text if len(text) <= _SHORT else blake2b(text.encode(), digest_size=16).digest()


def new_root() -> Said:
    """The beginning of all conversations of one merging key."""
    return Said(None, {})
