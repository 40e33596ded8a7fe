"""What the engine is given where replies look alike, and where the chat template changes what it wrote: the prompt is
the client's own chat, the break has its true cause, and the remedy that is reported works."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ajet.chat.renderer import Chat
from ajet.tracker.breaks import CAUSES, Break, find_breaks
from tests import templates
from tests.tokenizers import FAMILIES
from tests.tracker.harness import ADD, U2, S, Script, U, tool, user

THOUGHT = "<think>\n{}\n</think>\n\n{}"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def seen(script: Script, number: int) -> str:
    """What the engine saw in its call of that place."""
    return str(script.tokenizer.decode(script.engine.requests[number].prompt_ids.tolist()))


def as_template_writes(script: Script, chat: list[Any], tools: list[Any] | None = None) -> str:
    return str(
        script.tokenizer.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)
    )


def the_break(script: Script) -> Break:
    (found,) = find_breaks(script.record)
    assert CAUSES[found.cause] and (found.before, found.now) != ("", "")
    return found


def long(chat: list[Any]) -> list[Any]:
    """The chat after ten messages that the client wrote."""
    shots = [m for n in range(5) for m in (user(f"no. {n}?"), {"role": "assistant", "content": f"it is {n}"})]
    return [S, *shots, *chat]


# ------------------------------------------------------------------ templates that write the time

TIMED = "{{- '<|system|>' ~ strftime_now('%f') ~ '<|end|>' -}}"


def test_a_prompt_whose_time_has_passed_is_rendered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(templates.TEMPLATES, "timed", TIMED + templates._loop())
    script = Script("template timed")
    x = script.call([S, U], "two")
    script.call([S, U, x, U2], "four")
    times = [seen(script, n)[len("<|system|>") :].partition("<|end|>")[0] for n in range(2)]
    assert times[0] != times[1] and [c.parent for c in script.record.calls] == [None, None]
    found = the_break(script)
    assert found.cause == "template rewrites history" and found.before != found.now
    script.call([S, U], "two")
    assert seen(script, 2) != seen(script, 0), (
        "what was rendered a while ago is not what the template writes now"
    )


def test_a_prompt_whose_time_is_the_same_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        templates.TEMPLATES, "century", TIMED.replace("%f", "in the century %C") + templates._loop()
    )
    script = Script("template century")
    x = script.call([S, U], "two")
    script.call([S, U, x, U2], "four")
    assert "in the century 2" in seen(script, 1) and len(script.lines()) == 1


# ------------------------------------------------------------------ replies that look alike


def test_a_named_reply_is_continued_although_another_has_the_same_text() -> None:
    script = Script("template plain")
    letters = [i for c in "two" for i in script.ids(c)]
    stop = script.chat.stop_token_ids[0]
    script.named([S, U], [*script.ids("two"), stop])
    _, second = script.named([S, U], [*letters, stop])
    script.named([U2], "four", after=second)
    assert [c.parent for c in script.record.calls] == [None, None, 1]
    assert (
        script.engine.requests[2].prompt_ids.tolist()[: script.record.calls[1].end.length][-4:]
        == [
            *letters,
            stop,
        ][-4:]
    )
    assert not find_breaks(script.record)


def test_the_choice_whose_reasoning_comes_back_is_the_one_that_is_continued() -> None:
    script = Script("template plain")
    one, two = script.call([S, U], THOUGHT.format("so", "two"), THOUGHT.format("hm", "two"))
    assert one["content"] == two["content"] and two["reasoning_content"] == "hm"
    script.call([S, U, two, U2], "four")
    assert script.record.calls[2].parent == 1
    assert "hm" in seen(script, 2) and "so" not in seen(script, 2)


def test_client_messages_that_differ_only_in_reasoning_are_rendered_apart() -> None:
    script = Script("template plain")
    for thought in ("so", "hm"):
        chat = [S, U, {"role": "assistant", "content": "two", "reasoning_content": thought}, U2]
        script.call(chat, "four")
        assert seen(script, -1) == as_template_writes(script, chat)


def test_an_edited_reasoning_is_not_that_reply_and_is_reported() -> None:
    script = Script("template plain")
    x = script.call([S, U], THOUGHT.format("so", "two"))
    chat = [S, U, {**x, "reasoning_content": "no"}, U2]
    script.call(chat, "four")
    assert seen(script, 1) == as_template_writes(script, chat)
    assert (the_break(script).cause, the_break(script).before) == ("reasoning edited", "so")
    for remedied in (x, {"role": "assistant", "content": "two"}):  # as it came, or left out
        script = Script("template plain")
        script.call([S, U], THOUGHT.format("so", "two"))
        script.call([S, U, remedied, U2], "four")
        assert script.record.calls[1].parent == 0 and not find_breaks(script.record)


# ------------------------------------------------------------------ templates that look at places


@pytest.mark.parametrize(
    "name",
    ["system_again", "counted_down", "reminded_at_the_end", "cleared", "trimmed", "reminded", "numbered"],
)
def test_templates_that_look_at_places_are_compared_on_every_call(name: str) -> None:
    script = Script(f"template {name}", context_length=100_000)
    chat = long([U])
    for turn in range(20):
        reply = script.call(chat, f"answer {turn}")
        assert seen(script, turn) == as_template_writes(script, chat), f"call {turn}"
        chat += [reply, user(f"question {turn}")]
    split = [c.number for c in script.record.calls if c.cause]
    assert [b.call for b in find_breaks(script.record)] == split
    assert bool(split) == (name not in ("reminded", "numbered", "cleared"))


def test_tools_after_the_last_user_message_are_written_once_and_reported() -> None:
    script = Script("template tools_last", context_length=100_000)
    chat = long([U])
    for turn in range(6):
        chat += [script.call(chat, f"answer {turn}", tools=[ADD]), user(f"question {turn}")]
        assert seen(script, turn).count("<|tools|>") == 1
    found = find_breaks(script.record)
    assert [b.cause for b in found] == ["template moves tools"] * 5
    assert all(b.before != b.now for b in found)


def test_a_turn_whose_thoughts_the_template_drops_later_is_rendered_anew() -> None:
    for family in ("qwen3", "thinker", "template qwen3", "template stripped"):
        script = Script(family)
        x = script.call([S, U], THOUGHT.format("deep", CALL), tools=[ADD])
        chat = [S, U, x, tool("2", x["tool_calls"][0]["id"])]
        y = script.call(chat, "two", tools=[ADD])
        assert "deep" in seen(script, 1) and script.record.calls[1].parent == 0, family
        script.call([*chat, y, U2], "four", tools=[ADD])
        assert "deep" not in seen(script, 2), family
        assert the_break(script).cause == "template drops thinking"


# ------------------------------------------------------------------ the policy text


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_policy_text_leaves_what_users_say_alone(family: str) -> None:
    script = Script(family, by_text=True)
    x = script.call([S, user("What is <think>this</think> for?")], "two")
    chat = [S, user("What is  for?"), x, U2]
    script.call(chat, "four")
    assert "this" not in seen(script, 1) and script.record.calls[1].parent is None
    script.call([S, user("hello ")], "two")
    script.call([S, user("hello"), U2], "four")
    assert script.session.counters["drift"] == 0


def test_an_answer_under_the_policy_text_is_counted_as_drift() -> None:
    script = Script("template plain", by_text=True)
    x = script.call([S, U], "two \n")
    script.call([S, U, {**x, "content": "two"}, U2], "four")
    assert script.record.calls[1].parent == 0 and script.session.counters["drift"] == 1


# ------------------------------------------------------------------ numbers and names


def test_whole_numbers_of_the_client_are_not_rounded() -> None:
    script = Script("template plain")
    for number in (2**53, 2**53 + 1):
        call = {
            "id": "c",
            "type": "function",
            "function": {"name": "add", "arguments": json.dumps({"a": number})},
        }
        script.call([S, U, {"role": "assistant", "content": "", "tool_calls": [call]}, tool("2", "c")], "two")
        assert str(number) in seen(script, -1)


def test_where_a_template_writes_names_bobs_message_is_not_rendered_as_alices() -> None:
    script = Script("template named")
    for name in ("alice", "bob"):
        script.call([S, U, {"role": "assistant", "name": name, "content": "two"}, U2], "four")
        assert f"{name}: two" in seen(script, -1)


# ------------------------------------------------------------------ true causes, and remedies that work


def with_template(script: Script, source: str) -> Script:
    """The same, with another chat template: the remedy for what a template does."""
    other = Script(script.family, by_text=script.by_text, context_length=script.context_length)
    other.tokenizer = copy.deepcopy(script.tokenizer)
    other.tokenizer.chat_template = source
    other.chat = Chat(other.tokenizer)
    object.__setattr__(other.session.answerer, "chat", other.chat)
    return other


def converse(script: Script, *, thought: bool = False) -> Script:
    chat = long([U])
    for turn in range(8):
        text = f"answer {turn}"
        tools = [ADD] if script.family == "template tools_last" else []
        reply = script.call(chat, THOUGHT.format("deep", text) if thought else text, tools=tools)
        chat += [reply, user(f"question {turn}")]
    return script


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("system_again", "template rewrites history"),
        ("counted_down", "template rewrites history"),
        ("reminded_at_the_end", "template rewrites history"),
        ("trimmed", "template rewrites history"),
        ("tools_last", "template moves tools"),
    ],
)
def test_a_template_that_only_appends_is_the_remedy_that_works(name: str, cause: str) -> None:
    script = converse(Script(f"template {name}", context_length=100_000))
    assert {b.cause for b in find_breaks(script.record)} == {cause}
    assert "Use a chat template" in CAUSES[cause]
    remedied = converse(with_template(script, templates.TEMPLATES["plain"]))
    assert not find_breaks(remedied.record) and len(remedied.lines()) == 1


@pytest.mark.parametrize("name", ["stripped", "qwen3", "deepseek_r1"])
def test_where_the_template_drops_thinking_both_remedies_work(name: str) -> None:
    script = converse(Script(f"template {name}", context_length=100_000), thought=name != "deepseek_r1")
    assert {b.cause for b in find_breaks(script.record)} == {"template drops thinking"}
    assert "send answers back" not in CAUSES["template drops thinking"]
    by_text = converse(
        Script(f"template {name}", by_text=True, context_length=100_000), thought=name != "deepseek_r1"
    )
    assert not find_breaks(by_text.record) and by_text.session.counters["drift"] > 0
    kept = converse(with_template(script, templates.TEMPLATES["plain"]), thought=True)
    assert not find_breaks(kept.record)


def test_a_template_that_drops_the_text_beside_a_call_is_reported_as_that() -> None:
    script = Script("template plain")
    source = templates.TEMPLATES["plain"].replace(
        "{{- m.content or '' -}}", "{{- '' if m.tool_calls else m.content or '' -}}"
    )
    silent = with_template(script, source)
    for each in (silent, with_template(script, templates.TEMPLATES["plain"])):
        x = each.call([S, U], f"Let me see.\n{CALL}", tools=[ADD])
        chat = [S, U, x, tool("2", x["tool_calls"][0]["id"])]
        each.call(chat, "two", tools=[ADD])
        assert [b.cause for b in find_breaks(each.record)] == (
            ["template drops answer"] if each is silent else []
        )


@pytest.mark.parametrize(
    "text", [f"{CALL} It is 2.", f"{CALL}<tool_call>{{", f'<tool_call>{{"name": "ad</tool_call>{CALL}']
)
def test_an_answer_whose_parts_the_template_writes_in_another_order_is_continued(text: str) -> None:
    script = Script("template plain")
    x = script.call([S, U], text, tools=[ADD])
    script.call([S, U, x, tool("2", x["tool_calls"][0]["id"])], "two", tools=[ADD])
    assert not find_breaks(script.record) and len(script.lines()) == 1


@pytest.mark.parametrize("written", ["m.content.strip()", "m.content", "m['content'] ~ ''"])
def test_a_call_without_text_has_an_empty_content_in_the_template(written: str) -> None:
    source = templates.TEMPLATES["plain"].replace("m.content or ''", written)
    script = with_template(Script("template plain"), source)
    chat: list[Any] = [S, U]
    for _ in range(3):
        x = script.call(chat, THOUGHT.format("hm", CALL), tools=[ADD])
        sent = {"role": "assistant", "content": None, "tool_calls": x["tool_calls"]}  # without its reasoning
        chat += [sent, tool("2", x["tool_calls"][0]["id"])]
    assert [c.parent for c in script.record.calls] == [None, 0, 1] and not find_breaks(script.record)
    assert script.record.exchanges[0].answer.message["content"] == "" and "None" not in seen(script, -1)


@pytest.mark.whole
def test_a_prefill_sent_back_apart_is_reported_and_sent_back_whole_continued() -> None:
    prefill = {"role": "assistant", "content": "It is"}
    for apart in (True, False):
        script = Script("template plain")
        x = script.call([S, U, prefill], " two", continues=True)
        whole = {"role": "assistant", "content": "It is two"}
        chat = [S, U, *([prefill, x] if apart else [whole]), U2]
        script.call(chat, "four")
        assert [b.cause for b in find_breaks(script.record)] == (["prefill sent apart"] if apart else [])
        if apart:
            assert seen(script, 1) == as_template_writes(script, chat)
