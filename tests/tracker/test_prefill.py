"""A chat that ends with an assistant message: the answer is a new turn, or goes on with that message where the request says so.
The prompt is as the template writes it."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from ajet.chat.renderer import Chat
from ajet.interfaces.wire import ChatRequest, Piece, Refused
from ajet.tracker.breaks import find_breaks
from tests import harmony, templates
from tests.tracker.harness import ADD, U2, S, Script, U, user

BEGUN = {"role": "assistant", "content": "The answer is"}
THOUGHT = "one and one"
FAMILIES = ["qwen3", "llama3", "plain", "thinker", "base", "harmony"]
families = pytest.mark.parametrize("family", FAMILIES)


def engine_saw(script: Script) -> str:
    """The last prompt as text."""
    return str(script.tokenizer.decode(script.engine.requests[-1].prompt_ids))


def template(script: Script, messages: list[Any], **options: Any) -> str:
    """The chat as transformers writes it where the final message is to be continued."""
    return str(
        script.tokenizer.apply_chat_template(
            list(map(harmony.for_template, messages)),
            tokenize=False,
            continue_final_message=True,
            date_string="26 Jul 2024",
            **options,
        )
    )


def opening(script: Script) -> None:
    """Let the template open the thoughts in the prompt, as DeepSeek R1's and QwQ's do."""
    script.tokenizer = copy.deepcopy(script.tokenizer)
    script.tokenizer.chat_template = script.tokenizer.chat_template.replace(
        "{{ '<|assistant|>' }}", "{{ '<|assistant|><think>\n' }}"
    )
    script.engine.tokenizer = script.tokenizer
    script.chat = Chat(script.tokenizer)
    script.session.answerer = type(script.session.answerer)(
        script.engine, script.chat, script.targets, script.session.answerer.policy
    )


def new_turn(script: Script, messages: list[Any]) -> str:
    """The chat as transformers writes it where the assistant begins another message."""
    given = list(map(harmony.for_template, messages))
    return str(
        script.tokenizer.apply_chat_template(
            given, tokenize=False, add_generation_prompt=True, date_string="26 Jul 2024"
        )
    )


@families
@pytest.mark.parametrize("named", [{}, {"name": "writer"}], ids=["", "named"])
def test_an_answer_after_an_assistant_message_is_a_new_turn(family: str, named: dict[str, str]) -> None:
    script = Script(family)
    chat = [S, U, {**BEGUN, **named}]
    x = script.call(chat, harmony.answer("two") if family == "harmony" else "two")
    assert engine_saw(script).strip() == new_turn(script, chat).strip()
    assert x["content"] == "two"
    script.call([*chat, x, U2], harmony.answer("four") if family == "harmony" else "four")
    script.lines()
    # Harmony's last token, and the empty thoughts that Qwen3's template writes into the last turn only.
    rewritten = {"harmony": "template rewrites history", "qwen3": "template drops thinking"}
    assert {b.cause for b in find_breaks(script.record)} <= {rewritten.get(family)}


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "qwen3"])  # its template rewrites such a chat
def test_an_answer_after_the_agents_own_is_a_new_turn_of_one_timeline(family: str) -> None:
    script = Script(family)
    said = [harmony.answer(t) if family == "harmony" else t for t in ("two", "surely two")]
    x = script.call([S, U], script.ids(said[0]), agent="writer")  # unended, so that nothing is rewritten
    y = script.call([S, U, x], script.ids(said[1]), agent="reviewer")
    after = new_turn(script, [S, U, x]).rpartition("two")[2]
    assert "assistant" in after.lower() and engine_saw(script).strip().endswith(after.strip())
    script.call([S, U, x, y], script.ids(said[0]), agent="editor")
    assert [c.parent for c in script.record.calls] == [None, 0, 1] and len(script.lines()) == 1
    assert not find_breaks(script.record)


def test_a_new_turn_after_a_message_and_its_continuation_are_two_answers() -> None:
    script = Script("llama3")
    x = script.call([S, U, BEGUN], " two", continues=True)
    y = script.call([S, U, BEGUN], " two")
    assert x == y and len(script.lines()) == 2
    script.call([S, U, BEGUN, y, U2], "four")
    assert script.record.calls[2].parent == 1 and not find_breaks(script.record)


def test_a_chat_that_does_not_end_with_the_assistants_message_cannot_be_continued() -> None:
    script = Script("plain")
    with pytest.raises(
        Refused, match="cannot continue the last message, because that is not the assistant's"
    ):
        script.call([S, U], "two", continues=True)


@families
def test_a_prefill_is_written_as_the_template_continues_a_final_message(family: str) -> None:
    script = Script(family)
    script.call([S, U, BEGUN], " two", continues=True)
    text = template(script, [S, U, BEGUN])
    assert engine_saw(script).strip() == text.strip()
    if family != "base":  # whose text has no special tokens, so that it is encoded in pieces
        assert script.engine.requests[-1].prompt_ids.tolist() == script.ids(text)


@families
def test_a_prefill_keeps_the_stored_ids_before_it(family: str) -> None:
    script = Script(family)
    said = harmony.answer("two") if family == "harmony" else "two"  # unended, so that nothing is rewritten
    x = script.call([S, U], script.ids(said))
    script.call([S, U, x, U2, BEGUN], " four", continues=True)
    first, second = script.record.calls
    assert second.parent == 0 and second.prompt.starts_with(first.end)
    assert engine_saw(script).endswith("The answer is")


def test_a_prefill_does_not_land_inside_thoughts_that_the_prompt_opens() -> None:
    script = Script("thinker")
    opening(script)
    script.call([S, U], f"{THOUGHT}\n</think>\n\ntwo")
    assert engine_saw(script).endswith("<|assistant|><think>\n")
    x = script.call([S, U, BEGUN], " two", continues=True)
    assert engine_saw(script) == template(script, [S, U, BEGUN])
    assert engine_saw(script).endswith("<|assistant|>The answer is")
    assert x["content"].strip() == "two" and "reasoning_content" not in x


@families
def test_a_prefill_with_tool_calls_is_refused(family: str) -> None:
    script = Script(family)
    function = {"name": "add", "arguments": '{"a": 1}'}
    calling = {**BEGUN, "tool_calls": [{"id": "call00001", "type": "function", "function": function}]}
    with pytest.raises(Refused, match=r"ends with tool calls .* Send the tools' results after them"):
        script.call([S, U, calling], " two", tools=[] if family == "base" else [ADD], continues=True)
    assert not script.engine.requests


@pytest.mark.parametrize("family", ["llama3", "plain", "base"])
def test_reasoning_that_the_template_does_not_write_is_refused(family: str) -> None:
    script = Script(family)
    with pytest.raises(Refused, match="does not write its reasoning"):
        script.call([S, U, {**BEGUN, "reasoning_content": THOUGHT}], " two", continues=True)
    assert not script.engine.requests


@pytest.mark.parametrize("family", ["qwen3", "thinker", "harmony"])
def test_reasoning_that_the_template_writes_is_in_the_prompt(family: str) -> None:
    script = Script(family)
    begun = {**BEGUN, "reasoning_content": THOUGHT}
    script.call([S, U, begun], " two", continues=True)
    assert engine_saw(script) == template(script, [S, U, begun]) and THOUGHT in engine_saw(script)


@families
def test_an_answer_cut_by_a_stop_string_goes_on_from_what_the_client_saw(family: str) -> None:
    script = Script(family)
    hidden = "is it 2; or not"
    x = script.call([S, U], hidden if family != "harmony" else harmony.answer(hidden), stop=(";",))
    assert x["content"] == "is it 2"
    script.call([S, U, x], ", of course", continues=True)
    text = template(script, [S, U, x])
    assert engine_saw(script).strip() == text.strip() and "or not" not in engine_saw(script)
    (found,) = find_breaks(script.record)
    assert (found.call, found.after, found.cause) == (1, 0, "stop string hidden")
    assert len(script.lines()) == 2


@families
def test_an_answer_cut_at_its_length_goes_on_from_its_stored_ids(family: str) -> None:
    script = Script(family)
    pieces = [i for c in "is it 2" for i in script.chat.prefill_ids(c)]
    header = script.ids("<|channel|>final<|message|>") if family == "harmony" else []
    x = script.call([S, U], [*header, *pieces])
    script.call([S, U, x], ", of course", continues=True)
    first, second = script.record.calls
    assert second.prompt.starts_with(first.end) and second.prompt.length == first.end.length
    assert not find_breaks(script.record) and len(script.lines()) == 1


def test_of_two_equal_answers_the_one_that_was_not_cut_goes_on() -> None:
    script = Script("llama3")
    x, _ = script.call([S, U], "two; or not", "two", stop=(";",))
    script.call([S, U, x], ", of course", continues=True)
    assert script.record.calls[2].parent == 1 and engine_saw(script).endswith("two")


def test_the_whole_answer_is_recognised_after_a_prefill() -> None:
    script = Script("harmony")
    x = script.call([S, U, BEGUN], script.ids(" two"), continues=True)
    assert x["content"].strip() == "two"
    script.call([S, U, {**x, "content": BEGUN["content"] + x["content"]}, U2], harmony.answer("four"))
    assert script.record.calls[1].parent == 0 and len(script.lines()) == 1


ENDS_WITH_USER = (
    "{%- if messages[-1].role == 'user' -%}{{- '<|system|>Answer the user.<|end|>\n' -}}{%- endif -%}"
)


@pytest.mark.parametrize("family", ["qwen3", "template ends_with_user"])
def test_after_a_prefill_the_next_prompt_is_what_the_template_writes_or_a_break(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These templates write the chat with a prefill at its end in another way than the longer one: Qwen3's has empty thoughts
    before the prefill."""
    monkeypatch.setitem(templates.TEMPLATES, "ends_with_user", ENDS_WITH_USER + templates.PLAIN)
    script = Script(family)
    x = script.call([U, BEGUN], " two", continues=True)
    chat = [U, {**x, "content": BEGUN["content"] + x["content"]}, U2]
    script.call(chat, "four")
    assert engine_saw(script) == new_turn(script, chat)
    (found,) = find_breaks(script.record)
    assert (found.call, found.after) == (1, 0) and found.cause.startswith("template ")
    assert found.before != found.now


