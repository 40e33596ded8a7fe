"""The hand-written renderers of the `renderers` library: for models whose tokenizer has no chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.chat.encoding import any_of, encodable
from ajet.chat.template import given, refusal
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


def find_renderer(plain: Any, model_type: str) -> Any:
    """The library's renderer for a model; None if there is none. ``plain`` is a `plain_copy` of the tokenizer: special tokens in
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
            return renderers.create_renderer(plain, renderers.config_from_name(name))
        except (AssertionError, ValueError, KeyError):
            continue  # same architecture, but another chat format
    return None


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
        return [stop.start() for stop in self._stops.finditer(text)]

    def times(self) -> tuple[str, ...]:
        """See `ChatFormat`."""
        return ()
