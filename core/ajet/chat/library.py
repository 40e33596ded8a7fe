"""The hand-written renderers of the `renderers` library: for models whose tokenizer has no chat template, and for supervised
fine-tuning, which needs to know the assistant's tokens of a finished chat."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ajet.chat.encoding import any_of, encodable
from ajet.chat.template import STUB_CALL, STUB_RESULT, STUB_TOOL, given, refusal
from ajet.types import AjetError

Message = Mapping[str, Any]

_NAMES = {
    **{"qwen3": ("qwen3",), "qwen3_moe": ("qwen3",), "qwen3_vl": ("qwen3-vl",), "llama": ("llama-3",)},
    **{"qwen3_5": ("qwen3.5", "qwen3.8"), "qwen3_5_moe": ("qwen3.6", "qwen3.5", "qwen3.8")},
    **{
        "glm4_moe": ("glm-4.5",),
        "glm_moe_dsa": ("glm-5", "glm-5.1", "glm-5.3"),
        "minimax_m2": ("minimax-m2",),
    },
    **{
        "deepseek_v3": ("deepseek-v3", "deepseek-r1"),
        "deepseek_v32": ("deepseek-v4",),
        "deepseek_v4": ("deepseek-v4",),
    },
    **{"kimi_k2": ("kimi-k2",), "kimi_k25": ("kimi-k2.5",), "gemma4": ("gemma4",), "hy_v3": ("hy3",)},
    **{"nemotron_h": ("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), "inkling": ("inkling",)},
    "laguna": ("laguna-xs.2", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1"),
}
"""The library's renderers by model type; the first one that fits is used. That of gpt-oss downloads a vocabulary."""

_PLAIN: list[dict[str, Any]] = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
]
_CHATS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    (_PLAIN, []),
    (_PLAIN[1:], [STUB_TOOL]),
    ([*_PLAIN, STUB_CALL, STUB_RESULT], [STUB_TOOL]),
]


def find_renderer(
    tokenizer: Any, plain: Any, model_type: str, variables: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """The library's renderer for a model; None if there is none, if it lacks one of the template's ``variables``, or if it does
    not render as the tokenizer's own template does. ``plain`` is a `plain_copy` of the tokenizer: special tokens in
    messages stay plain text. Raises AjetError if `renderers` is not installed."""
    try:
        import renderers
    except ImportError as error:
        raise AjetError(
            f"rendering chats needs the `renderers` library ({error}). Install it: pip install 'ajet[chat]'."
        ) from None
    special = [t for t in plain.all_special_tokens if t != plain.unk_token]
    ids = set(plain.encode(" ".join(special), add_special_tokens=False))
    if not ids.isdisjoint(plain.convert_tokens_to_ids(special)):
        return None  # the copy does not keep special tokens plain
    for name in _NAMES.get(model_type, ()):
        try:
            usual = renderers.config_from_name(name)
            if not variables.keys() <= type(usual).template_field_names():
                continue
            renderer = renderers.create_renderer(plain, type(usual)(**variables))
        except (AssertionError, ValueError, KeyError):
            continue  # same architecture, but another chat format
        if _agrees(renderer, tokenizer):
            return renderer
    return None


def _agrees(renderer: Any, tokenizer: Any) -> bool:
    if not getattr(tokenizer, "chat_template", None):
        return True
    names = type(renderer.config).template_field_names()
    options = {name: getattr(renderer.config, name) for name in sorted(names)}
    try:
        for messages, tools in _CHATS:
            text = tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=True, **options
            )
            ids = renderer.render_ids(messages, tools=tools or None, add_generation_prompt=True)
            if list(ids) != list(tokenizer.encode(text, add_special_tokens=False)):
                return False
    except Exception:  # one of them refuses what the other accepts
        return False
    return True


class ByRenderer:
    """Chats that a renderer of the library writes as tokens: each character stands for the token id of its code point. See
    `ChatFormat`."""

    def __init__(self, renderer: Any, tokenizer: Any) -> None:
        self._renderer, self._tokenizer = renderer, tokenizer
        stops = list(renderer.get_stop_token_ids())
        self._stops = re.compile("|".join(re.escape(chr(stop)) for stop in stops) or "(?!)")
        self.stop_token_ids: list[int] = stops
        added = [str(t.content) for t in tokenizer.added_tokens_decoder.values()]
        self.control = any_of(added)

    def prepared(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """See `ChatFormat`."""
        return given(messages)

    def hidden(self, tools: Sequence[Message]) -> list[Message]:
        """See `ChatFormat`."""
        return list(encodable(tools))

    def write(
        self, prepared: Sequence[dict[str, Any]], tools: Sequence[Message], generate: bool = True
    ) -> str:
        """See `ChatFormat`."""
        try:
            ids = self._renderer.render_ids(
                list(prepared), tools=list(tools) or None, add_generation_prompt=generate
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise refusal(error) from error
        return "".join(map(chr, ids))

    def stub(self, messages: Sequence[Message], tools: Sequence[Message], generate: bool) -> str:
        """See `ChatFormat`."""
        return self.show(self.write(given(messages), list(tools), generate))

    def show(self, text: str) -> str:
        """See `ChatFormat`."""
        return str(self._tokenizer.decode(self.ids(text), skip_special_tokens=False)) if text else ""

    def ids(self, text: str, *, inside: bool = True) -> list[int]:
        """See `ChatFormat`."""
        return list(map(ord, text))

    def ends(self, text: str) -> list[int]:
        """See `ChatFormat`."""
        return [found.start() for found in self._stops.finditer(text)]

    def times(self) -> tuple[str, ...]:
        """See `ChatFormat`."""
        return ()
