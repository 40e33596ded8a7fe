"""A tokenizer trained on generated chats: byte-level BPE with Qwen3's special tokens.

Text is split as by Qwen's tokenizers (each digit separately), so what works here also works with Qwen's models.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from ajet_local.starter.transcripts import Transcript

UNKNOWN = "<|unknown|>"
"""A byte-level tokenizer never produces it; renderers recognise missing tokens by it."""
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", UNKNOWN)
"""Tokens that ``decode(skip_special_tokens=True)`` omits."""
TEXT_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = r"""
{%- macro block(role, text) -%}
{{ '<|im_start|>' ~ role ~ '\n' ~ text ~ '<|im_end|>\n' }}
{%- endmacro -%}
{%- macro called(call) -%}
{%- set function = call.function or call -%}
{%- set given = function.arguments -%}
{{ '<tool_call>\n{"name": "' ~ function.name ~ '", "arguments": ' }}
{{- given if given is string else given | tojson }}{{ '}\n</tool_call>' }}
{%- endmacro -%}
{%- set first = messages[0] -%}
{%- set system = first.content if first.role == 'system' else '' -%}
{%- if tools -%}
{%- set head = '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n'
    ~ 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' -%}
{%- set foot = '\n</tools>\n\nFor each function call, return a json object with function name and arguments '
    ~ 'within <tool_call></tool_call> XML tags:\n<tool_call>\n'
    ~ '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' -%}
{%- set list = namespace(text='') -%}
{%- for tool in tools -%}{%- set list.text = list.text ~ '\n' ~ (tool | tojson) -%}{%- endfor -%}
{{ block('system', (system ~ '\n\n' if first.role == 'system' else '') ~ head ~ list.text ~ foot) }}
{%- elif first.role == 'system' -%}
{{ block('system', system) }}
{%- endif -%}
{%- set last = namespace(query=messages | length - 1) -%}
{%- for m in messages if m.role == 'user' -%}{%- set last.query = messages.index(m) -%}{%- endfor -%}
{%- for m in messages -%}
{%- set text = m.content or '' -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}
{{ block(m.role, text) }}
{%- elif m.role == 'assistant' -%}
{%- set reasoning = m.reasoning_content or '' -%}
{{ '<|im_start|>assistant\n' }}
{%- if loop.index0 > last.query and (loop.last or reasoning) -%}
{{ '<think>\n' ~ reasoning.strip('\n') ~ '\n</think>\n\n' ~ text.lstrip('\n') }}
{%- else -%}
{{ text }}
{%- endif -%}
{%- for call in m.tool_calls or [] -%}
{{ '\n' if text or not loop.first }}{{ called(call) }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- elif m.role == 'tool' -%}
{{ '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}
{{- '\n<tool_response>\n' ~ text ~ '\n</tool_response>' }}
{{- '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}
{%- endif -%}
""".strip()
"""Our own template of Qwen3's chat format: it renders the same tokens as `renderers.Qwen3Renderer`."""


def build_tokenizer(
    transcripts: Iterable[Transcript],
    size: int,
    more_control: tuple[str, ...] = (),
    chat_template: str = CHAT_TEMPLATE,
) -> Any:
    """Train a tokenizer on chats, so that their common words become single tokens. It has exactly ``size`` tokens, so
    the embedding needs no padding, or fewer if the chats have too few different words."""
    control = (*CONTROL_TOKENS, *more_control)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = len(control) + len(TEXT_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=size - added,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_as_text(t, chat_template) for t in transcripts), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in TEXT_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=UNKNOWN,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def _as_text(transcript: Transcript, chat_template: str) -> str:
    rendered, _ = render_jinja_template(
        conversations=[transcript.messages],
        tools=list(transcript.tools) or None,
        chat_template=chat_template,
    )
    return rendered[0]
