"""Thoughts of answers in later prompts: where a template takes them away, and what the policy ``text`` allows."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ajet.chat.renderer import Chat, Increment, Turn
from tests import tokenizers
from tests.chat.families import FAMILIES
from tests.chat.programme import TOOLS, make_chat
from tests.chat.test_reading import MUTE, chat_of

QUESTION: Any = {"role": "user", "content": "One?"}
ANOTHER: Any = {"role": "user", "content": "Two?"}
RESULT: Any = {"role": "tool", "tool_call_id": "c4ll00001", "content": "ok"}
CALLING: Any = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "hm",
    "tool_calls": [{"id": "c4ll00001", "type": "function", "function": {"name": "ping", "arguments": "{}"}}],
}
TAKEN_AWAY = (
    *("QwQ-32B", "Qwen3", "Qwen3.5 think", "Qwen3.6", "GLM-4.7-Flash", "MiniMax-M2", "Nemotron-3-Nano"),
    *("DeepSeek-R1-Distill-Qwen", "Step-3.5-Flash", "Hy3"),
)
"""Some open the thought in the prompt, some let the model begin it."""


def answered(name: str, asked: list[Any], *, by_text: bool) -> Increment:
    """What follows a thought and an answer in the next prompt, after another question."""
    chat = make_chat(FAMILIES[name])
    assert chat.shape.thoughts
    begin, end = chat.shape.thoughts
    prompt, rendered = chat.begin(asked, TOOLS)
    opened = chat.tokenizer.decode(prompt.tolist()).rstrip().endswith(begin)
    said = f"{'' if opened else begin}\nI see.\n{end}\n\nIt is two."
    ids = [*chat.tokenizer.encode(said, add_special_tokens=False), chat.stop_token_ids[0]]
    parsed = chat.parse(ids, prompt[-64:].tolist(), TOOLS)
    assert (parsed.content, parsed.reasoning) == ("It is two.", "I see.")
    answer = {"role": "assistant", "content": parsed.content, "reasoning_content": parsed.reasoning}
    whole = [*asked, answer, ANOTHER]
    turn = Turn(prompt[-64:].tolist(), ids, answer, [ANOTHER], len(whole), lambda: whole, rendered)
    return chat.next_turn(turn, TOOLS, keep_thinking=by_text)


@pytest.mark.parametrize("name", TAKEN_AWAY)
@pytest.mark.parametrize("asked", [[QUESTION], [QUESTION, CALLING, RESULT]], ids=["plain", "after a tool"])
def test_where_the_template_takes_thoughts_away_the_policy_text_keeps_them(name: str, asked: Any) -> None:
    broken = answered(name, asked, by_text=False)
    assert (broken.ids, broken.cause) == (None, "template drops thinking")
    kept = answered(name, asked, by_text=True)
    assert kept.ids and kept.cause == "template drops thinking", "counted as drift"


@pytest.mark.parametrize(
    ("name", "variable"), [("Qwen3.6", "preserve_thinking"), ("Nemotron-3-Nano", "truncate_history_thinking")]
)
def test_a_variable_of_the_template_may_keep_them(name: str, variable: str) -> None:
    chat = make_chat(FAMILIES[name]).with_variables({variable: variable.startswith("preserve")})
    answer = {"role": "assistant", "content": "It is two.", "reasoning_content": "I see."}
    text = chat.tokenizer.decode(chat.render([QUESTION, answer, ANOTHER], []))
    assert "I see." in text


@pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if f.thought and "training" not in n])
def test_every_family_with_thoughts_is_known_by_its_markers(name: str) -> None:
    family = FAMILIES[name]
    found = make_chat(family).shape.thoughts
    assert found and family.thought and found[0] == family.thought[0].strip()


def test_thoughts_are_known_by_the_vocabulary_where_the_template_never_writes_them() -> None:
    chat = chat_of(MUTE, ("<think>", "</think>"))
    ids = [
        *chat.tokenizer.encode("<think>\nOne and one.\n</think>\n\nTwo.", add_special_tokens=False),
        *chat.stop_token_ids,
    ]
    parsed = chat.parse(ids, chat.render([QUESTION], [])[-64:], [])
    assert (parsed.reasoning, parsed.content) == ("One and one.", "Two.")
    assert chat_of(MUTE).shape.thoughts is None


NOTES = """
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{{- '\n[bot]\n' ~ (m.reasoning_content ~ '\n[ANSWER NOW]\n' if m.reasoning_content and loop.last else '') ~ m.content -}}
{{- '' if loop.last else '\n<|end|>\n' -}}
{%- else -%}{{- '[' ~ m.role ~ ']\n' ~ m.content -}}{%- endif -%}
{%- if loop.last and m.role != 'assistant' -%}{{- '\n[bot]\nMy notes so far:\n' -}}{%- endif -%}
{%- endfor -%}
"""
"""Prompts begin a thought with words, as Apriel-1.6's do; answers have only the marker that ends it."""


@pytest.mark.parametrize(
    ("begun", "sampled", "content", "reasoning"),
    [
        ([], "One and one.\n[ANSWER NOW]\nTwo.", "Two.", "One and one."),
        ([], "One and", "", "One and"),
        ([{"role": "assistant", "content": "It is"}], " two.", "two.", None),
    ],
)
def test_words_with_which_prompts_begin_a_thought_are_its_marker(
    begun: Any, sampled: str, content: str, reasoning: str | None
) -> None:
    tokenizer = copy.deepcopy(tokenizers.plain())
    tokenizer.chat_template = NOTES
    tokenizer.add_special_tokens({"additional_special_tokens": ["[bot]", "[ANSWER NOW]"]})
    chat = Chat(tokenizer)
    assert chat.shape.thoughts == ("My notes so far:", "[ANSWER NOW]")
    prompt, _ = chat.begin([QUESTION, *begun], [])
    ids = [*chat.tokenizer.encode(sampled, add_special_tokens=False), chat.stop_token_ids[0]]
    parsed = chat.parse(ids, prompt[-64:].tolist(), [])
    assert (parsed.content, parsed.reasoning) == (content, reasoning)


def test_long_answers_are_decoded_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents make many calls in one Python thread, and decoding holds it."""
    chat = make_chat(FAMILIES["Qwen3"])
    decode, decoded = chat.tokenizer.decode, list[int]()
    monkeypatch.setattr(
        chat.tokenizer, "decode", lambda ids, **o: decoded.append(len(ids)) or decode(ids, **o)
    )
    prompt, rendered = chat.begin([QUESTION], ())

    thought = [*chat.tokenizer.encode("<think>\n" + "so " * 500 + "\n</think>", add_special_tokens=False)]
    ids = [*thought, *chat.tokenizer.encode("\n\nIt is two.", add_special_tokens=False)]
    assert chat.parse(ids, prompt.tolist()).reasoning_tokens == len(thought)
    assert sum(count > 100 for count in decoded) == 3, (
        "the whole answer, and two prefixes for the thought's end"
    )

    decoded.clear()
    ids = [*chat.tokenizer.encode("two " * 500, add_special_tokens=False), chat.stop_token_ids[0]]
    answer = {"role": "assistant", "content": chat.parse(ids, prompt.tolist()).content}
    whole = [QUESTION, answer, ANOTHER]
    turn = Turn(prompt.tolist(), ids, answer, [ANOTHER], len(whole), lambda: whole, rendered)
    assert chat.next_turn(turn, ()).ids
    assert sum(count > 100 for count in decoded) == 1, "the next prompt does not decode it again"
