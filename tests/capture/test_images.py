"""Images over the three wires and through frameworks: the same picture arrives, and the same tokens are recorded."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from ajet.capture.targets import Target
from ajet.capture.wires.anthropic import AnthropicMessages
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.capture.wires.responses import Responses
from ajet.chat.messages import images_of
from ajet.interfaces.wire import Refused
from ajet.testing import ScriptedEngine
from tests.processors import picture, url, vision

RED = picture("red")
QUESTION = "Which colour?"
IMAGE = {"type": "image_url", "image_url": {"url": url(RED)}}


def seeing() -> ScriptedEngine:
    """An engine whose model sees, and says what it was asked."""
    of_qwen = vision("qwen2_5_vl")
    return ScriptedEngine(
        of_qwen.processor.tokenizer, lambda request, prompt: "red", model_type="qwen2_5_vl", vision=of_qwen
    )


def parsed(wire: Any, **body: Any) -> Any:
    return wire.parse(json.dumps({"model": "m", **body}).encode())


CHAT = parsed(
    ChatCompletions(), messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION}, IMAGE]}]
)
RESPONSES = parsed(
    Responses(),
    input=[
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": QUESTION},
                {"type": "input_image", "image_url": url(RED), "detail": "auto"},
            ],
        }
    ],
)
SOURCE = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
ANTHROPIC = parsed(
    AnthropicMessages(),
    max_tokens=9,
    messages=[
        {"role": "user", "content": [{"type": "text", "text": QUESTION}, {"type": "image", "source": SOURCE}]}
    ],
)


@pytest.mark.parametrize("request_", [CHAT, RESPONSES, ANTHROPIC], ids=["chat", "responses", "anthropic"])
def test_every_wire_records_the_same_picture_and_the_same_prompt(bench: Any, request_: Any) -> None:
    made = bench(seeing())
    with made.session() as session:
        asyncio.run(session.answer(request_, "agent", None, False))
    (request,) = made.engine.requests
    (image,) = request.images
    assert image.data == RED
    assert (request.prompt_ids == image.token).sum() == vision("qwen2_5_vl").see(image).count
    (exchange,) = session.record.exchanges
    (message, answer) = exchange.chat()
    assert message["content"] == [{"type": "text", "text": QUESTION}, {"type": "image", "image": image.ref}]
    assert answer["content"] == "red"


def test_a_tool_may_return_a_picture_on_every_wire() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "zoom", "arguments": "{}"}}
    of_chat = parsed(
        ChatCompletions(),
        messages=[
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [IMAGE]},
        ],
    )
    of_responses = parsed(
        Responses(),
        input=[
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "c1", "name": "zoom", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_image", "image_url": url(RED)}],
            },
        ],
    )
    of_anthropic = parsed(
        AnthropicMessages(),
        max_tokens=9,
        messages=[
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "zoom", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [{"type": "image", "source": SOURCE}],
                    }
                ],
            },
        ],
    )
    for request in (of_chat, of_responses, of_anthropic):
        assert request.messages[-1]["role"] == "tool"
        assert request.messages[-1]["content"] == [IMAGE]


def refused(made: Any, request: Any) -> Refused:
    with made.session() as session, pytest.raises(Refused) as caught:
        asyncio.run(session.answer(request, "agent", None, False))
    assert not session.record.calls
    assert not session.record.images
    return caught.value


def test_an_image_to_a_model_that_reads_only_text_is_an_error_that_names_the_model(
    bench: Any, tokenizer: Any
) -> None:
    error = refused(bench(ScriptedEngine(tokenizer, lambda request, prompt: "x")), CHAT)
    assert str(error) == (
        "the request has an image, but the model (qwen3) reads only text; set model to a vision-language model, or send text"
    )
    assert error.code == "unsupported_content"


def test_an_engine_that_takes_no_images_is_named(bench: Any, tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer, lambda request, prompt: "x")
    del engine.vision
    assert "ScriptedEngine does not take images" in str(refused(bench(engine), CHAT))


def test_a_broken_picture_is_refused_before_anything_is_recorded(bench: Any) -> None:
    broken = parsed(
        ChatCompletions(),
        messages=[
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url(b"no image")}}]}
        ],
    )
    error = refused(bench(seeing()), broken)
    assert error.code == "unsupported_image"
    assert "messages[0].content[0]: the data is not an image of a known type" in str(error)


def test_a_picture_counts_by_its_own_limits_not_as_text(bench: Any) -> None:
    # Bytes after the end of a PNG do not count.
    large = picture(size=(500, 400), form="PNG") + b"\0" * 200_000
    body = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url(large)}}]}
    request = parsed(ChatCompletions(), messages=[body])
    request.size = 300_000
    made = bench(seeing())
    with made.session() as session:
        asyncio.run(session.answer(request, "agent", None, False))
    assert len(session.record.calls) == 1


def test_a_chat_model_that_answers_a_target_gets_the_picture_as_it_was_sent(
    bench: Any, tokenizer: Any
) -> None:
    class Model:
        async def complete(self, messages: Any, tools: Any, sampling: Any) -> Any:
            self.messages = messages
            return {"role": "assistant", "content": "red"}

    model = Model()
    made = bench(ScriptedEngine(tokenizer, lambda request, prompt: "x"))
    with made.session(targets=[Target("policy", model=model)]) as session:
        asyncio.run(session.answer(CHAT, "agent", None, False))
    assert model.messages == CHAT.messages
    assert images_of(session.record.exchanges[0].chat()[0])


# ------------------------------------------------------------------ the SDK and frameworks


def test_the_openai_sdk_sends_a_picture_and_gets_an_answer(bench: Any) -> None:
    openai = pytest.importorskip("openai")
    made = bench(seeing())
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    with made.session() as session:
        answer = client.chat.completions.create(model="m", messages=CHAT.messages)
    assert answer.choices[0].message.content == "red"
    assert [image.data for image in session.record.images.values()] == [RED]


def test_langgraph_sends_a_picture_unchanged(bench: Any) -> None:
    pytest.importorskip("langgraph")
    langchain_openai = pytest.importorskip("langchain_openai")
    from langgraph.graph import END, START, MessagesState, StateGraph

    def look(state: MessagesState) -> Any:
        model = langchain_openai.ChatOpenAI(
            model="m", base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0
        )
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("look", look)
    graph.add_edge(START, "look")
    graph.add_edge("look", END)
    made = bench(seeing())
    with made.session() as session:
        found = graph.compile().invoke({"messages": CHAT.messages})
    assert found["messages"][-1].content == "red"
    assert [image.data for image in session.record.images.values()] == [RED]


@pytest.mark.parametrize("wire", ["chat completions", "responses"])
def test_openai_agents_sends_a_picture_unchanged(bench: Any, wire: str) -> None:
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    kinds: dict[str, Callable[..., Any]] = {
        "chat completions": agents.OpenAIChatCompletionsModel,
        "responses": agents.OpenAIResponsesModel,
    }
    agent = agents.Agent("looker", instructions="Look.", model=kinds[wire]("m", client))
    content = [
        {"type": "input_text", "text": QUESTION},
        {"type": "input_image", "image_url": url(RED), "detail": "auto"},
    ]
    made = bench(seeing())
    with made.session() as session:
        config = agents.RunConfig(tracing_disabled=True)
        result = asyncio.run(
            agents.Runner.run(agent, [{"role": "user", "content": content}], run_config=config)
        )
    assert result.final_output == "red"
    assert [image.data for image in session.record.images.values()] == [RED]
