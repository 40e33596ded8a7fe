"""Limits of a request, checked before any work on it.

All limits derive from the model's context: refusing a chat that cannot fit takes work that grows with the context,
never with the size of the request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ajet.chat.renderer import Chat
from ajet.interfaces.wire import ChatRequest, Refused, TooLong

LARGE_BODY = 1 << 16
"""Bytes up to which parsing and rendering a request is quick, whatever it contains."""
MOST_TOOLS = 512
MANY_TOOLS = 64
"""Number of messages that takes long to render, however small they are."""
LEAST_MESSAGES = 1_024
"""Maximum messages of a chat, whatever the context."""
MESSAGE_TOKENS = 4
"""No chat format writes a message in fewer tokens."""
MOST_CONTEXTS = 4
"""A request may hold this many contexts of text, because templates may leave parts of a chat out."""
_CHUNK = 1 << 14


def refuse_oversized(request: ChatRequest, chat: Chat, context_length: int) -> None:
    """Refuse a request that cannot fit in the context, without rendering it. Raises Refused."""
    messages = max(LEAST_MESSAGES, context_length // MESSAGE_TOKENS)
    _refuse_more("messages", len(request.messages), messages, context_length)
    tools = len(request.tools) + len(request.told)
    if tools > MOST_TOOLS:
        raise Refused(
            f"the request has {tools:,} tools; at most {MOST_TOOLS} are accepted", code="invalid_request"
        )
    if request.prompt is not None and not isinstance(request.prompt, str):
        _refuse_more("prompt token ids", len(request.prompt), context_length, context_length, 1)
    # Few tokenizers need as few as four characters per token: where the chat might fit, rendering decides.
    if request.size > 4 * context_length:
        _refuse_long_texts(request, chat, context_length)


def _refuse_more(what: str, count: int, most: int, context_length: int, tokens: int = MESSAGE_TOKENS) -> None:
    """Refuse more than ``most`` of something that takes some tokens each."""
    if count > most:
        told = f"the request has {count:,} {what}; at most {most:,} are accepted"
        raise TooLong(told, count * tokens, context_length)


def _refuse_long_texts(request: ChatRequest, chat: Chat, context_length: int) -> None:
    """Count tokens piece by piece, up to the limit. Cutting a text adds a few tokens, which does not matter to a
    limit of several contexts."""
    most = MOST_CONTEXTS * context_length
    text = "\n".join(_texts(request)).encode(errors="replace").decode()
    tokens = 0
    for start in range(0, len(text), _CHUNK):
        tokens += len(chat.tokenizer.encode(text[start : start + _CHUNK], add_special_tokens=False))
        if tokens > most:
            told = f"the request's texts ({len(text):,} characters) have more than {most:,} tokens"
            raise TooLong(told, tokens, context_length)


def _texts(request: ChatRequest) -> Iterator[str]:
    if isinstance(request.prompt, str):
        yield request.prompt
    for message in request.messages:
        yield from _texts_in([v for k, v in message.items() if k != "role"])
    if request.tools:
        yield json.dumps(request.tools, ensure_ascii=False, default=str)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        if value.get("type") != "image_url":  # images have limits of their own
            yield from _texts_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts_in(part)
