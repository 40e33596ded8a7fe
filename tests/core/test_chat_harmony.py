"""Harmony, the chat format of gpt-oss: where turns end, what stays in the history, which channel is what."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ajet.chat.continuing import REWRITTEN
from ajet.chat.continuing import THINKING as STRIPPED
from ajet.chat.renderer import REFUSED, Chat, Increment, Turn
from tests import harmony
from tests.tokenizers import PreTrainedTokenizerFast

ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number", "description": "One."}, "b": {"type": "array"}},
            "required": ["a"],
        },
    },
}
SYSTEM: Any = {"role": "system", "content": "Be brief."}
QUESTION: Any = {"role": "user", "content": "1 + 1?"}
ASK: Any = [SYSTEM, QUESTION]
ANSWER: Any = {"role": "assistant", "content": "It is 2."}
CALLING: Any = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ],
}
RESULT: Any = {"role": "tool", "tool_call_id": "call_1", "content": "2"}
THOUGHT = "one and one"
HUGE = "9" * 5000  # digits that Python's JSON refuses


@functools.cache
def chat() -> Chat:
    return Chat(harmony.harmony(), "gpt_oss")


def ids(text: str) -> list[int]:
    found: list[int] = chat().tokenizer.encode(text, add_special_tokens=False)
    return found


def shown(tokens: list[int]) -> str:
    return str(chat().tokenizer.decode(tokens))


def template(messages: list[Any], tools: list[Any], **options: Any) -> str:
    """What the model's template writes for a chat."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            call = call["function"]
            assert call["arguments"] == '{"a": 1}'
    given = [
        {**m, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
        if "tool_calls" in m
        else m
        for m in map(harmony.for_template, messages)
    ]
    return str(chat().tokenizer.apply_chat_template(given, tools=tools or None, tokenize=False, **options))


def continued(
    sampled: str, answer: Any, new: list[Any], tools: list[Any], *, by_text: bool = False
) -> tuple[str, Increment]:
    """The next prompt, if the turn can be continued, and what follows the stored ids."""
    prompt, completion, whole = chat().render(ASK, tools), ids(sampled), [*ASK, answer, *new]
    turn = Turn(prompt[-64:], completion, answer, new, len(whole), lambda: whole)
    increment = chat().next_turn(turn, tools, keep_thinking=by_text)
    return shown(prompt + completion + (increment.ids or [])), increment


# ------------------------------------------------------------------ where a turn ends


def test_a_turn_ends_with_return_or_call_and_end_is_no_stop_token() -> None:
    tokens = chat().tokenizer.convert_ids_to_tokens(list(chat().stop_token_ids))
    assert tokens == ["<|return|>", "<|call|>"]


def test_turn_ends_are_found_without_knowing_the_format() -> None:
    """With other names, so that nothing but the template tells: the token after the last answer stops."""
    names = {"<|return|>": "<|over|>", "<|end|>": "<|done|>", "<|call|>": "<|ask|>", "<|start|>": "<|begin|>"}
    text, special = harmony.TEMPLATE, list(harmony.SPECIAL)
    for name, other in names.items():
        text, special = text.replace(name, other), [other if t == name else t for t in special]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=harmony.byte_level(tuple(special)), eos_token="<|over|>", chat_template=text
    )
    other = Chat(tokenizer)
    assert tokenizer.convert_ids_to_tokens(list(other.stop_token_ids)) == ["<|over|>", "<|ask|>"]
    prompt = other.render(ASK, [])
    completion = tokenizer.encode("<|channel|>final<|message|>It is 2.", add_special_tokens=False)
    turn = Turn(prompt[-64:], completion, ANSWER, [QUESTION], 4, lambda: [*ASK, ANSWER, QUESTION])
    increment = other.next_turn(turn, [])
    assert increment.ids
    assert prompt + completion + increment.ids == other.render([*ASK, ANSWER, QUESTION], [])
    ended = Turn(prompt[-64:], [*completion, other.stop_token_ids[0]], ANSWER, [QUESTION], 4, turn.whole)
    rewritten = other.next_turn(ended, [])
    assert (rewritten.ids, rewritten.cause) == (None, REWRITTEN), "the prompt would hold <|over|>"


