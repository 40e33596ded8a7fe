"""Episodes of gpt-oss: which prompts its engine sees, and where new timelines begin."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from ajet.tracker.breaks import find_breaks
from tests import harmony
from tests.tracker.harness import ADD, U2, S, Script, U, tool, user

THOUGHT = "one and one"


def written(script: Script, messages: list[Any], tools: list[Any]) -> list[int]:
    """What the model's template writes for the client's messages."""
    given = [dict(harmony.for_template(m)) for m in messages]
    for message in given:
        for call in message.get("tool_calls", ()):
            function = {**call["function"], "arguments": json.loads(call["function"]["arguments"])}
            message["tool_calls"] = [{**call, "function": function}]
    text = script.tokenizer.apply_chat_template(
        given, tools=tools or None, tokenize=False, add_generation_prompt=True
    )
    return script.ids(text)


def test_a_tool_loop_is_one_timeline_and_an_answer_ends_it_with_the_true_cause() -> None:
    script = Script("harmony")
    x = script.call([S, U], harmony.call("add", '{"a": 1}', thought=THOUGHT), tools=[ADD])
    result = tool("2", x["tool_calls"][0]["id"])
    y = script.call([S, U, x, result], harmony.answer("two", thought="so 2"), tools=[ADD])
    z = script.call([S, U, x, result, y, U2], harmony.answer("four"), tools=[ADD])
    script.call([S, U, x, result, y, U2, z, U2], harmony.answer("eight"), tools=[ADD])
    calls = script.record.calls
    assert calls[1].prompt.starts_with(calls[0].end), "the loop goes on with the stored ids"
    found = [(b.call, b.after, b.cause) for b in find_breaks(script.record)]
    assert found == [(2, 1, "template drops thinking"), (3, 2, "template rewrites history")]
    assert len(script.lines()) == 3


@pytest.mark.parametrize("seed", range(12))
def test_every_prompt_is_what_the_template_writes(seed: int) -> None:
    """Answers are sampled in the template's own spelling, so that stored ids are no excuse."""
    random, script = Random(seed), Script("harmony")
    tools = [ADD] if seed % 4 else []
    chat: list[Any] = [S, U] if seed % 3 else [U]
    for turn in range(6):
        function = {"name": "add", "arguments": json.dumps({"a": turn})}
        calls = [{"id": "any", "type": "function", "function": function}]
        answer: dict[str, Any] = {"role": "assistant", "content": f"answer {turn}"}
        if tools and random.random() < 0.6:
            answer |= {"content": "", "tool_calls": calls}
        if random.random() < 0.6:
            answer["reasoning_content"] = f"so {turn}"
        x = script.call(chat, script.chat.written(answer), tools=tools)
        prompt = script.engine.requests[-1].prompt_ids.tolist()
        assert prompt == written(script, chat, tools)
        assert script.tokenizer.eos_token_id not in prompt, "<|return|> ends the last turn only"
        asked = tool("2", x["tool_calls"][0]["id"]) if "tool_calls" in x else user(f"question {turn}")
        chat = [*chat, x, asked]
    script.lines()
