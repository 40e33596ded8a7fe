"""How models write tool calls: as a text that a model samples, and as the Jinja of a template that writes the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments."""

_PLACE = re.compile(r"\$(NAME|ARGS|INDEX|NUMBER|ID|KEY|VALUE|TYPE|IS_STRING)")
_LITERAL = {True: "true", False: "false"}


def say(text: str) -> str:
    """Jinja that writes a text."""
    return "{{- " + _quoted(text) + " -}}" if text else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def compact(value: Any) -> str:
    """A value as the JSON that models write."""
    return json.dumps(value, ensure_ascii=False)


def _type(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}
    return kinds.get(type(value), "null")


_JINJA_TYPE = (
    "('string' if value is string else 'boolean' if value is boolean else 'null' if value is none "
    "else 'number' if value is number else 'object' if value is mapping else 'array')"
)


def _gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(item, quote)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma(item, quote) for item in value) + "]"
    return compact(value)


def gemma_macro(quote: str) -> str:
    """Jinja that a template with values in the style ``gemma`` begins with: it defines ``written(value)``."""
    return (
        "{%- macro written(value) -%}{%- if value is string -%}"
        + "{{- "
        + f"{_quoted(quote)} ~ value ~ {_quoted(quote)}"
        + " -}}{%- elif value is mapping -%}{{- '{' -}}"
        + "{%- for k, v in value.items() -%}{{- ('' if loop.first else ',') ~ k ~ ':' ~ written(v) -}}{%- endfor -%}"
        + "{{- '}' -}}{%- elif value is boolean or value is number or value is none -%}{{- value | tojson -}}"
        + "{%- else -%}{{- '[' -}}"
        + "{%- for v in value -%}{{- ('' if loop.first else ',') ~ written(v) -}}{%- endfor -%}{{- ']' -}}"
        + "{%- endif -%}{%- endmacro -%}"
    )


_STYLES: dict[str, tuple[Callable[[Any], str], str]] = {
    # Strings as they are, other values as JSON.
    "raw": (
        lambda v: v if isinstance(v, str) else compact(v),
        "(value if value is string else value | tojson)",
    ),
    # As `raw`, but the template writes true, false and null as Python does.
    "str": (
        lambda v: v if isinstance(v, str) else compact(v),
        "(value | tojson if value is mapping or (value is iterable and value is not string) else value | string)",
    ),
    "json": (compact, "value | tojson"),
    # The template neither escapes nor, in `bare`, quotes strings: what it writes cannot always be read.
    "python": (repr, '("\'" ~ value ~ "\'" if value is string else value | string)'),
    "bare": (repr, "value | string"),
    "gemma": (lambda v: _gemma(v, '<|"|>'), "written(value)"),
    "escape": (lambda v: _gemma(v, "<escape>"), "written(value)"),
}
LOSSY = ("python", "bare")


@dataclass(frozen=True)
class Calls:
    """The text of an answer's calls. In ``each`` and ``argument`` the marks $NAME, $ARGS, $INDEX (from 0), $NUMBER (from
    1), $ID, $KEY, $VALUE, $TYPE and $IS_STRING stand for what varies; $ARGS is a JSON object if there is no ``argument``."""

    each: str
    first: str = ""
    last: str = ""
    between: str = ""
    argument: str = ""
    between_arguments: str = ""
    values: str = "raw"
    as_text: Callable[[Sequence[Call]], str] | None = None
    """Writes what the model samples, if the marks cannot."""

    def text(self, calls: Sequence[Call], index: int = 0) -> str:
        """What a model samples; ``index`` is the number of calls before it."""
        if self.as_text:
            return self.as_text(calls)
        each = (self._filled(self.each, c, index + i) for i, c in enumerate(calls))
        return self.first + self.between.join(each) + self.last

    def _filled(self, each: str, call: Call, index: int) -> str:
        name, arguments = call
        own = _STYLES[self.values][0]

        def of(key: str, value: Any) -> str:
            parts = {
                "KEY": key,
                "VALUE": own(value),
                "TYPE": _type(value),
                "IS_STRING": _LITERAL[isinstance(value, str)],
            }
            return _PLACE.sub(lambda m: parts[m[1]], self.argument)

        args = (
            self.between_arguments.join(of(*pair) for pair in arguments.items())
            if self.argument
            else compact(arguments)
        )
        whole = {
            "NAME": name,
            "ARGS": args,
            "INDEX": str(index),
            "NUMBER": str(index + 1),
            "ID": f"c4ll{index:05}",
        }
        return _PLACE.sub(lambda m: whole[m[1]], each)

    def jinja(self) -> str:
        """What a template has to write the calls of the message ``m``."""
        value = _STYLES[self.values][1]
        args = "{{- f.arguments | tojson -}}"
        if self.argument:
            args = (
                "{%- for key, value in f.arguments.items() -%}{%- if not loop.first -%}"
                + say(self.between_arguments)
                + "{%- endif -%}"
                + _written(
                    self.argument,
                    {
                        "KEY": "{{- key -}}",
                        "VALUE": "{{- " + value + " -}}",
                        "TYPE": "{{- " + _JINJA_TYPE + " -}}",
                        "IS_STRING": "{{- 'true' if value is string else 'false' -}}",
                    },
                )
                + "{%- endfor -%}"
            )
        each = _written(
            self.each,
            {
                "NAME": "{{- f.name -}}",
                "ARGS": args,
                "INDEX": "{{- loop.index0 -}}",
                "NUMBER": "{{- loop.index -}}",
                "ID": "{{- call.id -}}",
            },
        )
        return (
            "{%- for call in m.tool_calls or [] -%}{%- set f = call.function -%}{%- if loop.first -%}"
            + say(self.first)
            + "{%- else -%}"
            + say(self.between)
            + "{%- endif -%}"
            + each
            + "{%- if loop.last -%}"
            + say(self.last)
            + "{%- endif -%}{%- endfor -%}"
        )

    @property
    def is_lossy(self) -> bool:
        """Whether two different calls may look the same in the template's text."""
        return self.values in LOSSY


