"""Tokenizers for tests: small vocabularies trained in memory, each with a chat template of its own kind.

Each builder is cached for the process: do not change what it returns, copy it first.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "Be brief. What is one and one? The answer is two. Let me see: it is 2, of course.",
    "system user assistant tool tools result answer question number weather Paris Berlin hello",
    '{"name": "add", "arguments": {"a": 1, "b": 2}} {"type": "function", "parameters": {}}',
    "User: hello\nAssistant: hello\n" * 3,
] * 4


@functools.cache
def qwen3() -> Any:
    """The starter's: ChatML with Qwen3's layout, byte-level, rendered by the family's renderer.
    ``model_type`` qwen3."""
    from ajet_local.starter.calculator import Calculator

    return Calculator().tokenizer(0)[0]


LLAMA3_TEMPLATE = r"""
{{- bos_token -}}
{%- set given = messages[0].content | trim if messages[0].role == 'system' else '' -%}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages -%}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' -}}
{%- if tools -%}{{ 'Environment: ipython\n' }}{%- endif -%}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: ' ~ (date_string or '26 Jul 2024') ~ '\n\n' ~ given ~ '<|eot_id|>' -}}
{%- for m in rest -%}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length != 1 -%}
{{ raise_exception('This model only supports single tool-calls at once!') }}
{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' ~ call.name ~ '", "parameters": ' -}}
{{- (call.arguments | tojson) ~ '}<|eot_id|>' -}}
{%- elif m.role == 'tool' -%}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' ~ (m.content | tojson) ~ '<|eot_id|>' -}}
{%- else -%}
{{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' -}}
{%- if tools and loop.first -%}
{%- if m.role != 'user' -%}{{ raise_exception('Tools need a first user message!') }}{%- endif -%}
{{- 'Given the following functions, please respond with a JSON for a function call with its proper arguments '
    ~ 'that best answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": '
    ~ 'dictionary of argument name and its value}.Do not use variables.\n\n' -}}
{%- for tool in tools -%}{{ (tool | tojson(indent=4)) ~ '\n\n' }}{%- endfor -%}
{%- endif -%}
{{- m.content | trim ~ '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}
""".strip()


@functools.cache
def llama3() -> Any:
    """Llama 3's special tokens and layout, byte-level: the turn end is not the eos, and there is one tool
    call a turn. Rendered by the family's renderer. ``model_type`` llama."""
    control = (
        *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eot_id|>", "<|eom_id|>", "<|unknown|>"),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level(control),
        bos_token="<|begin_of_text|>",
        eos_token="<|end_of_text|>",
        pad_token="<|end_of_text|>",
        unk_token="<|unknown|>",
        chat_template=LLAMA3_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


PLAIN_TEMPLATE = r"""
{%- if tools -%}{{ '[tools]' ~ (tools | tojson) ~ '<|end|>\n' }}{%- endif -%}
{%- for m in messages -%}
{{- '[' ~ m.role ~ (':' ~ m.name if m.name else '') ~ ']' -}}
{{- m.content or '' -}}
{%- for call in m.tool_calls or [] -%}
{{- '<tool_call>{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
{{- (call.function.arguments | tojson) ~ '}</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '[assistant]' }}{%- endif -%}
""".strip()


@functools.cache
def plain() -> Any:
    """Nothing that anyone has written a renderer for: ``[role:name]content<|end|>`` and an eos ``</s>``
    that the template never writes. Encoding does not round-trip: a space before the first word (lost again
    when decoding) and compatibility characters made plain (ﬁ to fi). ``model_type`` plain."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_metaspace(("<s>", "</s>", "<|end|>"), ("<tool_call>", "</tool_call>")),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        unk_token="<unk>",
        chat_template=PLAIN_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


THINKER_TEMPLATE = r"""
{%- set last = namespace(question=-1) -%}
{%- for m in messages if m.role == 'user' -%}{%- set last.question = messages.index(m) -%}{%- endfor -%}
{%- for m in messages -%}
{{- '<|' ~ m.role ~ '|>' -}}
{%- if m.reasoning_content and loop.index0 > last.question -%}
{{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' -}}
{%- endif -%}
{{- m.content or '' -}}
{%- for call in m.tool_calls or [] -%}
{{- '\n<tool_call>\n' ~ (call.function | tojson) ~ '\n</tool_call>' -}}
{%- endfor -%}
{{- '<|stop|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}
""".strip()


@functools.cache
def thinker() -> Any:
    """A generic template that takes the reasoning of earlier turns away when a new user message comes, and
    keeps it before tool messages. Byte-level. ``model_type`` thinker."""
    roles = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level(
            (*roles, "<|stop|>", "<|eos|>"), ("<think>", "</think>", "<tool_call>", "</tool_call>")
        ),
        eos_token="<|eos|>",
        pad_token="<|eos|>",
        chat_template=THINKER_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


BASE_TEMPLATE = r"""
{%- for m in messages -%}
{%- if m.role not in ('system', 'user', 'assistant') -%}{{ raise_exception('no role ' ~ m.role) }}{%- endif -%}
{{- m.role | capitalize ~ ': ' ~ m.content | trim ~ '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant: ' }}{%- endif -%}
""".strip()


@functools.cache
def base() -> Any:
    """A base model's: ``User: …`` and ``Assistant: …`` lines, no token that ends a turn, an eos that the
    template never writes, no tools. Byte-level; ``.`` and a newline are one token. ``model_type`` base."""
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level(("<|endoftext|>",), more=["yes.\n", "two.\n"] * 20),
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        chat_template=BASE_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


@functools.cache
def harmony() -> Any:
    """That of gpt-oss, see `tests.harmony`. ``model_type`` gpt_oss."""
    from tests.harmony import harmony

    return harmony()


FAMILIES: dict[str, Callable[[], Any]] = {"qwen3": qwen3, "llama3": llama3, "plain": plain}
"""The layouts that every case is to hold under: builders by name."""

MODEL_TYPES = {
    **{"qwen3": "qwen3", "llama3": "llama", "plain": "plain", "thinker": "thinker", "base": "base"},
    "harmony": "gpt_oss",
}
"""What `ajet.chat.renderer.Chat` is to be told with each builder's tokenizer."""


def byte_level(
    control: tuple[str, ...], text: tuple[str, ...] = (), more: list[str] | None = None
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", behavior="merged_with_next"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS + (more or []), trainer)
    return _with_added(tokenizer, control, text)


def _metaspace(control: tuple[str, ...], text: tuple[str, ...] = ()) -> Tokenizer:
    """As Llama 2 and Mistral: words begin with ``▁``, unknown characters fall back to bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    alphabet = [chr(c) for c in range(33, 127)] + ["▁", "\n"]
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(TEXTS, trainer)
    model = json.loads(trained.to_str())["model"]
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    merges = [tuple(m) for m in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE({w: i for i, w in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_added(tokenizer, control, text)


def _with_added(tokenizer: Tokenizer, control: tuple[str, ...], text: tuple[str, ...]) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in text])
    return tokenizer
