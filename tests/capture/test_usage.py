"""What a reply says of its own tokens: how many were reasoning, and which stop string ended it."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from ajet.testing import ScriptedEngine

from ..plugins.programs import CLOSED, TOOL, calling
from .clients import QUESTION
from .doors import whole_and_streamed

THOUGHT = "<think>\nOne and one.\n</think>"


def clients() -> tuple[openai.OpenAI, anthropic.Anthropic]:
    options: Any = {"api_key": "k", "max_retries": 0}
    claude = anthropic.Anthropic(base_url=CLOSED.removesuffix("/v1"), **options)
    return openai.OpenAI(base_url=CLOSED, **options), claude


def ask_all(stream: bool, *, stop: list[str] | None = None) -> tuple[Any, Any, Any]:
    """The reply of chat completions, of Responses and of Messages to one question."""
    gpt, claude = clients()
    asked: Any = {"model": "m", "messages": [QUESTION], "tools": [TOOL], **({"stop": stop} if stop else {})}
    function = TOOL["function"]
    items: Any = {"model": "m", "input": [QUESTION], "tools": [{"type": "function", **function}]}
    tool = {"name": function["name"], "input_schema": function["parameters"]}
    blocks: Any = {"model": "m", "max_tokens": 99, "messages": [QUESTION], "tools": [tool]}
    blocks |= {"stop_sequences": stop} if stop else {}
    if not stream:
        chat: Any = gpt.chat.completions.create(**asked)
        return chat, gpt.responses.create(**items), claude.messages.create(**blocks)
    with gpt.chat.completions.stream(**asked, stream_options={"include_usage": True}) as chunks:
        chat = chunks.get_final_completion()
    with gpt.responses.stream(**items) as events, claude.messages.stream(**blocks) as parts:
        return chat, events.get_final_response(), parts.get_final_message()


@whole_and_streamed
@pytest.mark.parametrize(
    ("said", "reasoning"),
    [
        (f"{THOUGHT}\n\nTwo.", THOUGHT),
        (f"{THOUGHT}\n\n{calling('calculator', expression='1 + 1')}", THOUGHT),
        ("Two.", ""),
    ],
    ids=["thinking", "thinking and calling", "not thinking"],
)
def test_the_tokens_of_reasoning_are_counted_apart(bench, tokenizer, said, reasoning, stream) -> None:
    count = len(tokenizer.encode(reasoning, add_special_tokens=False))
    size = len(tokenizer.encode(said, add_special_tokens=False)) + 1
    with bench(ScriptedEngine(tokenizer, lambda r, p: said)).session():
        chat, response, message = ask_all(stream)
    assert chat.usage.completion_tokens == response.usage.output_tokens == size
    assert chat.usage.completion_tokens_details.reasoning_tokens == count
    assert response.usage.output_tokens_details.reasoning_tokens == count
    assert message.usage.output_tokens_details.thinking_tokens == count


def test_the_reasoning_of_several_choices_is_added_up(bench, tokenizer) -> None:
    said = f"{THOUGHT}\n\nTwo."
    with bench(ScriptedEngine(tokenizer, lambda r, p: said)).session():
        reply = clients()[0].chat.completions.create(model="m", messages=[QUESTION], n=3)
    assert reply.usage and reply.usage.completion_tokens_details
    count = len(tokenizer.encode(THOUGHT, add_special_tokens=False))
    assert reply.usage.completion_tokens_details.reasoning_tokens == 3 * count


@whole_and_streamed
@pytest.mark.parametrize(
    ("said", "stop", "reason", "content"),
    [
        ("one STOP", ["END", "STOP"], ("stop_sequence", "STOP"), "one"),
        ("one", ["END", "STOP"], ("end_turn", None), "one"),
        ("one\n", ["\n"], ("stop_sequence", "\n"), "one"),
        (calling("calculator", expression="1"), ["STOP"], ("tool_use", None), None),
    ],
    ids=["by a stop string", "by the model", "by a newline", "by a call"],
)
def test_anthropic_clients_are_told_which_stop_sequence_it_was(
    bench, tokenizer, said, stop, reason, content, stream
) -> None:
    # As engines do: nothing is sampled after a stop string, the token that ends a turn neither.
    ended = tokenizer.encode(said, add_special_tokens=False)
    ids = ended if said.endswith(("STOP", "\n")) else [*ended, tokenizer.eos_token_id]
    with bench(ScriptedEngine(tokenizer, lambda r, p: ids)).session():
        chat, _, message = ask_all(stream, stop=stop)
    assert (message.stop_reason, message.stop_sequence) == reason
    assert chat.choices[0].finish_reason == ("tool_calls" if reason[0] == "tool_use" else "stop")
    if content:
        assert message.content[0].text.strip() == chat.choices[0].message.content.strip() == content