def _written(text: str, parts: Mapping[str, str]) -> str:
    pieces = _PLACE.split(text)
    return "".join(parts[piece] if i % 2 else say(piece) for i, piece in enumerate(pieces))


# ------------------------------------------------------------------ what several families share

HERMES = Calls('<tool_call>\n{"name": "$NAME", "arguments": $ARGS}\n</tool_call>', between="\n")
CODER = Calls(
    "<tool_call>\n<function=$NAME>\n$ARGS</function>\n</tool_call>",
    between="\n",
    argument="<parameter=$KEY>\n$VALUE\n</parameter>\n",
    values="str",
)
SEED = Calls(
    "<seed:tool_call>\n<function=$NAME>\n$ARGS</function>\n</seed:tool_call>",
    between="\n",
    argument="<parameter=$KEY>$VALUE</parameter>\n",
)
LLAMA = Calls('{"name": "$NAME", "parameters": $ARGS}', between="; ")
PYTHON = Calls(
    "$NAME($ARGS)", "[", "]", ", ", argument="$KEY=$VALUE", between_arguments=", ", values="python"
)
DEEPSEEK_V3 = Calls(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$NAME\n```json\n$ARGS\n```<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "\n",
)
DEEPSEEK_V31 = Calls(
    "<｜tool▁call▁begin｜>$NAME<｜tool▁sep｜>$ARGS<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
)


def dsml(block: str) -> Calls:
    """DeepSeek's tags from 3.2 on."""
    return Calls(
        '<｜DSML｜invoke name="$NAME">\n$ARGS</｜DSML｜invoke>\n',
        f"\n\n<｜DSML｜{block}>\n",
        f"</｜DSML｜{block}>",
        argument='<｜DSML｜parameter name="$KEY" string="$IS_STRING">$VALUE</｜DSML｜parameter>\n',
    )


GLM = Calls(
    "<tool_call>$NAME\n$ARGS</tool_call>",
    between="\n",
    argument="<arg_key>$KEY</arg_key>\n<arg_value>$VALUE</arg_value>\n",
)
GLM_47 = Calls(
    "<tool_call>$NAME$ARGS</tool_call>", argument="<arg_key>$KEY</arg_key><arg_value>$VALUE</arg_value>"
)
KIMI = Calls(
    "<|tool_call_begin|>functions.$NAME:$INDEX<|tool_call_argument_begin|>$ARGS<|tool_call_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
)
KIMI_K3 = Calls(
    '<|open|>call tool="$NAME" index="$NUMBER"<|sep|>$ARGS<|close|>call<|sep|>',
    "<|open|>tools<|sep|>",
    "<|close|>tools<|sep|>",
    argument='<|open|>argument key="$KEY" type="$TYPE"<|sep|>$VALUE<|close|>argument<|sep|>',
)
MINIMAX = Calls(
    '<invoke name="$NAME">\n$ARGS</invoke>\n',
    "\n<minimax:tool_call>\n",
    "</minimax:tool_call>",
    argument='<parameter name="$KEY">$VALUE</parameter>\n',
)
GEMMA_4 = Calls(
    "<|tool_call>call:$NAME{$ARGS}<tool_call|>",
    argument="$KEY:$VALUE",
    between_arguments=",",
    values="gemma",
)
MISTRAL = Calls('{"name": "$NAME", "arguments": $ARGS}', "[TOOL_CALLS][", "]", ", ")
MISTRAL_WITH_ID = Calls('{"name": "$NAME", "arguments": $ARGS, "id": "$ID"}', "[TOOL_CALLS][", "]", ", ")
LISTED = '{"name": "$NAME", "arguments": $ARGS}'
COHERE = Calls(
    '    {"tool_call_id": "$INDEX", "tool_name": "$NAME", "parameters": $ARGS}',
    "<|START_ACTION|>[\n",
    "\n]<|END_ACTION|>",
    ",\n",
)


def _command_r_plus(calls: Sequence[Call]) -> str:
    shown = [{"tool_name": name, "parameters": arguments} for name, arguments in calls]
    return f"Action: ```json\n{json.dumps(shown, indent=4, ensure_ascii=False)}\n```"


COMMAND_R_PLUS = Calls("", as_text=_command_r_plus)


def _harmony(calls: Sequence[Call]) -> str:
    (name, arguments), *_ = calls
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{compact(arguments)}"


HARMONY = Calls("", as_text=_harmony)