def test_a_prompt_is_what_the_template_writes() -> None:
    thinking = {**CALLING, "reasoning_content": THOUGHT}
    told = [*ASK, thinking, RESULT]
    for messages in (ASK, [QUESTION], told, [*told, ANSWER, QUESTION], [*told, thinking, RESULT]):
        text = template(messages, [ADD], add_generation_prompt=True)
        assert chat().render(messages, [ADD]) == ids(text)
        assert text.count(THOUGHT) == (0 if ANSWER in messages else messages.count(thinking))
    assert "type add = (_: {\n// One.\na: number,\nb?: any[],\n}) => any;" in text


# ------------------------------------------------------------------ the next prompt


def test_after_a_tool_call_the_stored_ids_go_on_with_the_call_that_ended_them() -> None:
    sampled = harmony.call("add", '{"a":1}', thought=THOUGHT)
    answer = {**CALLING, "reasoning_content": THOUGHT}
    prompt, increment = continued(sampled, answer, [RESULT], [ADD])
    anew = template([*ASK, answer, RESULT], [ADD], add_generation_prompt=True)
    before, _, after = anew.partition("<|call|>")
    assert increment.cause == "" and prompt.endswith(f"{sampled}{after}")
    assert after.startswith('<|start|>functions.add to=assistant<|channel|>commentary<|message|>"2"<|end|>')
    assert prompt.startswith(before.partition("<|channel|>analysis")[0]), "the thoughts stay in the loop"


def test_the_thoughts_of_an_earlier_turn_are_taken_away_and_that_is_the_cause() -> None:
    answer = {**ANSWER, "reasoning_content": THOUGHT}
    _, increment = continued(harmony.answer("It is 2.", THOUGHT) + "<|return|>", answer, [QUESTION], [])
    assert (increment.ids, increment.cause) == (None, STRIPPED)


@pytest.mark.parametrize("sampled", [harmony.answer("It is 2."), harmony.call("add", '{"a": 1}')[:-8]])
def test_a_token_that_only_ends_the_last_turn_is_in_no_prompt(sampled: str) -> None:
    answer, new = (CALLING, RESULT) if "functions" in sampled else (ANSWER, QUESTION)
    _, increment = continued(f"{sampled}<|return|>", answer, [new], [ADD])
    assert (increment.ids, increment.cause) == (None, REWRITTEN)
    prompt, increment = continued(f"{sampled}<|return|>", answer, [new], [ADD], by_text=True)
    assert increment.ids and increment.cause == REWRITTEN, "merge: text allows it, and it is counted"
    assert "<|return|><|start|>" in prompt


def test_an_answer_cut_at_its_length_is_ended_as_the_template_ends_it() -> None:
    prompt, increment = continued(harmony.answer("It is 2."), ANSWER, [QUESTION], [])
    assert increment.cause == ""
    assert prompt == template([*ASK, ANSWER, QUESTION], [], add_generation_prompt=True)


def test_text_and_thoughts_before_a_call_are_joined_where_the_template_refuses_both() -> None:
    both = {**CALLING, "content": "I add.", "reasoning_content": THOUGHT}
    assert f"analysis<|message|>{THOUGHT}\n\nI add.<|end|>" in shown(
        chat().render([*ASK, both, RESULT], [ADD])
    )
    sampled = harmony.call("add", '{"a": 1}', THOUGHT, preamble="I add.")
    _, increment = continued(sampled, both, [RESULT], [ADD])
    assert increment.cause != REFUSED


# ------------------------------------------------------------------ reading answers


