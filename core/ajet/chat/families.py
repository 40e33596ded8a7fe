"""Chat families with a hand-written renderer in the `renderers` library: exact, and quick to continue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from ajet.chat.templates import STUB_CALL, STUB_RESULT, STUB_TOOL
from ajet.types import AjetError

_FAMILIES = {"qwen3": "qwen3", "qwen3_moe": "qwen3", "llama": "llama-3"}

_SHORT, _REMEMBERED = 40, 1024
"""Maximum length of a text whose ids are cached, and the number of such texts."""

_PLAIN: list[dict[str, Any]] = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
]
_CALLING = [*_PLAIN, STUB_CALL, STUB_RESULT]
_PROBES: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    (_PLAIN, []),
    (_PLAIN[1:], []),
    (_PLAIN, [STUB_TOOL]),
    (_CALLING, [STUB_TOOL]),
    ([*_CALLING, {"role": "assistant", "content": "e"}, {"role": "user", "content": "f"}], [STUB_TOOL]),
]


@dataclass(frozen=True, slots=True)
class Family:
    """Two hand-written renderers of one family. ``writer`` makes prompts and treats special tokens in messages
    as plain text. ``reader`` reads answers, whose special tokens were sampled."""

    writer: Any
    reader: Any

    def template_options(self) -> dict[str, Any]:
        """The template's variables as the renderer sets them, such as a fixed date."""
        config = self.writer.config
        return {name: getattr(config, name) for name in sorted(type(config).template_field_names())}


class _Remembering:
    """A tokenizer that caches the ids of short texts. Renderers encode the same role headers and markers again and
    again, which costs more than the text of a message."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids = lru_cache(_REMEMBERED)(lambda text, options: tokenizer.encode(text, **dict(options)))
        self._encoding = lru_cache(_REMEMBERED)(lambda text, options: tokenizer(text, **dict(options)))
        self.convert_tokens_to_ids = lru_cache(_REMEMBERED)(tokenizer.convert_tokens_to_ids)
        self.unk_token_id = tokenizer.unk_token_id
        self.decode = tokenizer.decode

    def encode(self, text: str, **options: Any) -> list[int]:
        """Like the tokenizer's own method."""
        if len(text) > _SHORT:
            return list(self._tokenizer.encode(text, **options))
        return list(self._ids(text, tuple(options.items())))

    def __call__(self, text: str, **options: Any) -> Any:
        if len(text) > _SHORT:
            return self._tokenizer(text, **options)
        return self._encoding(text, tuple(options.items()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def find_family(
    tokenizer: Any, plain: Any, model_type: str, variables: Mapping[str, Any] = MappingProxyType({})
) -> Family | None:
    """The renderers of a model's family; None if there are none, if they lack one of the template's ``variables``, or if they
    do not render probe chats as the tokenizer's own template does. ``plain`` is a `plain_copy` of the tokenizer. Raises
    AjetError if `renderers` is not installed."""
    try:
        import renderers
    except ImportError as error:
        raise AjetError(
            f"rendering chats needs the `renderers` library ({error}). Install it: pip install 'ajet[chat]'."
        ) from None
    name = _FAMILIES.get(model_type)
    if not name:
        return None
    try:
        usual = renderers.config_from_name(name)
        if not variables.keys() <= type(usual).template_field_names():
            return None
        config = type(usual)(**variables)
        writer, reader = (renderers.create_renderer(_Remembering(t), config) for t in (plain, tokenizer))
    except (AssertionError, ValueError, KeyError):
        return None  # same architecture, but another chat format
    family = Family(writer, reader)
    return family if _resists(plain) and _agrees(family, tokenizer) else None


def _agrees(family: Family, tokenizer: Any) -> bool:
    if not getattr(tokenizer, "chat_template", None):
        return True
    options = family.template_options()
    try:
        for messages, tools in _PROBES:
            text = tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=True, **options
            )
            ids = family.writer.render_ids(messages, tools=tools or None, add_generation_prompt=True)
            if list(ids) != list(tokenizer.encode(text, add_special_tokens=False)):
                return False
    except Exception:  # one of them refuses what the other accepts
        return False
    return True


def _resists(plain: Any) -> bool:
    """Whether this copy really encodes the texts of special tokens as plain text."""
    special = [t for t in plain.all_special_tokens if t != plain.unk_token]
    ids = set(plain.encode(" ".join(special), add_special_tokens=False))
    return ids.isdisjoint(plain.convert_tokens_to_ids(special))
