"""``rollout.tool_prompt``: tools for a model whose chat template does not write them.

What the template cannot write becomes text that it can: tools a part of the system message, calls a part of the answer,
results a turn of the user. All else is done as with every template, and how calls are read is derived from what is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.chat.encoding import SAID
from ajet.chat.template import QUESTION, STUB_TOOL, Message, Template
from ajet.types import ConfigError

KEY = "rollout.tool_prompt"
SOURCE = f"{KEY}, which also shows the tools"
"""Where the format of calls comes from, in words for the user."""

Content = str | list[dict[str, Any]]
"""Text, or parts of which some may be images."""

_CALL = "<tool_call>\n{}\n</tool_call>"
_RESULT = "<tool_response>\n", "\n</tool_response>"
_EXAMPLE = _CALL.format('{"name": "NAME", "arguments": {"KEY": "VALUE"}}')
_TOOLS = "Tools:\n<tools>\n", f"\n</tools>\nCall tools like this:\n{_EXAMPLE}"


class PromptedTemplate(Template):
    """A chat template without tools, with Hermes's format for them. Raises ConfigError if the template writes tools."""

    _prompts = False
    """Whether tools are written already: not while it is found out what the template itself does."""
    _default: str | None
    """The system text that the template writes where a chat has none. None if system messages are no place for tools: the
    template leaves them out or refuses them, or they take the place of another text."""

    def write(
        self, prepared: Sequence[dict[str, Any]], tools: Sequence[Message], generate: bool = True
    ) -> str:
        """See `ChatFormat`."""
        return super().write(*self._as_text(prepared, tools), generate)

    def _by_tokenizer(
        self, prepared: Sequence[Any], tools: Sequence[Message], generate: bool, **options: Any
    ) -> str:
        return super()._by_tokenizer(*self._as_text(prepared, tools), generate, **options)

    def _learn_what_it_takes(self) -> None:
        alone = self._tried([QUESTION])
        if self._tried([QUESTION], [STUB_TOOL]) not in (alone, ""):
            name = getattr(self.tokenizer, "name_or_path", "") or "the model"
            raise ConfigError(KEY, f"the chat template of {name} writes tools itself. Remove the key.")
        shown = self._tried([{"role": "system", "content": SAID}, QUESTION])
        self._default = _default_system(shown, alone)
        self._prompts = True
        super()._learn_what_it_takes()

    def _as_text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Message]
    ) -> tuple[list[Any], list[Message]]:
        """Messages that the template can write, and no tools. Of such messages they are the same."""
        if not self._prompts:
            return list(messages), list(tools)
        turns: list[dict[str, Any]] = []
        last = ""
        for message in messages:
            turn = _turn(message)
            if (
                last == "tool" and turn["role"] == "user"
            ):  # some templates refuse two turns of the user in a row
                turns[-1]["content"] = joined(turns[-1]["content"], "\n", turn["content"])
            else:
                turns.append(turn)
            last = message["role"]
        if tools:
            self._show(tools, turns)
        return turns, []

    def _show(self, tools: Sequence[Message], turns: list[dict[str, Any]]) -> None:
        """Write tools into the system message; if that is no place for them, into the turn after it."""
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        text = listed.join(_TOOLS)
        has_system = turns[0]["role"] == "system" if turns else False
        if self._default is None:
            at = int(has_system)
            if turns[at:] and turns[at]["role"] == "user":
                turns[at]["content"] = joined(text, "\n\n", turns[at]["content"])
            else:
                turns[at:at] = self._changed([{"role": "user", "content": text}])
            return
        if not has_system:
            turns[:0] = self._changed([{"role": "system", "content": self._default}])
        said = turns[0]["content"]
        turns[0]["content"] = joined(said, "\n\n" if said else "", text)


def _default_system(shown: str, alone: str) -> str | None:
    """See `PromptedTemplate._default`. ``shown`` is a chat with a system message, ``alone`` the same chat without it."""
    before, found, after = shown.partition(SAID)
    if not found:
        return None
    length = len(alone) - len(before) - len(after)
    if length >= 0 and alone.startswith(before) and alone.endswith(after):
        return alone[len(before) :][:length]
    parts = ((alone[:end], alone[end:]) for end in range(len(alone) + 1))
    return "" if any(before.startswith(one) and after.endswith(other) for one, other in parts) else None


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the template can write it."""
    content = "" if message.get("content") is None else message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": joined(_RESULT[0], content, _RESULT[1])}
    turn = {**message, "content": content}
    calls = "\n".join(_call(call["function"]) for call in turn.pop("tool_calls", None) or ())
    if calls:
        turn["content"] = joined(content, "\n" if content else "", calls)
    return turn


def _call(function: Mapping[str, Any]) -> str:
    called = {"name": function["name"], "arguments": function["arguments"]}
    return _CALL.format(json.dumps(called, ensure_ascii=False))


def joined(*contents: Content) -> Content:
    """Contents one after the other: text, or parts if any of them is a list of parts. Texts that meet become one part."""
    if not any(isinstance(content, list) for content in contents):
        return "".join(map(str, contents))
    parts: list[dict[str, Any]] = []
    for content in contents:
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if parts and parts[-1]["type"] == part["type"] == "text":
                parts[-1] = {**part, "text": parts[-1]["text"] + part["text"]}
            else:
                parts.append(part)
    return parts
