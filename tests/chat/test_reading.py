"""How a model's tool calls are read: from what its chat template writes, or from what the user or the tokenizer shows."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ajet.chat.renderer import Chat, Turn
from ajet.types import ConfigError
from tests import tokenizers

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "write-file",
        "description": "Write.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "lines": {"type": "integer"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "any": {},
            },
        },
    },
}
ASK: Any = [{"role": "user", "content": "Write it."}]

MUTE = """
{%- if tools -%}{{ '[tools]' ~ (tools | tojson) ~ '<|end|>' }}{%- endif -%}
{%- for m in messages -%}{{ '[' ~ m.role ~ ']' ~ m.content ~ '<|end|>' }}{%- endfor -%}
{%- if add_generation_prompt -%}[assistant]{%- endif -%}
"""
"""Shows tools, and writes no calls."""

TAGS = """
{%- if tools -%}{{ '[tools]' ~ (tools | tojson) ~ '<|end|>' }}{%- endif -%}
{%- for m in messages -%}{{ '[' ~ m.role ~ ']' ~ m.content }}
{%- for call in m.tool_calls or [] -%}
{{- '\n<do it="' ~ call.function.name ~ '">' -}}
{%- for key, value in call.function.arguments.items() -%}
{{- '\n<arg name="' ~ key ~ '">' ~ (value if value is string else value | tojson) ~ '</arg>' -}}
{%- endfor -%}
{{- '\n</do>' -}}
{%- endfor -%}
{{- '<|end|>' }}{%- endfor -%}
{%- if add_generation_prompt -%}[assistant]{%- endif -%}
"""
"""A format that nobody has seen before."""


def chat_of(template: str, tokens: tuple[str, ...] = (), **options: Any) -> Chat:
    tokenizer = copy.deepcopy(tokenizers.plain())
    tokenizer.chat_template = template
    tokenizer.add_tokens(list(tokens))
    for name in ("response_template",):
        if name in options:
            setattr(tokenizer, name, options.pop(name))
    return Chat(tokenizer, **options)


def read(chat: Chat, text: str, tools: Any = (TOOL,), *, cut: bool = False) -> Any:
    ids = [*chat.prefill_ids(text), *([] if cut else chat.stop_token_ids[:1])]
    return chat.parse(ids, chat.render(ASK, tools)[-64:], list(tools))


def arguments(parsed: Any) -> list[Any]:
    return [(name, json.loads(text)) for name, text in parsed.tool_calls]


# ------------------------------------------------------------------ from the chat template


def test_a_format_that_is_new_is_derived_from_what_the_template_writes() -> None:
    chat = chat_of(TAGS)
    assert str(chat.found) == "tags, from the chat template" and not chat.calls_fault
    text = (
        'Now.\n<do it="write-file">\n<arg name="text">    return 1\n</arg>\n<arg name="lines">3</arg>\n</do>'
    )
    parsed = read(chat, text)
    assert arguments(parsed) == [("write-file", {"text": "    return 1\n", "lines": 3})]
    assert (parsed.content, parsed.counts) == ("Now.", {})


def test_unquoted_values_have_the_types_of_the_tools_schema() -> None:
    chat = chat_of(TAGS)
    values = {"text": "8001", "note": "null", "lines": "7", "any": '{"a": true}'}
    args = "".join(f'\n<arg name="{key}">{value}</arg>' for key, value in values.items())
    ((_, found),) = arguments(read(chat, f'<do it="write-file">{args}\n</do>'))
    assert found == {"text": "8001", "note": None, "lines": 7, "any": {"a": True}}


def test_a_value_may_contain_what_ends_values_and_calls() -> None:
    text = 'a</arg> b\n</do> <do it="write-file">\n<arg name="text">c</arg>'
    parsed = read(chat_of(TAGS), f'<do it="write-file">\n<arg name="text">{text}\n</arg>\n</do>')
    assert arguments(parsed) == [("write-file", {"text": f"{text}\n"})]


@pytest.mark.parametrize(
    ("text", "cut", "counts"),
    [
        ('<do it="write-file">\n<arg name="text">x</do>', False, {"malformed_tool_calls": 1}),
        ('<do it="write-file">\n<arg name="te', True, {"cut_calls": 1}),
        ('<do it="erase">\n</do>', False, {"unoffered_tool_calls": 1}),
        ("<do it>write-file</do>", False, {"malformed_tool_calls": 1}),
        ("Nothing to do.", False, {}),
    ],
)
def test_what_is_not_a_call_of_an_offered_tool_stays_text_and_is_counted(
    text: str, cut: bool, counts: dict[str, int]
) -> None:
    parsed = read(chat_of(TAGS), text, cut=cut)
    assert (parsed.content, parsed.tool_calls, dict(parsed.counts)) == (text, (), counts)


def test_a_call_that_ends_a_thought_without_an_end_is_a_call_and_counted() -> None:
    template = TAGS.replace(
        "]' ~ m.content }}",
        "]' ~ ('<think>' ~ m.reasoning_content ~ '</think>' if m.reasoning_content else '') ~ m.content }}",
    )
    chat = chat_of(template)
    assert chat.shape.thoughts == ("<think>", "</think>")
    parsed = read(chat, '<think>I write.\n<do it="write-file">\n<arg name="text">x</arg>\n</do>')
    assert (parsed.reasoning, arguments(parsed)) == ("I write.", [("write-file", {"text": "x"})])
    assert dict(parsed.counts) == {"cut_thoughts": 1, "calls_in_thoughts": 1}
    cut = read(chat, '<think>I write.\n<do it="write-file">\n</do> or', cut=True)
    assert (cut.tool_calls, dict(cut.counts)) == ((), {"cut_thoughts": 1, "calls_in_thoughts": 1})
    closed = read(chat, '<think><do it="write-file">\n</do></think>Done.')
    assert (closed.content, closed.tool_calls) == ("Done.", ())


IN_MESSAGES = """
{%- if tools %}{{ '<|begin|>tools<|content|>' ~ (tools | tojson) ~ '<|end|>' }}{%- endif -%}
{%- for m in messages -%}
{%- if m.reasoning_content -%}{{ '<|begin|>assistant<|think|>' ~ m.reasoning_content ~ '<|end|>' }}{%- endif -%}
{%- if m.content or m.role != 'assistant' -%}{{ '<|begin|>' ~ m.role ~ '<|content|>' ~ m.content ~ '<|end|>' }}{%- endif -%}
{%- if m.tool_calls -%}{{ '<|begin|>assistant<|calls|>' }}{%- for c in m.tool_calls -%}
{{ '<|call|>' ~ c.function.name ~ '<|args|>' ~ (c.function.arguments | tojson) ~ '<|done|>' }}{%- endfor -%}{{ '<|stop|>' }}
{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|begin|>assistant' }}{%- endif -%}
"""
"""Thoughts, text and calls are messages of their own, as in Solar's format."""

TO_ALL = """
{%- for m in messages -%}{{ '[' ~ m.role ~ ']' ~ ('>>>all\\n' if m.role == 'assistant' else '') ~ m.content ~ '<|end|>' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '[assistant]>>>' }}{%- endif -%}
"""
"""An answer begins with whom it is for, as in Functionary's format."""


def test_the_header_of_the_message_with_the_calls_is_no_text() -> None:
    tokens = ("begin", "think", "content", "end", "calls", "call", "args", "done", "stop")
    chat = chat_of(IN_MESSAGES, tuple(f"<|{token}|>" for token in tokens))
    said = "<|think|>Hm.<|end|><|begin|>assistant<|content|>I write.<|end|><|begin|>assistant"
    text = said + '<|calls|><|call|>write-file<|args|>{"text": "a"}<|done|>'
    ids = [*chat.tokenizer.encode(text, add_special_tokens=False), chat.stop_token_ids[0]]
    prompt = chat.render(ASK, [TOOL])
    parsed = chat.parse(ids, prompt[-64:], [TOOL])
    assert (parsed.content, arguments(parsed)) == ("I write.", [("write-file", {"text": "a"})])
    reader = chat.reader(prompt[-64:], [TOOL])
    assert reader and "".join(piece for token in ids for _, piece in reader.read(token)) == "Hm.I write."


def test_a_line_that_every_answer_begins_with_is_no_text() -> None:
    chat = chat_of(TO_ALL)
    for text, content in (("all\nIt is done.", "It is done."), ("allow me", "allow me")):
        parsed = read(chat, text, ())
        assert parsed.content == content
    answer = {"role": "assistant", "content": "It is done."}
    assert chat.written(answer) == "all\nIt is done."
    ids = [*chat.prefill_ids("all\nIt is done."), chat.stop_token_ids[0]]
    whole = [*ASK, answer, *ASK]
    turn = Turn(chat.render(ASK, [])[-64:], ids, answer, ASK, len(whole), lambda: whole)
    assert chat.next_turn(turn, []).ids is not None


# ------------------------------------------------------------------ from elsewhere


def test_without_any_reader_the_remedy_is_named() -> None:
    chat = chat_of(MUTE)
    assert "rollout.call_example" in chat.calls_fault and "rollout.tool_calls: text" in chat.calls_fault
    assert "no names of tools are written" in chat.calls_fault and "\n" not in chat.calls_fault
    text = chat_of(MUTE, reads_calls=False)
    assert text.calls_fault == ""
    assert read(text, '{"name": "write-file", "arguments": {}}').tool_calls == ()


@pytest.mark.parametrize(
    "example",
    [
        '<tool_call>{"name": "NAME", "arguments": {"KEY": "VALUE"}}</tool_call>',
        'call NAME with {"KEY": "VALUE"}.',
        '<f name="NAME"><p name="KEY">VALUE</p></f>',
        "<go>[NAME(KEY='VALUE')]</go>",
        "@NAME{KEY:~VALUE~}@",
        '[{"tool": "NAME", "input": {"KEY": "VALUE"}}]',
    ],
)
def test_an_example_call_shows_how_calls_are_written(example: str) -> None:
    chat = chat_of(MUTE, call_example=example)
    assert chat.found.source == "rollout.call_example" and not chat.calls_fault
    text = example.replace("NAME", "write-file").replace("KEY", "text").replace("VALUE", "a b")
    assert arguments(read(chat, text)) == [("write-file", {"text": "a b"})]
    answer = {"role": "assistant", "content": "", "tool_calls": [_call(text="x"), _call(text="y")]}
    assert arguments(read(chat, chat.written(answer))) == [("write-file", {"text": t}) for t in "xy"]


@pytest.mark.parametrize("example", ["NAME(VALUE)", "NAME KEY VALUE", "<call>NAME: KEYVALUE</call>"])
def test_an_example_that_shows_no_format_is_an_error_that_names_the_key(example: str) -> None:
    with pytest.raises(ConfigError, match=r"^rollout\.call_example: .*NAME, KEY and VALUE"):
        chat_of(MUTE, call_example=example)


def test_the_tokenizers_own_response_template_reads_calls() -> None:
    """In the form of transformers' `response_template`, for a template that writes no calls itself."""
    spec = {
        "defaults": {"role": "assistant"},
        "start_anchor": "[assistant]",
        "fields": {
            "tool_calls": {
                "open_pattern": r"CALL (?P<name>[\w-]+) ",
                "close_pattern": r" END\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {"close_pattern": r"$", "content": "text"},
        },
    }
    chat = chat_of(MUTE, response_template=spec)
    assert "response template" in str(chat.found) and not chat.calls_fault
    parsed = read(chat, 'CALL write-file {"text": "a", "lines": 2} END')
    assert arguments(parsed) == [("write-file", {"text": "a", "lines": 2})]
    assert read(chat, "Nothing to do.").content == "Nothing to do."


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (
            "<|tool_call_begin|>",
            '<|tool_call_begin|>functions.write-file:0<|tool_call_argument_begin|>{"text": "a"}<|tool_call_end|>',
        ),
        ("<|tool_call_start|>", "<|tool_call_start|>[write-file(text='a')]<|tool_call_end|>"),
    ],
)
def test_a_token_of_the_vocabulary_tells_the_format_of_a_template_without_calls(
    token: str, text: str
) -> None:
    chat = chat_of(MUTE, (token,))
    assert token in str(chat.found) and arguments(read(chat, text)) == [("write-file", {"text": "a"})]


@pytest.mark.parametrize("token", ["<|START_ACTION|>", "<tool_call>"])
def test_a_token_that_many_vocabularies_have_tells_it_only_if_the_template_shows_json_after_it(
    token: str,
) -> None:
    for shown in ("", f"{token}", token + "NAME\\n<arg_key>K</arg_key>", token + "{{ name }}"):
        fault = chat_of(MUTE.replace("[tools]", f"[tools]{shown}"), (token,)).calls_fault
        assert "rollout.call_example" in fault and "formats of known tokens" in fault
    for shown in (token + r'\n{"name": N', token + r'[\n    {"tool_name": N', token + r"{{\'name\': N"):
        assert not chat_of(MUTE.replace("[tools]", f"[tools]{shown}"), (token,)).calls_fault


def _call(**values: Any) -> dict[str, Any]:
    return {"id": "", "type": "function", "function": {"name": "write-file", "arguments": json.dumps(values)}}
