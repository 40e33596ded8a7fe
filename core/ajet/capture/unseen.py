"""Images and files that the model cannot see.

An agent that reads a picture with a tool has it in its history, so that each later call would be refused: one curious answer
would end the episode. After an answer of the model, a text therefore takes the place of what it cannot see, and the model
reads that. Before the first answer an image belongs to the task, which the model cannot solve: it stays, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_IMAGES = ("image_url", "image")
_FILES = ("file", "input_audio")
_TOLD = {
    "image": "[Error: here is an image, which you cannot see: you read only text.]",
    "file": "[Error: here is a file of a kind that you cannot read.]",
}


def told_of_unseen(
    messages: Sequence[Mapping[str, Any]], images: bool
) -> tuple[Sequence[Mapping[str, Any]], tuple[str, ...]]:
    """The messages (chat completions form), after the first one of the assistant with texts in the place of files, and if
    ``images`` is set of images; and the kinds of what they replace. The client's objects stay as they are."""
    if not any(isinstance(message.get("content"), list) for message in messages):
        return messages, ()  # the usual case
    unseen = (*_FILES, *_IMAGES) if images else _FILES
    left_out: dict[str, None] = {}
    told: list[Mapping[str, Any]] = []
    answered = False
    for message in messages:
        answered = answered or message.get("role") == "assistant"
        content = message.get("content")
        if answered and isinstance(content, list) and any(_kind(part) in unseen for part in content):
            parts = []
            for part in content:
                if (kind := _kind(part)) in unseen:
                    what = "image" if kind in _IMAGES else "file"
                    left_out[what] = None
                    part = {"type": "text", "text": _TOLD[what]}
                parts.append(part)
            message = {**message, "content": parts}
        told.append(message)
    return (told if left_out else messages), tuple(left_out)


def _kind(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else None
