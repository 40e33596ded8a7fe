"""What a reader gives of an answer while it is sampled is how the whole answer begins, whatever is sampled."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ajet.chat.answers import Parsed
from ajet.chat.renderer import Chat
from ajet.chat.streaming import Decoder, stop_at, stop_of
from ajet.chat.texts import partial
from tests import tokenizers
from tests.properties import examples
from tests.tiers import thinned

FAMILIES = ["qwen3", "llama3", "plain", "thinker", "base", "harmony"]
ASK: list[Any] = [{"role": "user", "content": "One and one?"}]
ADD: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}},
}
CALL = '{"name": "add", "arguments": {"a": 1}}'
WORDS = (
    *("a", " ", "\n", "\n\n", " the answer", "ü", "日本", "🙂", "\ufffd", "ﬁ", "<", "{", "}", "</", "think>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", f"<tool_call>\n{CALL}\n</tool_call>", CALL),
    *('{"name": "add", "parameters": {"a": 1}}', "<|im_start|>assistant\n", "<|im_end|>", "<|stop|>"),
    *("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", "<|end|>", "</s>", "9" * 5000),
)
CHANNELS = (
    *("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
    *("<|end|>", "<|start|>assistant", "<|return|>", "<|call|>", "<|message|>", "<|channel|>", "<|start|>"),
    *(" to=functions.add", "<|channel|>commentary to=functions.add <|constrain|>json<|message|>", '{"a": 1}'),
)


@functools.cache
def chat(family: str) -> Chat:
    return Chat(getattr(tokenizers, family)(), tokenizers.MODEL_TYPES[family])


def read(chat: Chat, ids: list[int], prompt: list[int]) -> tuple[dict[str, str], int]:
    """What a reader has given in the end, by kind, and after how many tokens it gave something first."""
    reader, given, first = chat.reader(prompt, [ADD]), {"content": "", "reasoning": ""}, len(ids) + 1
    assert reader
    for n, token in enumerate(ids, 1):
        for kind, text in reader.read(token):
            given[kind] += text
            first = min(first, n)
    return given, first


def check(chat: Chat, ids: list[int], prompt: list[int]) -> Parsed:
    parsed = chat.parse(ids, prompt, [ADD])
    given, _ = read(chat, ids, prompt)
    assert parsed.content.startswith(given["content"])
    assert (parsed.reasoning or "").startswith(given["reasoning"])
    after_answer = chat.tokenizer.decode(ids).partition("final<|message|>")[2]
    if given["content"] and "analysis" not in after_answer:
        assert (parsed.reasoning or "") == given["reasoning"], "thoughts come before the content"
    return parsed


@pytest.mark.whole
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("opened", [False, True])
@thinned
@examples(80)
@given(data=st.data())
def test_what_is_given_early_is_how_the_whole_begins(family: str, opened: bool, data: Any) -> None:
    it = chat(family)
    words = st.sampled_from(CHANNELS if family == "harmony" else WORDS) | st.sampled_from(WORDS)
    ids = it.tokenizer.encode(
        "".join(data.draw(st.lists(words | st.text(max_size=4), max_size=12))),
        add_special_tokens=False,
    )
    size = len(it.tokenizer)
    for _ in range(data.draw(st.integers(0, 3))):  # what no text is: single bytes, tokens of half a word
        ids.insert(data.draw(st.integers(0, len(ids))), data.draw(st.integers(0, size - 1)))
    prompt = it.render(ASK, [])
    check(it, ids, [*prompt, *it.prefill_ids("<think>\n")] if opened else prompt)


@pytest.mark.parametrize("family", FAMILIES)
@examples(60)
@given(ids=st.lists(st.integers(0, 10_000), max_size=40))
def test_of_random_tokens_too(family: str, ids: list[int]) -> None:
    it = chat(family)
    check(it, [i % len(it.tokenizer) for i in ids], it.render(ASK, []))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "harmony"])
def test_plain_text_is_given_word_by_word_and_whole(family: str) -> None:
    it = chat(family)
    said = "Let me see: it is 2, of course. The answer is 日本."
    ids = it.tokenizer.encode(said, add_special_tokens=False)
    given, first = read(it, ids, it.render(ASK, []))
    assert given["content"] == it.parse(ids, it.render(ASK, []), [ADD]).content and first <= 3


def test_thoughts_are_given_as_they_come() -> None:
    for family in ("qwen3", "thinker"):
        it = chat(family)
        ids = it.tokenizer.encode("<think>\none and one\n</think>\n\ntwo", add_special_tokens=False)
        given, first = read(it, ids, it.render(ASK, []))
        assert given == {"reasoning": "one and one", "content": "two"} and first < 8
        cut, _ = read(it, ids[:5], it.render(ASK, []))
        assert "one and one".startswith(cut["reasoning"]) and cut["reasoning"]


@pytest.mark.parametrize("family", ["qwen3", "plain", "thinker"])
def test_a_tool_call_is_held_back_and_the_text_before_it_is_not(family: str) -> None:
    it = chat(family)
    ids = it.tokenizer.encode(f"I add. <tool_call>{CALL}</tool_call>", add_special_tokens=False)
    given, _ = read(it, ids, it.render(ASK, []))
    parsed = it.parse(ids, it.render(ASK, []), [ADD])
    assert given["content"].strip() == parsed.content.strip() == "I add." and parsed.tool_calls


def test_a_tool_call_that_cannot_be_parsed_at_all_is_text_and_what_was_before_it_stays() -> None:
    it = chat("qwen3")
    bad = "<tool_call>" + "9" * 5000 + "</tool_call>"
    text = f"<think>\nhm\n</think>\n\nI add.<tool_call>{CALL}</tool_call>{bad}"
    parsed = check(it, it.tokenizer.encode(text, add_special_tokens=False), it.render(ASK, []))
    assert (parsed.reasoning, parsed.content, parsed.malformed) == ("hm", "I add." + bad, 1)
    assert parsed.tool_calls == (("add", '{"a": 1}'),)


@examples(80)
@example(["日", "本"], [])
@given(st.lists(st.text(max_size=6), max_size=6), st.lists(st.integers(0, 399), max_size=6))
def test_a_decoder_gives_a_prefix_of_the_text_and_all_of_it_in_the_end(
    words: list[str], more: list[int]
) -> None:
    for family in ("qwen3", "plain"):
        tokenizer = chat(family).tokenizer
        ids = [*tokenizer.encode("".join(words), add_special_tokens=False), *more]
        decoder, text = Decoder(tokenizer), ""
        for token in ids:
            text += decoder.add(token)
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        assert whole.startswith(text) and text + decoder.rest() == whole == decoder.all()


def test_the_stop_string_that_is_complete_first_counts() -> None:
    assert stop_at("one two", ("two", "one")) == 0
    assert stop_at("abcd", ("abcd", "c")) == 2
    assert stop_at("abcd", ("bc", "c")) == 1, "of two that end together the longer"
    assert stop_at("abcd", ("x",)) is None and stop_at("", ()) is None
    assert [stop_of("abcd", s) for s in (("abcd", "c"), ("c", "bc"), ("x",), ())] == ["c", "bc", None, None]
    assert [partial("aaa", ("aab",)), partial("ab", ("x", "bc")), partial("ab", ())] == [2, 1, 0]
