"""Harmony, the chat format of gpt-oss: a small tokenizer with its special tokens, and a template that
writes the documented format as the published gpt-oss template does.

What the model samples after ``<|start|>assistant`` is one or more messages, each in a channel:
``<|channel|>analysis<|message|>thoughts<|end|>`` and then either the answer,
``<|start|>assistant<|channel|>final<|message|>text<|return|>``, or a tool call,
``<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``.
`answer` and `call` write such turns. As in the published template

- an answer that is followed by another message ends with ``<|end|>``, the last one with ``<|return|>``;
- thoughts are called ``thinking``; they are written in a tool loop until an answer has ended the loop,
  and before an answer that ends the chat;
- a tool call in the history has its recipient before the channel: ``assistant to=functions.NAME<|channel|>``;
- a turn has one tool call, and a turn with a call has either thoughts or text, not both.

The vocabulary is made here, since the real one has to be downloaded.
"""

from __future__ import annotations

import functools
from typing import Any

from transformers import PreTrainedTokenizerFast

from tests.tokenizers import byte_level

SPECIAL = (
    *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>"),
    *("<|start|>", "<|end|>", "<|message|>", "<|call|>", "<|endofprompt|>"),
)

TEMPLATE = r"""
{%- macro type_of(spec) -%}
{%- if spec.enum -%}{{ spec.enum | map('tojson') | join(' | ') }}
{%- elif spec.type == 'array' -%}{{ (type_of(spec['items']) if spec['items'] else 'any') ~ '[]' }}
{%- elif spec.type in ('number', 'integer') -%}number
{%- elif spec.type in ('string', 'boolean') -%}{{ spec.type }}
{%- elif spec.type == 'object' and spec.properties -%}{{ '{\n' ~ fields_of(spec) ~ '}' }}
{%- else -%}any
{%- endif -%}
{%- endmacro -%}

{%- macro fields_of(spec) -%}
{%- for name, field in spec.properties.items() -%}
{%- if field.description -%}{{ '// ' ~ field.description ~ '\n' }}{%- endif -%}
{{- name ~ ('' if name in (spec.required or []) else '?') ~ ': ' ~ type_of(field) -}}
{{- (', // default: ' ~ (field.default | tojson) if field.default is defined else ',') ~ '\n' -}}
{%- endfor -%}
{%- endmacro -%}

{%- macro namespace_of(tools) -%}
{{- '# Tools\n\n## functions\n\nnamespace functions {\n\n' -}}
{%- for tool in tools -%}
{%- set f = tool.function -%}
{%- if f.description -%}{{ '// ' ~ f.description ~ '\n' }}{%- endif -%}
{%- set takes = '(_: {\n' ~ fields_of(f.parameters) ~ '})' if f.parameters and f.parameters.properties else '()' -%}
{{- 'type ' ~ f.name ~ ' = ' ~ takes ~ ' => any;\n\n' -}}
{%- endfor -%}
{{- '} // namespace functions' -}}
{%- endmacro -%}

{{- '<|start|>system<|message|>You are a large language model.\nKnowledge cutoff: 2024-06\n' -}}
{{- 'Current date: 2025-08-05\n\nReasoning: ' ~ (reasoning_effort or 'medium') ~ '\n\n' -}}
{{- '# Valid channels: analysis, commentary, final. Channel must be included for every message.' -}}
{%- if tools -%}{{ "\nCalls to these tools must go to the commentary channel: 'functions'." }}{%- endif -%}
{{- '<|end|>' -}}

{%- set instructed = messages[0].role in ('system', 'developer') -%}
{%- set rest = messages[1:] if instructed else messages -%}
{%- if instructed or tools -%}
{{- '<|start|>developer<|message|>' -}}
{%- if instructed -%}{{ '# Instructions\n\n' ~ messages[0].content ~ '\n\n' }}{%- endif -%}
{%- if tools -%}{{ namespace_of(tools) }}{%- endif -%}
{{- '<|end|>' -}}
{%- endif -%}

{%- set called = namespace(name=none) -%}
{%- for m in rest -%}
{%- if m.role == 'assistant' and m.tool_calls -%}
{%- if m.content and m.thinking -%}
{{- raise_exception('A message with a tool call has either content or thinking, not both') -}}
{%- endif -%}
{%- set answered = namespace(later=false) -%}
{%- for after in rest[loop.index:] if after.role == 'assistant' and not after.tool_calls -%}
{%- set answered.later = true -%}
{%- endfor -%}
{%- if (m.content or m.thinking) and not answered.later -%}
{{- '<|start|>assistant<|channel|>analysis<|message|>' ~ (m.content or m.thinking) ~ '<|end|>' -}}
{%- endif -%}
{%- set called.name = m.tool_calls[0].function.name -%}
{{- '<|start|>assistant to=functions.' ~ called.name ~ '<|channel|>commentary json<|message|>' -}}
{{- (m.tool_calls[0].function.arguments | tojson) ~ '<|call|>' -}}
{%- elif m.role == 'assistant' -%}
{%- set last = loop.last and not add_generation_prompt -%}
{%- if last and m.thinking -%}
{{- '<|start|>assistant<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|>' -}}
{%- endif -%}
{{- '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ ('<|return|>' if last else '<|end|>') -}}
{%- if not last -%}{%- set called.name = none -%}{%- endif -%}
{%- elif m.role == 'tool' -%}
{%- if not called.name -%}{{ raise_exception('A tool message needs a tool call before it') }}{%- endif -%}
{{- '<|start|>functions.' ~ called.name ~ ' to=assistant<|channel|>commentary<|message|>' -}}
{{- (m.content | tojson) ~ '<|end|>' -}}
{%- elif m.role == 'user' -%}
{{- '<|start|>user<|message|>' ~ m.content ~ '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant' }}{%- endif -%}
""".strip()


@functools.cache
def harmony() -> Any:
    """Byte-level, with Harmony's special tokens; the eos is ``<|return|>``. ``model_type`` gpt_oss."""
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level(SPECIAL, more=["analysis commentary final functions json to="] * 20),
        bos_token="<|startoftext|>",
        eos_token="<|return|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def for_template(message: Any) -> Any:
    """A message with its reasoning under the name that the template reads; older releases of transformers do not do this."""
    thought = message.get("reasoning_content")
    return {**message, "thinking": thought} if thought else message


def answer(text: str, thought: str = "") -> str:
    """A sampled turn that answers, without the ``<|return|>`` that ends it."""
    return f"{_analysis(thought)}<|channel|>final<|message|>{text}"


def call(name: str, arguments: str, thought: str = "", preamble: str = "") -> str:
    """A sampled turn that calls a tool, with the ``<|call|>`` that ends it."""
    said = f"<|channel|>commentary<|message|>{preamble}<|end|><|start|>assistant" if preamble else ""
    header = f"<|channel|>commentary to=functions.{name} <|constrain|>json"
    return f"{_analysis(thought)}{said}{header}<|message|>{arguments}<|call|>"


def _analysis(thought: str) -> str:
    return f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant" if thought else ""