@pytest.mark.parametrize("family", ["llama3", "plain", "thinker", "base"])
def test_after_a_prefill_the_stored_ids_go_on_where_the_template_writes_them(family: str) -> None:
    script = Script(family)
    x = script.call([S, U, BEGUN], " two; or not", continues=True, stop=(";",))
    chat = [S, U, {**x, "content": BEGUN["content"] + x["content"]}, U2]
    y = script.call(chat, "four")
    script.call([*chat, y, U], "two")
    assert [c.parent for c in script.record.calls] == [None, 0, 1] and not find_breaks(script.record)


@pytest.mark.parametrize("family", [*FAMILIES[:-1], "text"])
def test_what_goes_on_keeps_the_space_that_it_begins_with(family: str) -> None:
    """The decoder of `plain` strips it, as Llama 2's: at the beginning of a text it belongs to no word."""
    script = Script("plain" if family == "text" else family)
    asked = ChatRequest("m", [S, U, BEGUN], [], continues=True, logprobs=True)
    if family == "text":
        asked = ChatRequest("m", [], [], prompt="The answer is", logprobs=True)
    script.answers = [" two, or not"]
    pieces: list[Piece] = []
    ((_, answer),) = asyncio.run(script.session.choices(asked, "agent", None, False, pieces.append))
    assert answer.message["content"] == "".join(piece.text for piece in pieces) == " two, or not"
    assert len(pieces) > 3 and "".join(text for text, _ in answer.logprobs or ()) == " two, or not"


