"""What every chat format can do, whether a chat template or a hand-written renderer writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, Any]


class ChatFormat(Protocol):
    """Renders chats as text that distinguishes what the format wrote from what the messages contained."""

    @property
    def control(self) -> re.Pattern[str]:
        """Matches the texts of special tokens."""
        ...

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """Tokens of which the format itself says that they end an answer."""
        ...

    def prepared(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages in the form that `write` takes. They depend on nothing else, so a conversation keeps them."""
        ...

    def hidden(self, tools: Sequence[Message]) -> list[Message]:
        """Tools in the form that `write` takes."""
        ...

    def write(
        self, prepared: Sequence[dict[str, Any]], tools: Sequence[Message], generate: bool = True
    ) -> str:
        """A chat; with ``generate``, up to where the assistant begins. Raises AjetError if the format refuses it."""
        ...

    def stub(self, messages: Sequence[Message], tools: Sequence[Message], generate: bool) -> str:
        """A chat whose messages contain marks, as the model reads it. Raises AjetError if the format refuses it."""
        ...

    def show(self, text: str) -> str:
        """The text as the model reads it."""
        ...

    def ids(self, text: str, *, inside: bool = True) -> list[int]:
        """Tokens of a text, from the middle of a chat or from its beginning."""
        ...

    def ends(self, text: str) -> list[int]:
        """Positions of format tokens at which an answer may end."""
        ...

    def times(self) -> tuple[str, ...]:
        """The times that the format can write now."""
        ...
