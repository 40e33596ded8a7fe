"""Which recorded conversation does a request continue? A trie over messages answers it.

Each message is a node below the message before it; a request walks down from the root. A message is found by
its `fingerprint`, the raw form in which a client sent it (cheaper than parsing its JSON); a new form is
normalised once and found by its `exact` text. A message that is not known may be a recorded reply in another
form: without its reasoning, with the last streamed piece of it, with a name, with numbers as JavaScript writes
them. It then counts as that reply, and the form that the client sent is kept with it. Under the policy ``text``
a reply may also be found by its loose text, which counts as drift.
"""

from __future__ import annotations

from collections.abc import Sequence

from ajet.chat.messages import fingerprint
from ajet.tracker.call import Form, Message, MessageNode


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
            if isinstance(form, Form):
                sent[index] = form.sent
                drift += form.loosely
                child = form.node
            else:
                child = form
        node = child
    return node, sent, drift