def test_an_answer_that_is_continued_twice_is_one_turn_of_its_stored_ids() -> None:
    script = Script("thinker")
    pieces = [script.ids(text) for text in (f"<think>\n{THOUGHT}\n</think>\n\nIt", " is", " two.")]
    chat = [S, U]
    whole = {**script.call(chat, pieces[0])}
    for piece in pieces[1:]:
        y = script.call([*chat, whole], piece, continues=True)
        whole = {**whole, "content": whole["content"] + y["content"]}
    assert whole["content"] == "It is two."
    script.call([*chat, whole, U2], "four")
    calls = script.record.calls
    assert [c.parent for c in calls[:3]] == [None, 0, 1] and len(script.lines()) <= 2
    assert {b.cause for b in find_breaks(script.record)} <= {"template drops thinking"}
    assert calls[2].prompt.ids()[-3:].tolist() == [*pieces[0], *pieces[1]][-3:]


def test_a_prefill_before_which_the_template_drops_a_message_is_a_break() -> None:
    script = Script("template trimmed")  # writes the last eight messages
    shots = [m for n in range(2) for m in (user(f"no. {n}?"), {"role": "assistant", "content": f"it is {n}"})]
    x = script.call([S, *shots, U], "two")
    chat = [S, *shots, U, x, U2, BEGUN]
    script.call(chat, " four", continues=True)
    assert engine_saw(script) == template(script, chat) and "Be brief" not in engine_saw(script)
    (found,) = find_breaks(script.record)
    assert (found.call, found.cause) == (1, "template rewrites history")
    assert script.record.calls[1].parent is None


LONG = " ".join(["one and one"] * 40)


@pytest.mark.parametrize("family", ["qwen3", "thinker", "harmony"])
def test_a_long_thought_that_was_cut_goes_on_as_a_thought(family: str) -> None:
    script = Script(family)
    begin, end = "<think>\n", "</think>\n\n"
    if family == "harmony":
        begin, end = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
    x = script.call([S, U], script.ids(f"{begin}{LONG}"))
    assert (x["content"], x["reasoning_content"]) == ("", LONG)
    y = script.call([S, U, x], script.ids(f" is two.{end}It is two."), continues=True)
    assert (y["content"], y.get("reasoning_content")) == ("It is two.", "is two.")


@pytest.mark.parametrize("family", ["qwen3", "thinker"])
def test_a_long_thought_that_a_prefill_begins_goes_on_as_a_thought(family: str) -> None:
    script = Script(family)
    begun = {**BEGUN, "content": f"<think>\n{LONG}"}
    x = script.call([S, U, begun], " is two.\n</think>\n\nIt is two.", continues=True)
    assert (x["content"], x.get("reasoning_content")) == ("It is two.", "is two.")
