"""``rollout.tool_prompt``: tools for a model whose chat template does not write them.

A prelude before the template turns what it cannot write into text that it can: tools into a part of the system message,
calls into a part of the answer, results into a turn of the user. Both together are a chat template like any other.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ajet.chat.encoding import SAID, plain_copy
from ajet.chat.template import QUESTION, STUB_TOOL, Message, Template
from ajet.types import AjetError, ConfigError

KEY = "rollout.tool_prompt"
_MARK = "{#- rollout.tool_prompt: hermes -#}"
_PRELUDE = (
    _MARK
    + r"""
{%- set told = namespace(turns=[], last='') -%}
{%- for message in messages -%}
{%- set said = message.content if message.content is defined and message.content is not none else '' -%}
{%- set turn = message -%}
{%- if message.role == 'tool' -%}
{%- set begin, end = '<tool_response>\n', '\n</tool_response>' -%}
{%- set content = begin ~ said ~ end if said is string else [TEXT(begin)] + said + [TEXT(end)] -%}
{%- set turn = {'role': 'user', 'content': content} -%}
{%- elif message.tool_calls -%}
{%- set calls -%}
{%- for call in message.tool_calls -%}
{{- '\n' if said or not loop.first else '' -}}
{{- '<tool_call>\n{"name": ' ~ (call.function.name | tojson) -}}
{{- ', "arguments": ' ~ (call.function.arguments | tojson) ~ '}\n</tool_call>' -}}
{%- endfor -%}
{%- endset -%}
{%- set content = said ~ calls if said is string else said + [TEXT(calls)] -%}
{%- set turn = dict(message.items() | rejectattr(0, 'equalto', 'tool_calls'), content=content) -%}
{%- endif -%}
{%- if told.last == 'tool' and turn.role == 'user' -%}{#- Some templates refuse two turns of the user in a row. -#}
{%- set before, after = told.turns[-1].content, turn.content -%}
{%- if before is string and after is string -%}
{%- set content = before ~ '\n' ~ after -%}
{%- else -%}
{%- set before = [TEXT(before)] if before is string else before -%}
{%- set content = before + [TEXT('\n')] + ([TEXT(after)] if after is string else after) -%}
{%- endif -%}
{%- set told.turns = told.turns[:-1] + [{'role': 'user', 'content': content}] -%}
{%- else -%}
{%- set told.turns = told.turns + [turn] -%}
{%- endif -%}
{%- set told.last = message.role -%}
{%- endfor -%}
{%- if tools -%}
{%- set shown -%}
{{- 'Tools:\n<tools>' -}}
{%- for tool in tools -%}{{- '\n' ~ (tool.function | tojson) -}}{%- endfor -%}
{{- '\n</tools>\nCall tools like this:\n<tool_call>\n{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>' -}}
{%- endset -%}
{%- set in_parts = messages and messages[0].content is not string -%}
{%- set at = 1 if messages and messages[0].role == 'system' else 0 -%}
PLACE
{%- endif -%}
{%- set messages, tools = told.turns, none %}
"""
)
"""``TEXT(…)`` is a part of a content. It ends with a line of its own: so the template begins as it did."""
_IN_SYSTEM = r"""
{%- if not at -%}
{%- set said = DEFAULT -%}
{%- set content = said if not in_parts else [TEXT(said)] if said else [] -%}
{%- set told.turns = [{'role': 'system', 'content': content}] + told.turns -%}
{%- endif -%}
{%- set said = told.turns[0].content -%}
{%- set shown = ('\n\n' if said else '') ~ shown -%}
{%- set content = said ~ shown if said is string else said + [TEXT(shown)] -%}
{%- set told.turns = [dict(told.turns[0], content=content)] + told.turns[1:] -%}
"""
_IN_FIRST_TURN = r"""
{%- set first = told.turns[at] -%}
{%- set is_users = first and first.role == 'user' -%}
{%- set said = first.content if is_users else [] if in_parts else '' -%}
{%- set shown = shown ~ ('\n\n' if said else '') -%}
{%- set content = shown ~ said if said is string else [TEXT(shown)] + said -%}
{%- set turn = dict(first, content=content) if is_users else {'role': 'user', 'content': content} -%}
{%- set told.turns = told.turns[:at] + [turn] + told.turns[at + 1 if is_users else at:] -%}
"""


def with_tool_prompt(tokenizer: Any, variables: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """A copy of a tokenizer whose chat template also writes tools, in Hermes's format. ``variables`` are those of its template
    that the user sets. Raises ConfigError if it has no template, or one that writes tools itself."""
    name = getattr(tokenizer, "name_or_path", "") or "the model"
    if not isinstance(tokenizer.chat_template, str):
        raise ConfigError(
            KEY,
            f"the tokenizer of {name} has no chat template, or several. Remove the key, or set tokenizer.chat_template.",
        )
    template = Template(tokenizer, plain_copy(tokenizer), variables)

    def written(*messages: Message, tools: tuple[Message, ...] = ()) -> str:
        try:
            return template.stub(messages, tools, True)
        except AjetError:
            return ""

    alone = written(QUESTION)
    if written(QUESTION, tools=(STUB_TOOL,)) not in (alone, ""):
        raise ConfigError(KEY, f"the chat template of {name} writes tools itself. Remove the key.")
    default = _default_system(written({"role": "system", "content": SAID}, QUESTION), alone)
    place = _IN_FIRST_TURN if default is None else _IN_SYSTEM
    prelude = _PRELUDE.replace("PLACE", place.strip()).replace("TEXT(", "dict(type='text', text=")
    prelude = prelude.replace("DEFAULT", json.dumps(default, ensure_ascii=False))
    prompted = copy.copy(tokenizer)
    prompted.chat_template = prelude + tokenizer.chat_template
    return prompted


def has_tool_prompt(tokenizer: Any) -> bool:
    """Whether a tokenizer's chat template writes tools because of `with_tool_prompt`."""
    return str(tokenizer.chat_template).startswith(_MARK)


def _default_system(shown: str, alone: str) -> str | None:
    """The system text that a template writes where a chat has none. None if tools cannot stand in a system message: the template
    leaves system messages out or refuses them, or they take the place of another text. ``shown`` is what it writes for a chat with a
    system message, ``alone`` for the same chat without it."""
    before, mark, after = shown.partition(SAID)
    if not mark:
        return None
    length = len(alone) - len(before) - len(after)
    if length >= 0 and alone.startswith(before) and alone.endswith(after):
        return alone[len(before) :][:length]
    parts = ((alone[:end], alone[end:]) for end in range(len(alone) + 1))
    return "" if any(before.startswith(one) and after.endswith(other) for one, other in parts) else None
