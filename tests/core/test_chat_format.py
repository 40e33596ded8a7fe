"""What a model's chat format is said to be, and which setting keeps its conversations in one timeline."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.chat.renderer import Chat
from ajet.rollout.settings import RolloutSettings
from ajet.runs.chat_format import ChatFormatReport, describe
from ajet.runs.runtime import chat_of, make_chat
from tests import tokenizers
from tests.chat.families import FAMILIES
from tests.chat.programme import make_chat as chat_of_family

CHATML = """
{%- if tools -%}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{%- endif -%}
{%- for m in messages -%}
{%- set keeps = KEEPS or loop.last or (loop.nextitem is defined and loop.nextitem.role == 'tool') -%}
{{- '<|im_start|>' ~ m.role ~ '\\n' -}}
{%- if m.reasoning_content and keeps -%}{{- '<think>\\n' ~ m.reasoning_content ~ '\\n</think>\\n\\n' -}}{%- endif -%}
{{- m.content or '' -}}
{%- for call in m.tool_calls or [] -%}CALL{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
JSON_CALL = """{{- '<tool_call>\\n' ~ (call.function | tojson) ~ '\\n</tool_call>' -}}"""
NO_NAME = "{{- '[a tool is called]' -}}"


def report(
    settings: RolloutSettings | None = None, *, keeps: str = "false", call: str = JSON_CALL
) -> ChatFormatReport:
    tokenizer = copy.deepcopy(tokenizers.qwen3())
    tokenizer.chat_template = CHATML.replace("KEEPS", keeps).replace("CALL", call)
    return describe(make_chat(tokenizer, "none", settings or RolloutSettings()))


def test_calls_thoughts_and_stops_are_told_in_one_line() -> None:
    found = report(keeps="true")
    (line,) = found.lines()
    assert line.startswith("tool calls: JSON, ")
    assert line.endswith(" the chat template; thoughts: <think> … </think>; stops: <|im_end|>")


@pytest.mark.parametrize(
    ("condition", "setting"),
    [
        ("preserve_thinking", "rollout.chat_template: {preserve_thinking: true}"),
        (
            "(clear_thinking is defined and not clear_thinking)",
            "rollout.chat_template: {clear_thinking: false}",
        ),
        (
            "not (truncate_history_thinking | default(true))",
            "rollout.chat_template: {truncate_history_thinking: false}",
        ),
        ("false", "rollout.merge: text"),
    ],
)
def test_the_setting_is_named_with_which_a_chat_with_thoughts_continues(condition: str, setting: str) -> None:
    (broken,) = report(keeps=condition).broken
    assert (broken.what, broken.cause) == ("chats with thoughts", "template drops thinking")
    assert broken.setting == setting
    assert report(keeps=condition).lines()[1] == (
        f"chats with thoughts would break (template drops thinking): {setting} avoids it"
    )


def test_a_setting_that_avoids_the_break_is_not_told_once_it_is_set() -> None:
    settings = RolloutSettings(chat_template={"preserve_thinking": True})
    assert not report(settings, keeps="preserve_thinking").broken


@pytest.mark.parametrize(
    ("family", "lines"),
    [
        ("Qwen3.6", ["chats with thoughts: {preserve_thinking: true}"]),
        ("Nemotron-3-Nano", ["chats with thoughts: {truncate_history_thinking: false}"]),
        ("lfm2_2_5 (TRL)", ["chats with thoughts: {preserve_thinking: true}"]),
        ("Qwen3.5 nothink", ["chats: merge: text"]),
        ("MiniMax-M2", ["chats with thoughts: merge: text"]),
        ("Hermes (vLLM)", ["tool loops: "]),
        ("Kimi-K2 (moonshotai)", []),
        ("Llama-3.1", []),
    ],
)
def test_real_families_break_where_their_templates_rewrite(family: str, lines: list[str]) -> None:
    found = describe(chat_of_family(FAMILIES[family]))
    told = [
        f"{b.what}: {b.setting.removeprefix('rollout.').removeprefix('chat_template: ')}"
        for b in found.broken
    ]
    assert told == lines


def test_turning_thoughts_off_is_not_a_way_to_keep_them() -> None:
    found = describe(chat_of_family(FAMILIES["DeepSeek-V3.1 thinking"]))
    assert [b.setting for b in found.broken] == ["rollout.merge: text"]


def test_calls_that_the_template_writes_unreadably_are_named() -> None:
    found = describe(chat_of_family(FAMILIES["Llama-3.2 pythonic (vLLM)"]))
    assert "quotes" in found.unread
    assert found.lines()[1].startswith("not read back as the chat template writes them: calls with")


def test_calls_that_cannot_be_read_are_the_first_line_with_both_remedies() -> None:
    first, *_ = report(call=NO_NAME).lines()
    assert "cannot read how" in first
    assert "rollout.call_example" in first and "rollout.tool_calls: text" in first


def test_an_example_or_the_wish_for_text_is_a_remedy() -> None:
    example = RolloutSettings(call_example='[call NAME {"KEY": "VALUE"}]')
    assert report(example, call=NO_NAME).lines()[0].startswith("tool calls: ")
    assert "rollout.call_example" in report(example, call=NO_NAME).calls
    text = report(RolloutSettings(tool_calls="text"), call=NO_NAME)
    assert not text.fault and text.calls == "text, as rollout.tool_calls says"


def test_a_template_without_tools_says_so() -> None:
    found = describe(Chat(tokenizers.thinker()))
    assert not found.fault and not found.shows_tools
    assert dict(found.rows())["tools in prompts"].startswith("no")


def test_a_model_without_a_chat_template_is_told_whose_format_its_chats_have(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = copy.deepcopy(tokenizers.qwen3())
    engine: Any = SimpleNamespace(tokenizer=tokenizer, model_type="qwen3", context_length=64, vision=None)
    chat_of(engine, RolloutSettings())
    assert not caplog.messages
    tokenizer.chat_template = None
    chat_of(engine, RolloutSettings())
    (said,) = caplog.messages
    assert "has no chat template" in said and "as those of qwen3 models are" in said
