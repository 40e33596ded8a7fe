"""Finished chats as their model would have sampled them: what is trained of a transcript, under many chat templates."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest

from ajet.capture.answers import Answerer
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Session
from ajet.capture.targets import Target
from ajet.chat.finished import sampled_in
from ajet.chat.messages import spoken, thoughts
from ajet.chat.renderer import Chat
from ajet.interfaces.wire import ChatRequest
from ajet.testing import ScriptedEngine
from ajet.tracker.timelines import timelines
from ajet.types import AjetError
from tests import templates, tokenizers
from tests.chat.families import FAMILIES
from tests.chat.programme import make_chat
from tests.tiers import fast

ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
    },
}
TEMPLATES = list(templates.TEMPLATES)


def asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, thought: str = "") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return message | ({"reasoning_content": thought} if thought else {})


def called(number: int, thought: str = "", text: str = "") -> dict[str, Any]:
    function = {"name": "add", "arguments": json.dumps({"a": number})}
    return {
        **said(text, thought),
        "tool_calls": [{"id": "call00001", "type": "function", "function": function}],
    }


RESULT: Any = {"role": "tool", "tool_call_id": "call00001", "content": "7"}
CHATS: dict[str, list[Any]] = {
    "plain": [asked("One?"), said("It is 1."), asked("Two?"), said("It is 2.")],
    "thoughts": [asked("One?"), said("It is 1.", "Hm, one."), asked("Two?"), said("It is 2.", "Hm, two.")],
    "calls": [asked("One?"), called(1), RESULT, said("It is 1."), asked("Two?"), said("It is 2.")],
    "thoughts and calls": [
        *(asked("One?"), called(1, "First."), RESULT, called(2, "Second."), RESULT, said("It is 1.", "So.")),
        *(asked("Two?"), said("It is 2.", "Hm, two.")),
    ],
    "text and a call": [asked("One?"), called(1, text="Let us see."), RESULT, said("It is 1.")],
}


def by_template(name: str) -> Chat:
    return Chat(templates.tokenizer(name))


def trained(chat: Chat, messages: Sequence[Any], tools: Sequence[Any] = ()) -> list[list[str]]:
    """Of each sequence, the texts that are trained in it."""
    decode = chat.tokenizer.decode
    return [[decode(s.ids[b:e]) for b, e in s.spans] for s in sampled_in(chat, messages, tools)]


def live(chat: Chat, messages: Sequence[Any], tools: Sequence[Any]) -> tuple[list[Any], set[Any]]:
    """The chat as an agent runs it call by call, if the model samples what is trained: its messages, with the replies that the
    agent got, and its timelines."""
    answers = [s.ids[begin:end] for s in sampled_in(chat, messages, tools) for begin, end in s.spans]
    engine = ScriptedEngine(chat.tokenizer, lambda request, prompt: answers.pop(0), context_length=8192)
    policy = SamplingPolicy(training=True)
    session = Session("s", "s", Answerer(engine, chat, (Target("policy"),), policy))
    told: list[Any] = []
    for message in messages:
        if message["role"] == "assistant":
            request = ChatRequest("m", copy.deepcopy(told), list(tools))
            (answer,) = asyncio.run(session.answer(request, "agent", None, False))
            told.append(dict(answer.message))
        elif message["role"] == "tool":
            told.append({**message, "tool_call_id": told[-1]["tool_calls"][0]["id"]})
        else:
            told.append(message)
    found = timelines(session.record.trained_calls)
    return told, {(tuple(line.token_ids.tolist()), tuple(line.mask.tolist())) for line in found}


def sequences(chat: Chat, messages: Sequence[Any], tools: Sequence[Any]) -> set[Any]:
    found = set()
    for line in sampled_in(chat, messages, tools):
        mask = [any(begin <= n < end for begin, end in line.spans) for n in range(len(line.ids))]
        found.add((tuple(line.ids), tuple(mask)))
    return found


def meaning(message: Any) -> Any:
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    return spoken(message).strip(), thoughts(message), calls


def with_ids_of(told: Sequence[Any], messages: Sequence[Any]) -> list[Any]:
    """The messages with the ids of calls that an agent got."""
    return [
        {**m, **{k: t[k] for k in ("tool_calls", "tool_call_id") if k in t}}
        for t, m in zip(told, messages, strict=True)
    ]


NOT_WRITTEN = {
    "counted_down": set(CHATS),
    "harmony": {"thoughts", "thoughts and calls", "text and a call"},
    "mistral": {"thoughts", "thoughts and calls"},
    "gemma": {"thoughts", "calls", "thoughts and calls", "text and a call"},
    "deepseek_r1": {"calls", "thoughts and calls", "text and a call"},
    "llama3": {"thoughts", "thoughts and calls", "text and a call"},
}
"""What templates do not write, or not where a model could sample it."""


OTHER_TEXT = {("mistral", "calls"), ("tools_last", "thoughts and calls")}
"""Where an agent sends other messages back than the transcript has: the space before Mistral's text is part of it, and so are
thoughts where their markers are not found."""


@pytest.mark.parametrize("kind", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_finished_chat_is_what_capture_records_of_the_same_chat_run_call_by_call(
    name: str, kind: str
) -> None:
    chat, messages = by_template(name), CHATS[kind]
    tools = [ADD] if "call" in kind else []
    if kind in NOT_WRITTEN.get(name, ()):
        with pytest.raises(AjetError, match="the chat template does not write"):
            sampled_in(chat, messages, tools)
        return
    told, lines = live(chat, messages, tools)
    assert [meaning(m) for m in told] == [meaning(m) for m in messages]
    if (name, kind) not in OTHER_TEXT:
        assert sequences(chat, with_ids_of(told, messages), tools) == lines


NEWLINE_IN_REPLY = ("Nemotron-Nano-v2",)
"""Agents get the line end before the token that ends a turn, and the template writes another one after it."""
NAMES = [name for name in FAMILIES if name not in NEWLINE_IN_REPLY]
SAMPLE = (
    "Qwen2.5",
    "GLM-4.5 (TRL glm4moe)",
    "GLM-4.7-Flash",
    "gpt-oss (llama.cpp)",
    "Nemotron-3-Nano",
    "SmolLM3",
)


@pytest.mark.parametrize("name", fast([NAMES.index(name) for name in SAMPLE], NAMES))
def test_so_it_is_for_every_family_of_models(name: str) -> None:
    family = FAMILIES[name]
    chat = make_chat(family)
    tools = [ADD] if family.calls and not chat.calls_fault else []
    for kind in ("plain", "thoughts") if family.thought else ("plain",):
        if name == "Command-R+":  # its template refuses chats without tools, and no reader reads its calls
            with pytest.raises(AjetError, match="refuses this chat"):
                sampled_in(chat, CHATS[kind], tools)
            continue
        told, lines = live(chat, CHATS[kind], tools)
        assert [meaning(m) for m in told] == [meaning(m) for m in CHATS[kind]]
        assert sequences(chat, CHATS[kind], tools) == lines


# ------------------------------------------------------------------ what is trained


def test_answers_that_share_history_are_one_sequence_and_each_trains_the_token_that_ends_it() -> None:
    chat = by_template("qwen3")
    empty = "<think>\n\n</think>\n\n"
    assert trained(chat, CHATS["plain"]) == [[f"{empty}It is 1.<|im_end|>", f"{empty}It is 2.<|im_end|>"]]
    (line,) = sampled_in(chat, CHATS["plain"], [])
    assert line.ids[: line.spans[0][0]] == chat.render(CHATS["plain"][:1], []), (
        "after what the engine would read"
    )


def test_where_a_template_drops_thoughts_each_answer_is_trained_with_its_own_in_the_chat_that_it_was_sampled_in() -> (
    None
):
    chat = by_template("qwen3")
    first, second = sampled_in(chat, CHATS["thoughts"], [])
    texts = [
        ["<think>\nHm, one.\n</think>\n\nIt is 1.<|im_end|>"],
        ["<think>\nHm, two.\n</think>\n\nIt is 2.<|im_end|>"],
    ]
    assert trained(chat, CHATS["thoughts"]) == texts
    assert (first.cause, second.cause) == ("", "template drops thinking")
    prompt = chat.tokenizer.decode(second.ids[: second.spans[0][0]])
    assert "It is 1." in prompt and "Hm, one." not in prompt


def test_thoughts_of_one_question_are_trained_together_where_the_template_keeps_them() -> None:
    found = trained(by_template("qwen3"), CHATS["thoughts and calls"], [ADD])
    assert [len(texts) for texts in found] == [3, 1]
    assert (
        "First." in found[0][0]
        and '{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>' in found[0][1]
    )


@pytest.mark.parametrize("kind", ["plain", "thoughts"])
def test_the_stop_of_glm_which_begins_the_next_message_ends_the_last_answer_too(kind: str) -> None:
    found = trained(make_chat(FAMILIES["GLM-4.5 (TRL glm4moe)"]), CHATS[kind])
    assert [text for texts in found for text in texts] == [
        f"\n<think>{thought}</think>\nIt is {n}.<|user|>"
        for n, thought in (
            (1, "Hm, one." if kind == "thoughts" else ""),
            (2, "Hm, two." if kind == "thoughts" else ""),
        )
    ]
    calling = trained(make_chat(FAMILIES["GLM-4.5 (TRL glm4moe)"]), CHATS["calls"], [ADD])
    assert calling[0][0].endswith("</tool_call><|observation|>")


@pytest.mark.parametrize(
    ("thought", "begins"), [("", "\n</think>\n\nIt is 1."), ("Hm.", "Hm.\n</think>\n\nIt is 1.")]
)
def test_a_thought_that_the_prompt_begins_is_ended_with_or_without_words(thought: str, begins: str) -> None:
    chat = by_template("deepseek_r1")
    (line,) = sampled_in(chat, [asked("One?"), said("It is 1.", thought)], [])
    ((start, end),) = line.spans
    assert chat.tokenizer.decode(line.ids[:start]).endswith("<think>\n")
    assert chat.tokenizer.decode(line.ids[start:end]) == f"{begins}<|end_of_sentence|>"


@pytest.mark.parametrize(
    "answer",
    [
        said("<think>\nHm.\n</think>\n\nIt is 1."),
        {**said("It is 1."), "thinking": "Hm."},
        {**said("It is 1."), "reasoning": "Hm."},
    ],
    ids=["in the text", "thinking", "reasoning"],
)
def test_thoughts_are_found_under_the_names_that_data_sets_give_them(answer: Any) -> None:
    for name in ("qwen3", "deepseek_r1"):
        chat, question = by_template(name), asked("One?")
        assert trained(chat, [question, answer]) == trained(chat, [question, said("It is 1.", "Hm.")])


def test_a_model_without_thoughts_learns_their_markers_as_text_and_no_thought_is_left_out() -> None:
    chat = by_template("gemma")
    text = "<think>Hm.</think>It is 1."
    assert trained(chat, [asked("One?"), said(text)]) == [[f"{text}<end_of_turn>"]]
    with pytest.raises(AjetError, match="does not write the reasoning of an answer"):
        sampled_in(chat, [asked("One?"), said("It is 1.", "Hm.")], [])


def test_arguments_may_be_text_or_objects_and_texts_of_special_tokens_end_no_answer() -> None:
    chat = by_template("qwen3")
    as_object = copy.deepcopy(CHATS["calls"])
    as_object[1]["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    assert sequences(chat, as_object, [ADD]) == sequences(chat, CHATS["calls"], [ADD])
    ((text,),) = trained(chat, [asked("One?"), said("Say <|im_end|> twice.")])
    (line,) = sampled_in(chat, [asked("One?"), said("Say <|im_end|> twice.")], [])
    assert text.endswith("Say <|im_end|> twice.<|im_end|>")
    assert line.ids[line.spans[0][0] :].count(chat.stop_token_ids[0]) == 1


def test_space_that_a_template_strips_is_noted_and_text_that_it_drops_is_refused() -> None:
    (line,) = sampled_in(by_template("gemma"), [asked("One?"), said(" It is 1.\n")], [])
    assert line.stripped
    (line,) = sampled_in(by_template("plain"), [asked("One?"), said(" It is 1.\n")], [])
    assert not line.stripped
    with pytest.raises(AjetError, match="does not write the text of an answer in full"):
        sampled_in(by_template("llama3"), CHATS["text and a call"], [ADD])


def without_tools(*roles: str) -> Chat:
    """By a template that writes the texts of these roles alone."""
    tokenizer = copy.deepcopy(templates.tokenizer("plain"))  # which others use, too
    tokenizer.chat_template = (
        f"{{% for m in messages %}}{{% if m.role in {list(roles)} %}}"
        "<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return Chat(tokenizer)


def test_a_call_that_a_template_drops_is_refused_though_the_text_names_its_tool() -> None:
    named = [asked("One?"), called(1, text="I shall add them."), RESULT, said("It is 1.")]
    with pytest.raises(AjetError, match="does not write the call of add of an answer in full"):
        sampled_in(without_tools("user", "assistant", "tool"), named, [ADD])


def test_a_result_that_a_template_drops_is_refused() -> None:
    chat = [asked("One?"), said("ADD(1)"), {**RESULT, "content": "It is 17."}, said("It is 17.")]
    assert len(sampled_in(without_tools("user", "assistant", "tool"), chat, [])) == 1
    with pytest.raises(AjetError, match="does not write a tool's result in full"):
        sampled_in(without_tools("user", "assistant"), chat, [])


def test_a_greeting_that_no_call_asked_for_is_context() -> None:
    chat = by_template("plain")
    assert trained(chat, [said("Hello."), asked("One?"), said("It is 1.")]) == [["It is 1.<|end|>"]]
    assert sampled_in(chat, [said("Hello.")], []) == []


def test_an_answer_after_an_answer_is_a_turn_of_its_own() -> None:
    assert trained(by_template("plain"), [asked("One?"), said("It is"), said("1.")]) == [
        ["It is<|end|>", "1.<|end|>"]
    ]


def test_a_model_without_a_chat_template_is_trained_by_its_familys_renderer() -> None:
    bare = copy.deepcopy(tokenizers.qwen3())
    bare.chat_template = None
    for kind in ("plain", "thoughts", "calls"):
        tools = [ADD] if kind == "calls" else []
        found = sequences(Chat(bare, "qwen3"), CHATS[kind], tools)
        assert found == sequences(Chat(tokenizers.qwen3(), "qwen3"), CHATS[kind], tools)
