"""Messages to tokens and back: rendering, continuing stored ids, parsing, families and the generic way."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ajet.chat import Chat, canonical_tool_arguments
from ajet.types import AjetError

ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    },
}
ASK: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
RESULT: Any = [{"role": "tool", "tool_call_id": "c", "content": "2"}]
OTHER_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> Chat:
    return Chat(tokenizer, "qwen3")


@pytest.fixture
def other_tokenizer(tokenizer: Any) -> Any:
    """The same tokens, another chat format."""
    other = copy.deepcopy(tokenizer)
    other.chat_template = OTHER_TEMPLATE
    return other


def sampled(chat: Chat, text: str) -> list[int]:
    """An answer as an engine gives it: with the stop token that ended it."""
    return [*chat.tokenizer.encode(text, add_special_tokens=False), chat.stop_token_ids[0]]


# ------------------------------------------------------------------ rendering


@pytest.mark.parametrize("tools", [[], [ADD]])
def test_a_prompt_is_what_the_tokenizers_own_template_gives(chat: Chat, tools: list[Any]) -> None:
    text = chat.tokenizer.apply_chat_template(
        ASK, tools=tools or None, tokenize=False, add_generation_prompt=True
    )
    assert chat.tokenizer.decode(chat.render(ASK, tools)) == text
    assert text.endswith("<|im_start|>assistant\n"), "up to where the assistant begins to write"
    assert ('"name": "add"' in text) == bool(tools)


def test_the_assistants_own_tokens_are_known_in_a_finished_chat(chat: Chat) -> None:
    whole = [
        *ASK,
        {"role": "assistant", "content": "It is 2."},
        ASK[1],
        {"role": "assistant", "content": "Yes."},
    ]
    ids, mask = chat.render_with_mask(whole, [])
    learned = chat.tokenizer.decode([i for i, on in zip(ids, mask, strict=True) if on])
    assert "It is 2.<|im_end|>" in learned and "Yes.<|im_end|>" in learned
    assert not any(words in learned for words in ("brief", "1 + 1", "user", "system", "<|im_start|>"))


# ------------------------------------------------------------------ continuing stored ids


@pytest.mark.parametrize(
    "answer",
    [
        "2",
        "",
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
        '<tool_call>\n{"name": add',
    ],
)
def test_the_next_prompt_begins_with_the_stored_ids_whatever_was_sampled(chat: Chat, answer: str) -> None:
    prompt, completion = chat.render(ASK, [ADD]), sampled(chat, answer)
    following = chat.bridge(prompt, completion, RESULT, [ADD])
    assert following is not None
    assert following[: len(prompt) + len(completion)] == prompt + completion
    rest = chat.tokenizer.decode(following[len(prompt) + len(completion) :])
    assert "<tool_response>\n2\n</tool_response>" in rest and rest.endswith("<|im_start|>assistant\n")
    assert "<|im_end|>" not in rest.split("<|im_start|>")[0], "the turn was ended already"


def test_stored_ids_are_kept_even_where_the_text_would_be_tokenized_otherwise(chat: Chat) -> None:
    letters = [chat.tokenizer.encode(c, add_special_tokens=False)[0] for c in "answer"]
    assert chat.tokenizer.encode("answer", add_special_tokens=False) != letters
    prompt, completion = chat.render(ASK, []), [*letters, chat.stop_token_ids[0]]
    following = chat.bridge(prompt, completion, RESULT, [])
    assert following is not None and following[len(prompt) :][: len(completion)] == completion


def test_an_answer_cut_at_its_length_is_ended_but_nothing_of_it_changed(chat: Chat) -> None:
    prompt = chat.render(ASK, [])
    cut = chat.tokenizer.encode("It is", add_special_tokens=False)
    following = chat.bridge(prompt, cut, RESULT, [])
    assert following is not None and following[: len(prompt) + len(cut)] == prompt + cut
    rest = chat.tokenizer.decode(following[len(prompt) + len(cut) :])
    assert rest.startswith("<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize("new", [[ASK[1]], [{"role": "assistant", "content": "not sampled"}, ASK[1]]])
def test_what_rewrites_the_history_is_not_continued(chat: Chat, new: list[Any]) -> None:
    # A new question drops the reasoning of earlier turns in this family; an answer of somebody else has
    # no sampled ids. Both are for the caller to render anew.
    assert chat.bridge(chat.render(ASK, []), sampled(chat, "<think>\nhm\n</think>\n\n2"), new, []) is None


# ------------------------------------------------------------------ parsing


def test_text_is_parsed_without_its_stop_token(chat: Chat) -> None:
    parsed = chat.parse(sampled(chat, "It is 2."), chat.render(ASK, []))
    assert (parsed.content, parsed.reasoning, parsed.tool_calls, parsed.malformed) == (
        "It is 2.",
        None,
        (),
        0,
    )


def test_a_tool_call_is_parsed_into_name_and_json_arguments(chat: Chat) -> None:
    text = 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "ü"}}\n</tool_call>'
    parsed = chat.parse(sampled(chat, text), chat.render(ASK, [ADD]))
    assert parsed.content.strip() == "Let me see."
    assert parsed.tool_calls == (("add", '{"a": 1, "b": "ü"}'),) and parsed.malformed == 0


def test_several_tool_calls_keep_their_order(chat: Chat) -> None:
    one = '<tool_call>\n{"name": "add", "arguments": {"a": %d}}\n</tool_call>'
    parsed = chat.parse(sampled(chat, f"{one % 1}\n{one % 2}"), chat.render(ASK, [ADD]))
    assert [arguments for _, arguments in parsed.tool_calls] == ['{"a": 1}', '{"a": 2}']


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "add", "arguments": {"a": }}\n</tool_call>',
        "<tool_call>\nadd(1)\n</tool_call>",
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "add"',
    ],
)
def test_a_tool_call_that_cannot_be_read_is_counted_and_its_text_kept(chat: Chat, text: str) -> None:
    parsed = chat.parse(sampled(chat, text), chat.render(ASK, [ADD]))
    assert parsed.tool_calls == () and parsed.malformed == 1
    assert text.removeprefix("<tool_call>").removesuffix("</tool_call>").strip() in parsed.content


def test_reasoning_is_kept_apart_from_the_answer(chat: Chat) -> None:
    parsed = chat.parse(sampled(chat, "<think>\none and one\n</think>\n\n2"), chat.render(ASK, []))
    assert (parsed.content, parsed.reasoning) == ("2", "one and one")


@pytest.mark.parametrize(
    ("arguments", "canonical"),
    [
        ('{"b": 1,  "a": [1, 2]}', '{"a":[1,2],"b":1}'),
        ({"b": 1, "a": [1, 2]}, '{"a":[1,2],"b":1}'),
        ('{"a": "\\u00fc"}', '{"a":"ü"}'),
        ("", ""),
        ("{not json", "{not json"),
    ],
)
def test_tool_arguments_have_one_spelling(arguments: Any, canonical: str) -> None:
    assert canonical_tool_arguments(arguments) == canonical


# ------------------------------------------------------------------ families


def test_a_tokenizer_without_a_chat_template_is_an_error_with_the_remedy(tokenizer: Any) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(AjetError, match=r"has no chat template.*Use an instruction-tuned model"):
        Chat(bare, "some_architecture")


@pytest.mark.parametrize("model_type", ["qwen3", "some_architecture"])
def test_a_template_that_is_not_the_familys_goes_the_generic_way(
    other_tokenizer: Any, model_type: str
) -> None:
    chat = Chat(other_tokenizer, model_type)
    prompt = chat.render(ASK, [])
    assert other_tokenizer.decode(prompt) == "[system]Be brief.<|im_end|>[user]1 + 1?<|im_end|>[assistant]"
    assert other_tokenizer.eos_token_id in chat.stop_token_ids
    completion = sampled(chat, "It is 2.")
    assert chat.parse(completion, prompt).content == "It is 2."
    following = chat.bridge(prompt, completion, [ASK[1]], [])
    assert following is None or following[: len(prompt) + len(completion)] == prompt + completion


def test_fine_tuning_is_refused_where_nobody_knows_which_tokens_are_the_assistants(
    other_tokenizer: Any,
) -> None:
    with pytest.raises(AjetError, match="marks the assistant's tokens"):
        Chat(other_tokenizer, "qwen3").render_with_mask([*ASK, {"role": "assistant", "content": "2"}], [])
