"""Chat templates of many kinds, for the rule that a prompt is what the template writes.

Some are shaped like those of well-known models, others do what templates may do to earlier messages: number them,
clear them, repeat or move what stands around them. Each has a byte-level tokenizer with the special tokens it
writes, cached for the process.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from transformers import PreTrainedTokenizerFast

from tests import tokenizers

_CALLS = r"""
{%- for call in m.tool_calls or [] -%}
{{- '\n<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
{{- (call.function.arguments | tojson(sort_keys=SORTED)) ~ '}\n</tool_call>' -}}
{%- endfor -%}
"""
_THOUGHT = r"""
{%- if m.reasoning_content -%}{{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' -}}{%- endif -%}
"""
_BODY = (
    "{{- '<|' ~ m.role ~ '|>' -}}" + _THOUGHT + "{{- m.content or '' -}}" + _CALLS + "{{- '<|end|>\\n' -}}"
)
_TOOLS = "{%- if tools -%}{{- '<|tools|>' ~ (tools | tojson) ~ '<|end|>\\n' -}}{%- endif -%}"
_GENERATE = "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"


def _loop(before: str = "", after: str = "", over: str = "messages", body: str = _BODY) -> str:
    return _TOOLS + f"{{%- for m in {over} -%}}{before}{body}{after}{{%- endfor -%}}" + _GENERATE


_LAST_USER = r"""
{%- set last = namespace(user=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}{%- endfor -%}
"""

PLAIN = _loop()

NUMBERED = (
    _TOOLS
    + "{%- for m in messages -%}{{- '<|' ~ m.role ~ '|>' ~ loop.index ~ ': ' -}}"
    + _THOUGHT
    + "{{- m.content or '' -}}"
    + _CALLS
    + "{{- '<|end|>\\n' -}}{%- endfor -%}"
    + "{%- if add_generation_prompt -%}{{- '<|assistant|>' ~ (messages | length + 1) ~ ': ' -}}{%- endif -%}"
)

COUNTED_DOWN = _loop(before="{{- '(' ~ loop.revindex ~ ') ' -}}")

SYSTEM_AGAIN = _LAST_USER + _loop(
    before=r"""
{%- if loop.index0 == last.user and messages[0].role == 'system' -%}
{{- '<|system|>' ~ messages[0].content ~ '<|end|>\n' -}}
{%- endif -%}"""
)

REMINDED = _loop(after="{%- if loop.index0 % 10 == 9 -%}{{- '<|system|>Be brief.<|end|>\\n' -}}{%- endif -%}")

REMINDED_AT_THE_END = _loop(
    after=r"""
{%- if messages | length >= 10 and loop.index == messages | length - messages | length % 10 -%}
{{- '<|system|>Be brief.<|end|>\n' -}}
{%- endif -%}"""
)

CLEARED = _loop(
    body=r"""
{%- if m.role == 'tool' and loop.index0 < messages | length - 6 -%}{{- '<|tool|>(cleared)<|end|>\n' -}}
{%- else -%}"""
    + _BODY
    + "{%- endif -%}"
)

TOOLS_LAST = (
    _LAST_USER
    + "{%- for m in messages -%}"
    + _BODY
    + "{%- if tools and loop.index0 == last.user -%}{{- '<|tools|>' ~ (tools | tojson) ~ '<|end|>\\n' -}}{%- endif -%}"
    + "{%- endfor -%}"
    + _GENERATE
)

TRIMMED = _loop(over="messages[-8:]")

SORTED = PLAIN.replace("SORTED", "true")

STRIPPED = _LAST_USER + _loop(
    body=_BODY.replace("if m.reasoning_content", "if m.reasoning_content and loop.index0 > last.user")
)

NAMED = PLAIN.replace("'<|' ~ m.role ~ '|>'", "'<|' ~ m.role ~ '|>' ~ (m.name ~ ': ' if m.name else '')")

HARMONY = r"""
{{- '<|start|>system<|message|>You are a model.<|end|>' -}}
{%- if tools -%}{{- '<|start|>developer<|message|>' ~ (tools | tojson) ~ '<|end|>' -}}{%- endif -%}
{%- set last = namespace(final=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' and not m.tool_calls -%}{%- set last.final = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- if m.thinking and loop.index0 > last.final -%}
{{- '<|start|>assistant<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|>' -}}
{%- endif -%}
{%- if m.tool_calls -%}
{%- set call = m.tool_calls[0].function -%}
{{- '<|start|>assistant to=functions.' ~ call.name ~ '<|channel|>commentary json<|message|>' -}}
{{- (call.arguments | tojson) ~ '<|call|>' -}}
{%- else -%}
{{- '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|end|>' -}}
{%- endif -%}
{%- elif m.role == 'tool' -%}
{{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' ~ m.content ~ '<|end|>' -}}
{%- else -%}
{{- '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""

MISTRAL = r"""
{{- bos_token -}}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if tools and m == users[-1] -%}{{- '[AVAILABLE_TOOLS]' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{{- '[INST]' ~ m.content ~ '[/INST]' -}}
{%- elif m.role == 'assistant' -%}
{{- ' ' ~ (m.content or '') -}}
{%- if m.tool_calls -%}
{{- '[TOOL_CALLS][' -}}
{%- for call in m.tool_calls -%}
{{- '{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) -}}
{{- ', "id": "' ~ call.id ~ '"}' ~ (']' if loop.last else ', ') -}}
{%- endfor -%}
{%- endif -%}
{{- eos_token -}}
{%- elif m.role == 'tool' -%}
{{- '[TOOL_RESULTS]' ~ m.content ~ '[/TOOL_RESULTS]' -}}
{%- else -%}
{{- '[INST]' ~ m.content ~ '[/INST]' -}}
{%- endif -%}
{%- endfor -%}
"""

GEMMA = r"""
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}
{%- set first = messages[0].content ~ '\n\n' -%}{%- set chat = messages[1:] -%}
{%- else -%}
{%- set first = '' -%}{%- set chat = messages -%}
{%- endif -%}
{%- for m in chat -%}
{%- set role = 'model' if m.role == 'assistant' else m.role -%}
{{- '<start_of_turn>' ~ role ~ '\n' ~ (first if loop.first else '') ~ m.content | trim ~ '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}
"""

DEEPSEEK_R1 = r"""
{{- bos_token -}}
{%- set ns = namespace(system='', after_tool=false) -%}
{%- for m in messages -%}{%- if m.role == 'system' -%}{%- set ns.system = ns.system ~ m.content -%}{%- endif -%}{%- endfor -%}
{{- ns.system -}}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- '<|User|>' ~ m.content -}}{%- set ns.after_tool = false -%}{%- endif -%}
{%- if m.role == 'assistant' -%}
{{- ('' if ns.after_tool else '<|Assistant|>') ~ m.content.split('</think>')[-1] ~ '<|end_of_sentence|>' -}}
{%- set ns.after_tool = false -%}
{%- endif -%}
{%- if m.role == 'tool' -%}{{- '<|tool_output|>' ~ m.content -}}{%- set ns.after_tool = true -%}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.after_tool -%}{{- '<|Assistant|><think>\n' -}}{%- endif -%}
"""

QWEN3 = r"""
{%- if tools -%}
{{- '<|im_start|>system\n' ~ (messages[0].content ~ '\n\n' if messages[0].role == 'system' else '') ~ '# Tools' -}}
{%- for tool in tools -%}{{- '\n' ~ (tool | tojson) -}}{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' ~ messages[0].content ~ '<|im_end|>\n' -}}
{%- endif -%}
{%- set ns = namespace(searching=true, query=messages | length - 1) -%}
{%- for m in messages[::-1] -%}
{%- set index = (messages | length - 1) - loop.index0 -%}
{%- if ns.searching and m.role == 'user' and not m.content.startswith('<tool_response>') -%}
{%- set ns.searching = false -%}
{%- set ns.query = index -%}
{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- set content = m.content if m.content is string else '' -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}
{{- '<|im_start|>' ~ m.role ~ '\n' ~ content ~ '<|im_end|>\n' -}}
{%- elif m.role == 'assistant' -%}
{%- set reasoning = '' -%}
{%- if m.reasoning_content is string -%}
{%- set reasoning = m.reasoning_content -%}
{%- elif '</think>' in content -%}
{%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\n' -}}
{%- if loop.index0 > ns.query and (loop.last or reasoning) -%}
{{- '<think>\n' ~ reasoning.strip('\n') ~ '\n</think>\n\n' ~ content.lstrip('\n') -}}
{%- else -%}
{{- content -}}
{%- endif -%}
{%- for call in m.tool_calls or [] -%}
{%- if (loop.first and content) or not loop.first -%}{{- '\n' -}}{%- endif -%}
{%- set f = call.function or call -%}
{{- '<tool_call>\n{"name": "' ~ f.name ~ '", "arguments": ' -}}
{{- (f.arguments if f.arguments is string else f.arguments | tojson) ~ '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\n<tool_response>\n' ~ content ~ '\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

LLAMA3 = r"""
{{- bos_token -}}
{%- if messages[0]['role'] == 'system' -%}
{%- set system_message = messages[0]['content'] | trim -%}{%- set messages = messages[1:] -%}
{%- else -%}{%- set system_message = '' -%}{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' ~ system_message ~ '<|eot_id|>' -}}
{%- if tools -%}
{%- if messages | length != 0 -%}
{%- set first_user_message = messages[0]['content'] | trim -%}{%- set messages = messages[1:] -%}
{%- else -%}{{- raise_exception('no first user message') -}}{%- endif -%}
{{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
{%- for t in tools -%}{{- t | tojson(indent=4) ~ '\n\n' -}}{%- endfor -%}
{{- first_user_message ~ '<|eot_id|>' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if not (message.role == 'tool' or 'tool_calls' in message) -%}
{{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\n\n' ~ message['content'] | trim ~ '<|eot_id|>' -}}
{%- elif 'tool_calls' in message -%}
{%- set call = message.tool_calls[0].function -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' ~ call.name ~ '", "parameters": ' -}}
{{- call.arguments | tojson ~ '}<|eot_id|>' -}}
{%- else -%}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' ~ message.content | tojson ~ '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}
"""

TEMPLATES: dict[str, str] = {
    name.lower(): template.strip().replace("SORTED", "false")
    for name, template in {
        "PLAIN": PLAIN,
        "NUMBERED": NUMBERED,
        "COUNTED_DOWN": COUNTED_DOWN,
        "SYSTEM_AGAIN": SYSTEM_AGAIN,
        "REMINDED": REMINDED,
        "REMINDED_AT_THE_END": REMINDED_AT_THE_END,
        "CLEARED": CLEARED,
        "TOOLS_LAST": TOOLS_LAST,
        "TRIMMED": TRIMMED,
        "SORTED": SORTED,
        "STRIPPED": STRIPPED,
        "NAMED": NAMED,
        "HARMONY": HARMONY,
        "MISTRAL": MISTRAL,
        "GEMMA": GEMMA,
        "DEEPSEEK_R1": DEEPSEEK_R1,
        "QWEN3": QWEN3,
        "LLAMA3": LLAMA3,
    }.items()
}
"""Templates by name."""

_CONTROL = re.compile(r"<\|[a-zA-Z_]+\|>|\[/?[A-Z_]+\]|<start_of_turn>|<end_of_turn>")
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|tools|>")
_ENDS = {
    "mistral": "</s>",
    "deepseek_r1": "<|end_of_sentence|>",
    "gemma": "<end_of_turn>",
    "harmony": "<|end|>",
}


@functools.cache
def tokenizer(name: str) -> Any:
    """The tokenizer of a template."""
    template = TEMPLATES[name]
    control = dict.fromkeys([*_CONTROL.findall(template), *_ROLES, "<|bos|>", "</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.byte_level(
            tuple(control), ("<think>", "</think>", "<tool_call>", "</tool_call>")
        ),
        bos_token="<|bos|>",
        eos_token=_ENDS.get(name, "</s>"),
        pad_token="</s>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
