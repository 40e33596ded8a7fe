"""Messages to tokens and back, by the model's own chat template.

Families that the `renderers` library knows are rendered by it, if a probe chat gives the same tokens
as the tokenizer's own template; any other tokenizer with a chat template goes the generic way. Stop
ids, turn ends and tool-call syntax come from the family, never from constants here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.types import AjetError

Message = Mapping[str, Any]

_FAMILIES = {"qwen3": "qwen3", "qwen3_moe": "qwen3", "llama": "llama-3"}
_PROBE: list[dict[str, Any]] = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
]


@dataclass(frozen=True, slots=True)
class Parsed:
    """An answer as a message. ``malformed`` counts tool calls that could not be read; their text is
    part of ``content``."""

    content: str
    reasoning: str | None
    tool_calls: tuple[tuple[str, str], ...]
    """(name, arguments as JSON text)"""
    malformed: int = 0


class Chat:
    """Renders chats for one model."""

    def __init__(self, tokenizer: Any, model_type: str = "") -> None:
        self.tokenizer = tokenizer
        self.renderer = _renderer(tokenizer, model_type)
        self.stop_token_ids: tuple[int, ...] = tuple(self.renderer.get_stop_token_ids())

    def render(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """Prompt ids of a chat, up to where the assistant begins to write."""
        return list(
            self.renderer.render_ids(list(messages), tools=list(tools) or None, add_generation_prompt=True)
        )

    def render_with_mask(
        self, messages: Sequence[Message], tools: Sequence[Message]
    ) -> tuple[list[int], list[bool]]:
        """Ids of a finished chat and which of them the assistant would have sampled. Raises AjetError
        for a family whose renderer cannot tell."""
        rendered = self.renderer.render(list(messages), tools=list(tools) or None)
        if len(rendered.sampled_mask) != len(rendered.token_ids):
            raise AjetError(
                f"supervised fine-tuning needs a chat family that marks the assistant's tokens; "
                f"{type(self.renderer).__name__} does not. Use a model of a known family."
            )
        return list(rendered.token_ids), list(rendered.sampled_mask)

    def bridge(
        self, prompt: list[int], completion: list[int], new: Sequence[Message], tools: Sequence[Message]
    ) -> list[int] | None:
        """The next prompt from stored ids: ``prompt + completion`` and the newly rendered messages.
        None where the family cannot continue without rewriting what went before."""
        bridged = self.renderer.bridge_to_next_turn(prompt, completion, list(new), tools=list(tools) or None)
        if bridged is None:
            return None
        ids = list(bridged.token_ids)
        stored = len(prompt) + len(completion)
        return ids if ids[:stored] == [*prompt, *completion] else None

    def parse(self, completion: list[int], prompt: list[int]) -> Parsed:
        """An answer's ids as a message."""
        found = self.renderer.parse_response(completion, prompt_ids=prompt)
        good = [c for c in found.tool_calls if c.status == "ok" and c.name]
        bad = [c for c in found.tool_calls if not (c.status == "ok" and c.name)]
        content = found.content + "".join(c.raw for c in bad if c.raw not in found.content)
        calls = tuple((c.name, _as_json(c.arguments)) for c in good)
        return Parsed(content, found.reasoning_content or None, calls, len(bad))


def canonical_tool_arguments(arguments: Any) -> str:
    """Tool-call arguments in one spelling, however a framework serialised them again."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return str(arguments)
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _as_json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _renderer(tokenizer: Any, model_type: str) -> Any:
    try:
        import renderers
    except ImportError as error:
        raise AjetError(
            f"rendering chats needs the `renderers` library ({error}). Install it: pip install 'ajet[chat]'."
        ) from None
    family = _FAMILIES.get(model_type)
    if family:
        try:
            renderer = renderers.create_renderer(tokenizer, renderers.config_from_name(family))
        except (AssertionError, ValueError, KeyError):
            renderer = None  # same architecture, another chat format
        if renderer is not None and _agrees(renderer, tokenizer):
            return renderer
    if not getattr(tokenizer, "chat_template", None):
        raise AjetError(
            f"the tokenizer of {getattr(tokenizer, 'name_or_path', 'the model')!r} has no chat template, so chats cannot be "
            "rendered. Use an instruction-tuned model or set tokenizer.chat_template."
        )
    return renderers.create_renderer(tokenizer, renderers.DefaultRendererConfig())


def _agrees(renderer: Any, tokenizer: Any) -> bool:
    if not getattr(tokenizer, "chat_template", None):
        return True
    text = tokenizer.apply_chat_template(_PROBE, tokenize=False, add_generation_prompt=True)
    return bool(
        renderer.render_ids(_PROBE, add_generation_prompt=True)
        == tokenizer.encode(text, add_special_tokens=False)
    )