@pytest.mark.parametrize(
    ("sampled", "content", "reasoning", "calls", "malformed"),
    [
        (harmony.answer("It is 2.", THOUGHT) + "<|return|>", "It is 2.", THOUGHT, (), 0),
        (harmony.answer("It is 2.") + "<|return|>", "It is 2.", None, (), 0),
        (harmony.answer("It is 2.", THOUGHT), "It is 2.", THOUGHT, (), 0),
        (harmony.answer("2") + "<|end|><|start|>user<|message|>more<|return|>", "2", None, (), 0),
        (harmony.call("add", '{"a":1}', THOUGHT), "", THOUGHT, (("add", '{"a": 1}'),), 0),
        (harmony.call("add", '{"a": 1}', THOUGHT, "I add."), "I add.", THOUGHT, (("add", '{"a": 1}'),), 0),
        (" to=functions.add<|channel|>commentary json<|message|>{}<|call|>", "", None, (("add", "{}"),), 0),
        (harmony.call("add", '{"a": ', THOUGHT), '{"a": ', THOUGHT, (), 1),
        (
            harmony.call("add", HUGE, THOUGHT),
            f"<|start|>assistant{harmony.call('add', HUGE)}",
            THOUGHT,
            (),
            1,
        ),
        (harmony.call("add", '{"a": 1}')[:-8], '{"a": 1}', None, (), 1),
        ("<|channel|>analysis<|message|>one and", "", "one and", (), 0),
        ("It is 2.<|return|>", "It is 2.", None, (), 0),
        ("<|message|>It is 2.<|return|>", "<|message|>It is 2.", None, (), 0),
        ("<|return|>", "", None, (), 0),
        ("<|channel|>final", "<|channel|>final", None, (), 0),
    ],
)
def test_each_channel_is_read_as_what_it_is(
    sampled: str, content: str, reasoning: str | None, calls: Any, malformed: int
) -> None:
    parsed = chat().parse(ids(sampled), chat().render(ASK, [ADD])[-64:], [ADD])
    assert (parsed.content, parsed.reasoning) == (content, reasoning)
    assert (parsed.tool_calls, parsed.malformed) == (calls, malformed)
    thoughts = sampled.partition("<|end|>")[0] + "<|end|>" if "<|end|>" in sampled else sampled
    assert parsed.reasoning_tokens == (len(ids(thoughts)) if reasoning else 0)


def test_faults_of_an_answer_are_counted_as_in_other_formats() -> None:
    prompt = chat().render(ASK, [ADD])[-64:]
    for sampled, tools, counts in (
        ("<|channel|>analysis<|message|>one and", [ADD], {"cut_thoughts": 1}),
        (harmony.call("add", '{"a": 1}', THOUGHT), [], {"unoffered_tool_calls": 1}),
        (harmony.call("add", '{"a": ', THOUGHT), [ADD], {"malformed_tool_calls": 1}),
        (harmony.answer("It is 2.", THOUGHT) + "<|return|>", [ADD], {}),
    ):
        assert dict(chat().parse(ids(sampled), prompt, tools).counts) == counts, sampled


def test_what_is_written_is_what_is_read() -> None:
    for answer in (
        ANSWER,
        CALLING,
        {**ANSWER, "reasoning_content": THOUGHT},
        {**CALLING, "reasoning_content": THOUGHT},
    ):
        written = chat().written(answer)
        parsed = chat().parse(ids(written), chat().render(ASK, [ADD]), [ADD])
        assert (parsed.content, parsed.reasoning) == (answer["content"], answer.get("reasoning_content"))
        assert parsed.tool_calls == ((("add", '{"a": 1}'),) if "tool_calls" in answer else ())


# ------------------------------------------------------------------ reading them while they are sampled


def streamed(sampled: str) -> list[tuple[str, str]]:
    """What a reader gives, the pieces of one kind joined."""
    reader = chat().reader(chat().render(ASK, [ADD])[-64:], [ADD])
    assert reader
    given: list[tuple[str, str]] = []
    for token in ids(sampled):
        for kind, text in reader.read(token):
            if given and given[-1][0] == kind:
                given[-1] = (kind, given[-1][1] + text)
            else:
                given.append((kind, text))
    return given


def test_thoughts_and_the_answer_are_given_as_they_come() -> None:
    sampled = harmony.answer("It is 2, as 1 + 1 = 2.", THOUGHT)
    assert streamed(sampled) == [("reasoning", THOUGHT), ("content", "It is 2, as 1 + 1 = 2.")]
    half = sampled[: sampled.index(", as")]
    assert streamed(half) == [("reasoning", THOUGHT), ("content", "It is 2")]
    assert streamed(sampled[: sampled.index(" one")]) == [("reasoning", "one and")]


def test_no_token_of_a_call_is_given_as_text() -> None:
    assert streamed(harmony.call("add", '{"a": 1}', THOUGHT, "I add.")) == [("reasoning", THOUGHT)]
    two = f"<|channel|>commentary<|message|>So.<|end|><|start|>assistant{harmony.answer('It is 2.')}"
    assert streamed(two) == [("content", "So.It is 2.")], "beside a call or before an answer"
