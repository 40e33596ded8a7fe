"""What clients get of a gpt-oss model, whole and while it is sampled."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from ajet.testing import ScriptedEngine
from tests import harmony

USER: Any = [{"role": "user", "content": "1 + 1?"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    },
}
CALLED = harmony.call("add", '{"a": 1}', thought="one and one", preamble="I add.")


@pytest.fixture
def sdk() -> openai.OpenAI:
    return openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)


def engine(sampled: str) -> ScriptedEngine:
    return ScriptedEngine(harmony.harmony(), lambda request, prompt: sampled, model_type="gpt_oss")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_comes_with_its_thoughts_and_its_text(bench: Any, sdk: Any, stream: bool) -> None:
    asked = {"model": "m", "messages": USER, "tools": [TOOL], "stream": stream}
    with bench(engine(CALLED)).session() as session:
        reply = sdk.chat.completions.create(**asked)
        pieces = [chunk.choices[0] for chunk in reply if chunk.choices] if stream else reply.choices
    said = [piece.delta if stream else piece.message for piece in pieces]
    assert "".join(getattr(s, "reasoning_content", None) or "" for s in said) == "one and one"
    assert "".join(s.content or "" for s in said) == "I add."
    calls = [call.function for s in said for call in s.tool_calls or ()]
    assert "".join(c.name or "" for c in calls) == "add"
    assert "".join(c.arguments or "" for c in calls) == '{"a": 1}'
    assert pieces[-1].finish_reason == "tool_calls"
    (recorded,) = session.record.calls
    assert session.record.exchanges[0].answer.message["content"] == "I add."
    assert recorded.generation.token_ids[-1] == harmony.harmony().convert_tokens_to_ids("<|call|>")


def test_the_answer_is_streamed_word_by_word_after_the_thoughts(bench: Any, sdk: Any) -> None:
    sampled = harmony.answer("It is 2, as one and one are 2.", thought="one and one")
    with bench(engine(sampled)).session():
        reply = sdk.chat.completions.create(model="m", messages=USER, stream=True)
        deltas = [chunk.choices[0].delta for chunk in reply if chunk.choices]
    thoughts = [n for n, d in enumerate(deltas) if getattr(d, "reasoning_content", None)]
    words = [n for n, d in enumerate(deltas) if d.content]
    assert len(thoughts) > 3 and len(words) > 5 and max(thoughts) < min(words)
    assert "".join(d.content or "" for d in deltas) == "It is 2, as one and one are 2."
