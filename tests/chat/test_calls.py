"""Each beginning of a call in an answer is a call or counted, and what is complete is called wherever the answer is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.chat import bodies
from ajet.chat.bodies import Tools
from ajet.chat.calls import BareCalls, CallReader
from ajet.chat.derive import from_example
from ajet.chat.harmony import Harmony
from ajet.chat.renderer import Chat
from tests.chat.families import FAMILIES
from tests.chat.programme import TOOLS, make_chat
from tests.chat.test_reading import chat_of

NONE = re.compile("(?!)")
TAGS = from_example("<call>\n<fn=NAME>\n<arg=KEY>\nVALUE\n</arg>\n</fn>\n</call>", NONE)
JSON = from_example('<call>{"name": "NAME", "arguments": {"KEY": "VALUE"}}</call>', NONE)
LIST = from_example(
    '<calls>[{"name": "NAME", "arguments": {"KEY": "VALUE"}}, {"name": "NAME", "arguments": {"KEY": "VALUE"}}]</calls>',
    NONE,
)
OBJECT = from_example("<do>call:NAME{KEY:<~>VALUE<~>}<od>", NONE)
PYTHON = from_example("<go>[NAME(KEY='VALUE'), NAME(KEY='VALUE')]</go>", NONE)
BARE = from_example('{"name": "NAME", "parameters": {"KEY": "VALUE"}}', NONE)
assert isinstance(BARE, BareCalls)

PING = ("ping", {})
WRITE = ("write", {"text": "a", "n": 2})
TAGGED = "<call>\n<fn=write>\n<arg=text>\na\n</arg>\n<arg=n>\n2\n</arg>\n</fn>\n</call>"
TAGGED_PING = "<call>\n<fn=ping>\n</fn>\n</call>"
ITEM = '{"name": "write", "arguments": {"text": "a", "n": 2}}'
PLAIN = ITEM.replace("arguments", "parameters")


def read(reader: CallReader, text: str, *, ended: bool = True) -> tuple[list[Any], str, int, int]:
    """Calls, text, how many are malformed, and how many not offered."""
    found = reader.read(text, Tools(TOOLS), ended)
    return [(c.name, dict(c.arguments)) for c in found.calls], found.text, found.malformed, found.unoffered


@pytest.mark.parametrize("between", ["\n", ",", "\nNow the other.\n", "\nIt has </fn> and </call>.\n"])
@pytest.mark.parametrize("second", [TAGGED, TAGGED_PING])
def test_words_between_two_calls_in_tags_belong_to_neither(between: str, second: str) -> None:
    calls, text, *counts = read(TAGS, TAGGED + between + second)
    assert calls == [WRITE, WRITE if second == TAGGED else PING]
    assert (text, counts) == (between.rstrip(), [0, 0])


@pytest.mark.parametrize(
    "text",
    [
        f"See {TAGGED} and {TAGGED_PING}, or {TAGGED}.",
        "</arg>\n</fn>\n</call> closes it",
        "it begins with <call>\n<fn=write>",
        "a</arg> b",
    ],
)
@pytest.mark.parametrize("after", ["", f"\nThen:\n{TAGGED}"])
def test_a_value_may_contain_whole_calls_and_markers(text: str, after: str) -> None:
    said = TAGGED.replace("\na\n", f"\n{text}\n") + after
    wanted = [("write", {"text": text, "n": 2}), *([WRITE] if after else [])]
    assert read(TAGS, said)[0] == wanted


@pytest.mark.parametrize("end", ["</arg>\n", "</arg>\n<arg=", "</arg>\n<arg=n>\n"])
def test_a_call_that_is_cut_between_its_arguments_is_none(end: str) -> None:
    cut = TAGGED[: TAGGED.index(end) + len(end)]
    assert read(TAGS, cut, ended=False) == ([], cut, 1, 0)


def test_a_call_within_a_value_that_is_cut_is_none() -> None:
    for reader, text in (
        (TAGS, f"<call>\n<fn=write>\n<arg=text>\nSuch as {TAGGED_PING} and"),
        (JSON, '<call>{"name": "write", "arguments": {"text": "<call>{\\"name\\": 1}</call> <call>' + ITEM),
        (BARE, '{"name": "write", "parameters": {"options": {"name": "ping", "parameters": {}}, "te'),
    ):
        assert read(reader, text, ended=False) == ([], text, 1, 0)


def test_a_call_without_its_end_is_one_where_the_model_ended_the_answer_or_calls_again() -> None:
    unclosed = TAGGED.removesuffix("\n</fn>\n</call>")
    assert read(TAGS, unclosed)[0] == [WRITE]
    assert read(TAGS, f"{unclosed}\n{TAGGED_PING}")[0] == [WRITE, PING]


def test_an_argument_that_the_tool_does_not_have_is_one() -> None:
    said = TAGGED.replace("<arg=n>", "<arg=number>")
    assert read(TAGS, said)[0] == [("write", {"text": "a", "number": 2})]


@pytest.mark.parametrize(
    "text",
    ["<do>call:write{te", "<do>call:write{text}<od>", "<do>call:write{text:<~>a<~>,n", "<do>call:write{"],
)
def test_an_object_that_is_no_object_is_counted(text: str) -> None:
    assert read(OBJECT, text, ended=False) == ([], text, 1, 0)


@pytest.mark.parametrize(
    ("rest", "calls", "malformed"),
    [
        (", {", 1, 1),
        (', {"name": "write", "arguments": {"n": 3,}}]</calls>', 1, 1),
        (f"; {ITEM}]</calls>", 1, 1),
        (f" {ITEM}]</calls>", 2, 0),
        (" and that is it", 1, 1),
        (f"]</calls>\nThen: <calls>[{ITEM}]</calls>", 2, 0),
        ("]</calls>\nThen: <calls>[{]</calls>", 1, 1),
        ("", 1, 0),
    ],
)
def test_what_follows_the_first_call_of_a_list_is_called_or_counted(
    rest: str, calls: int, malformed: int
) -> None:
    found = read(LIST, f"<calls>[{ITEM}{rest}")
    assert (found[0], found[2]) == ([WRITE] * calls, malformed)


@pytest.mark.parametrize(
    ("text", "calls", "counts"),
    [
        (PLAIN, 1, (0, 0)),
        (f"{PLAIN}; {PLAIN}", 2, (0, 0)),
        (f"First:\n{PLAIN}\nThen:\n{PLAIN}\nDone.", 2, (0, 0)),
        (f"[{PLAIN}, {PLAIN}]", 2, (0, 0)),
        (f"functools[{PLAIN}]", 1, (0, 0)),
        (f"<tool_call>\n{PLAIN}\n</tool_call>", 1, (0, 0)),
        ('<tool_call>\n{"name": write', 0, (1, 0)),
        ("write(text='a', n=2)", 1, (0, 0)),
        ("[write(text='a', n=2), write(text='a', n=2)]", 2, (0, 0)),
        (f"{PLAIN}\nThen:\n{PLAIN[:-2]}", 1, (1, 0)),
        (f"[{PLAIN}, {PLAIN.replace('2', '2,')}]", 1, (1, 0)),
        (PLAIN.replace("write", "wriet"), 0, (0, 1)),
        ("[wriet(text='a')]", 0, (0, 1)),
        ("[write(text='a'", 0, (1, 0)),
        ('{"name": "write", "text": "a"}', 0, (1, 0)),
        ('The data are {"a": [1, {"b": 2}]} and f(x) = [x].', 0, (0, 0)),
    ],
)
def test_calls_without_a_marker_are_called_or_counted(text: str, calls: int, counts: tuple[int, int]) -> None:
    found, rest, *counted = read(BARE, text)
    assert (found, tuple(counted)) == ([WRITE] * calls, counts)
    assert rest == text if not calls else "write" not in rest or counts[0]


@pytest.mark.parametrize(
    "text", ["functools[{", 'Now functools[{"name": "ping", "parameters": {}}] it is', "write(n=1) x"]
)
def test_a_stream_gives_the_beginning_of_the_whole_answer(text: str) -> None:
    template = (
        "{%- for m in messages -%}{{ '[' ~ m.role ~ ']' ~ (m.content or '') }}{%- for c in m.tool_calls or [] -%}"
        """{{ '{"name": "' ~ c.function.name ~ '", "parameters": ' ~ (c.function.arguments | tojson) ~ '}' }}"""
        "{%- endfor -%}{{ '<|end|>' }}{%- endfor -%}{{ (tools | tojson) if tools }}[assistant]"
    )
    chat: Chat = chat_of(template)
    ids = chat.tokenizer.encode(text, add_special_tokens=False)
    reader = chat.reader([], TOOLS)
    assert reader and isinstance(chat.found.reader, BareCalls)
    said = "".join(piece for token in ids for _, piece in reader.read(token))
    parsed = chat.parse([*ids, chat.stop_token_ids[0]], [], TOOLS)
    assert parsed.content.startswith(said)
    assert json.dumps(parsed.tool_calls).count("ping") == text.count("ping")


def test_nothing_raises_and_nothing_takes_long() -> None:
    pieces = (
        "{",
        "[",
        '{"a":',
        "<call>\n<fn=write>\n<arg=text>\n",
        "</arg>\n</fn>\n</call>",
        "<calls>[",
        "<do>call:write{a:",
    )
    for reader in (TAGS, JSON, LIST, OBJECT, BARE):
        for piece in pieces:
            for ended in (True, False):
                reader.read(piece * 200, Tools(TOOLS), ended)


class Counted:
    """A pattern that counts the characters that it passes."""

    def __init__(self, pattern: re.Pattern[str], count: list[int]) -> None:
        self._pattern, self._count = pattern, count

    def match(self, text: str, at: int = 0) -> re.Match[str] | None:
        found = self._pattern.match(text, at)
        self._count[0] += found.end() - at if found else 1
        return found

    def search(self, text: str, at: int = 0) -> re.Match[str] | None:
        return next(self.finditer(text, at), None)

    def finditer(self, text: str, at: int = 0) -> Iterator[re.Match[str]]:
        for found in self._pattern.finditer(text, at):
            self._count[0] += found.end() - at
            at = found.end()
            yield found
        self._count[0] += len(text) - at


@pytest.mark.parametrize(
    ("reader", "piece", "end"),
    [
        (JSON, "<call>", ""),
        (JSON, "<call>", "</call>"),
        (JSON, '<call>{"name": "', ""),
        (LIST, "<calls>[{", ""),
        (TAGS, "<call>\n<fn=write>\n<arg=text>\n", ""),
        (TAGS, "<call>\n<fn=write>\n<arg=text>\n", "\n</arg>\n</fn>\n</call>"),
        (TAGS, "<call>\n<fn=write>\n<arg=text>\na\n</arg>", ""),
        (TAGS, "<call>\n<fn=write>\n<arg=text>\n<call>\n\n</arg>\n</fn>\n</call>", ""),
        (OBJECT, "<do>call:write{text", ""),
        (OBJECT, "<do>call:write{text:<~>", "<~>,"),
        (PYTHON, "<go>[write(text=", ""),
        (PYTHON, "<go>[write(text=", "))))"),
        (BARE, "[write(text=", ""),
        (BARE, '{"name": "write", "parameters": {', ""),
    ],
)
def test_the_work_of_reading_calls_without_an_end_is_linear(
    reader: Any, piece: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = [0]
    monkeypatch.setattr(bodies, "_READINGS", 4)
    monkeypatch.setattr(bodies, "_PART", 64)

    def counted(expression: str, *flags: Any) -> Any:
        return Counted(re.compile(expression, *flags), count)

    def decode(text: str) -> Any:
        count[0] += len(text)
        return json.JSONDecoder().raw_decode(text)

    patterns = {name: Counted(found, count) for name, found in reader._patterns.items()}
    monkeypatch.setitem(vars(reader), "_patterns", patterns)
    monkeypatch.setattr(bodies, "_compiled", counted)
    monkeypatch.setattr(bodies, "_PYTHON", Counted(bodies._PYTHON, count))
    monkeypatch.setattr(bodies, "_JSON", SimpleNamespace(raw_decode=decode))

    def work(number: int) -> int:
        count[0] = 0
        found = reader.read(piece * number + end, Tools(TOOLS))
        assert found.calls or found.malformed >= (number if reader is not BARE else 1)
        return count[0]

    assert work(200) < 2.5 * work(100)


@pytest.mark.parametrize(
    ("sampled", "content"),
    [
        ("Hello <|start|>assistant<|channel|>final<|message|>Two.<|return|>", "Two.Hello"),
        (
            "<|channel|>analysis<|message|>Hm.<|end|>Well, <|start|>assistant<|channel|>final<|message|>Two.<|return|>",
            "Two.Well,",
        ),
        ("<|channel|>final<|message|>Two.<|return|>", "Two."),
    ],
)
def test_words_between_the_messages_of_harmony_stay_content(sampled: str, content: str) -> None:
    chat = make_chat(FAMILIES["gpt-oss (TRL)"])
    ids = chat.tokenizer.encode(sampled, add_special_tokens=False)
    prompt = chat.render([{"role": "user", "content": "One?"}], [])[-64:]
    reader = chat.reader(prompt, [])
    assert reader and chat.parse(ids, prompt, []).content == content
    assert content.startswith(
        "".join(text for i in ids for kind, text in reader.read(i) if kind == "content")
    )


def test_space_may_stand_within_the_end_of_a_list() -> None:
    reader = from_example('Action: ```json\n[{"tool_name": "NAME", "parameters": {"KEY": "VALUE"}}]```', NONE)
    said = f"Action: ```json\n[{PLAIN.replace('name', 'tool_name')}"
    assert read(reader, said + "]```") == read(reader, said + "\n]\n```") == ([WRITE], "", 0, 0)


def with_ids(call: str, refuses: str = "") -> Chat:
    """A chat format that writes the ids of calls, and may refuse some."""
    source = (
        "{%- for m in messages -%}{{ '[' ~ m.role ~ ']' ~ (m.content or '') }}{%- for c in m.tool_calls or [] -%}"
        + (f"{{%- if {refuses} -%}}{{{{ raise_exception('bad id') }}}}{{%- endif -%}}" if refuses else "")
        + call.replace("NAME", "{{ c.function.name }}")
        .replace("ARGS", "{{ c.function.arguments | tojson }}")
        .replace("ID", "{{ c.id }}")
        + "{%- endfor -%}{{ '<|end|>' }}{%- endfor -%}{{ (tools | tojson) if tools }}[assistant]"
    )
    return chat_of(source, ("<do>", "<od>"))


@pytest.mark.parametrize(
    "form",
    [
        "<do>ID|NAME#ARGS<od>",
        "<do>NAME[ID]ARGS<od>",
        "<do>NAME#ARGS|ID<od>",
        '<do>{"name": "NAME", "arguments": ARGS, "id": "ID"}<od>',
    ],
)
@pytest.mark.parametrize("refuses", ["", "c.id | length != 9"])
def test_a_call_has_the_id_that_the_model_wrote_unless_the_template_refuses_it(
    form: str, refuses: str
) -> None:
    chat = with_ids(form, refuses)
    ids = ["abc123def", "abc123def", "x1"]
    said = "".join(form.replace("NAME", "ping").replace("ARGS", "{}").replace("ID", i) for i in ids)
    parsed = chat.parse(chat.tokenizer.encode(said, add_special_tokens=False), [], TOOLS)
    assert parsed.call_ids == ("abc123def", "", "" if refuses else "x1")


def test_however_many_messages_of_harmony_cannot_be_read_a_few_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat = make_chat(FAMILIES["gpt-oss (TRL)"])
    parsed, tried = Harmony._parsed, []

    def parse(harmony: Harmony, turn: list[int], prompt: list[int]) -> Any:
        tried.append(len(turn))
        if "deep" in harmony.decode(turn):
            raise RecursionError
        return parsed(harmony, turn, prompt)

    monkeypatch.setattr(Harmony, "_parsed", parse)
    begun = "<|channel|>analysis<|message|>Hm.<|end|>"
    text = begun + "<|start|>assistant<|channel|>final<|message|>deep<|end|>" * 100
    found = chat.parse(chat.tokenizer.encode(text, add_special_tokens=False), [], [])
    assert (found.reasoning, found.content.count("deep"), dict(found.counts)) == (
        "Hm.",
        100,
        {"malformed_tool_calls": 1},
    )
    assert len(tried) < 12


@pytest.mark.parametrize("keys", ["", ', "type": "function"'])
def test_a_name_alone_calls_a_tool_that_needs_no_arguments(keys: str) -> None:
    said = f'{{"name": "ping"{keys}}}'
    assert read(JSON, f"<call>{said}</call>")[0] == [PING]
    assert read(BARE, said)[0] == [PING]


def test_a_name_alone_calls_no_tool_that_needs_arguments_or_is_given_them_in_another_way() -> None:
    needs = {"name": "add", "parameters": {"properties": {"a": {"type": "number"}}, "required": ["a"]}}
    said = '<call>{"name": "add"}</call>'
    found = JSON.read(said, Tools([{"function": needs}]), True)
    assert (found.calls, found.text, found.malformed) == ((), said, 1)
    said = '<call>{"name": "write", "args": {"n": 2}}</call>'
    assert read(JSON, said) == ([], said, 1, 0)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "[1, 1e999]"])
def test_a_number_too_large_for_json_is_no_argument(number: str) -> None:
    for reader, said in (
        (JSON, f'<call>{{"name": "write", "arguments": {{"x": {number}}}}}</call>'),
        (PYTHON, f"<go>[write(x={number})]</go>"),
    ):
        assert read(reader, said) == ([], said, 1, 0)
    tagged = TAGGED.replace("=n>", "=x>").replace("\n2\n", f"\n{number}\n")
    assert read(TAGS, tagged)[0] == [("write", {"text": "a", "x": number})]
