"""One agent, written for each framework: it solves a sum with a calculator in two calls of its model.

Models and clients are made once, by `make`, and shared by all runs; their address is a closed port. What a
framework lets share (graphs, agents) is shared too. Each run returns what the framework saw.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from ajet.tracker.timelines import timelines

CLOSED = "http://127.0.0.1:9/v1"  # the discard port: a request that gets out fails at once
SYSTEM = "Solve the problem with the calculator."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": SCHEMA,
    },
}


@dataclass
class Seen:
    """What a framework was told of its model's answers."""

    answer: str
    reasons: list[str] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    tokens: tuple[int, int] | None = None
    """Of prompts and of completions, in all."""


Run = Callable[[str], Awaitable[Seen]]


def calculate(expression: str) -> str:
    """The value of a sum."""
    left, _, right = expression.partition("+")
    return str(int(left) + int(right))


def script(request: Any, prompt: str) -> str:
    """The model: thinks, calls the calculator with the question, then says its result."""
    if "<tool_response>" in prompt:
        return "The result is " + prompt.rpartition("<tool_response>")[2].partition("<")[0].strip() + "."
    question = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0].strip()
    return "<think>\nA sum.\n</think>\n\nI calculate.\n" + calling("calculator", expression=question)


def ask_plainly(question: str = "12 + 30") -> None:
    """The task by plain HTTP to the closed port: what everybody else is to come to."""
    import httpx2

    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    with httpx2.Client() as client:
        for _ in range(2):
            body = {"model": "m", "messages": messages, "tools": [TOOL]}
            message = client.post(f"{CLOSED}/chat/completions", json=body).json()["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls", []):
                result = calculate(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def lines(record: Any) -> list[tuple[list[int], list[bool], list[float]]]:
    """The timelines of a record, comparable: ids, mask, logprobs (0 where there are none)."""
    found = timelines(record.trained_calls)
    return [(t.token_ids.tolist(), t.mask.tolist(), np.nan_to_num(t.logprobs).tolist()) for t in found]


def by_rules(*rules: tuple[str, str]) -> Callable[[Any, str], str]:
    """A model that gives the answer of the first rule whose text is in the prompt."""

    def answer(request: Any, prompt: str) -> str:
        return next((say for text, say in rules if text in prompt), "I do not know.")

    return answer


def calling(tool: str, **arguments: Any) -> str:
    """The text of a tool call."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def agents_of(session: Any) -> list[str]:
    """Who made the calls of a session, in order."""
    return [exchange.agent for exchange in session.record.exchanges]


def require(*modules: str) -> None:
    """Skip the test where a framework is not installed (`make test-matrix` installs all of them)."""
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # not even its package
            found = None
        if found is None:
            pytest.skip(f"{module} is not installed: make test-matrix", allow_module_level=True)


# ------------------------------------------------------------------ the OpenAI SDK


def make_openai_sdk(*, stream: bool = False) -> Run:
    import openai

    client = openai.AsyncOpenAI(base_url=CLOSED, api_key="k", max_retries=0)

    async def complete(messages: list[Any]) -> Any:
        asked: Any = {"model": "m", "messages": messages, "tools": [TOOL]}
        if not stream:
            return await client.chat.completions.create(**asked)
        usage: Any = {"include_usage": True}
        async with client.chat.completions.stream(**asked, stream_options=usage) as events:
            return await events.get_final_completion()

    async def run(question: str) -> Seen:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        seen = Seen("")
        prompts = completions = 0
        while not seen.answer:
            reply = await complete(messages)
            choice = reply.choices[0]
            prompts += reply.usage.prompt_tokens
            completions += reply.usage.completion_tokens
            seen.reasons.append(choice.finish_reason)
            messages.append(choice.message)
            seen.answer = "" if choice.message.tool_calls else choice.message.content or ""
            for call in choice.message.tool_calls or []:
                arguments = json.loads(call.function.arguments)
                seen.calls.append((call.function.name, arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": calculate(**arguments)})
        seen.tokens = (prompts, completions)
        return seen

    return run


def make_openai_sdk_responses() -> Run:
    import openai

    client = openai.AsyncOpenAI(base_url=CLOSED, api_key="k", max_retries=0)
    tool: Any = {"type": "function", "strict": False, **TOOL["function"]}

    async def run(question: str) -> Seen:
        items: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        seen = Seen("")
        prompts = completions = 0
        while not seen.answer:
            reply = await client.responses.create(model="m", input=items, tools=[tool])
            assert reply.usage
            prompts += reply.usage.input_tokens
            completions += reply.usage.output_tokens
            items += reply.output
            calls = [item for item in reply.output if item.type == "function_call"]
            seen.answer = "" if calls else reply.output_text
            for call in calls:
                arguments = json.loads(call.arguments)
                seen.calls.append((call.name, arguments))
                result = {"call_id": call.call_id, "output": calculate(**arguments)}
                items.append({"type": "function_call_output", **result})
        seen.tokens = (prompts, completions)
        return seen

    return run


# ------------------------------------------------------------------ LangGraph


def calculator_for_langchain() -> Any:
    """The tool, worded as for all others."""
    from langchain_core.tools import StructuredTool

    description = TOOL["function"]["description"]
    return StructuredTool.from_function(
        calculate, name="calculator", description=description, args_schema=SCHEMA
    )


def make_langgraph(*, stream_mode: str = "", **options: Any) -> Run:
    require("langchain_openai", "langchain.agents")
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    tool = calculator_for_langchain()
    model = ChatOpenAI(model="m", base_url=CLOSED, api_key="k", max_retries=0, **options)
    agent = create_agent(model, [tool], system_prompt=SYSTEM, name="solver")

    async def run(question: str) -> Seen:
        asked: Any = {"messages": [{"role": "user", "content": question}]}
        if stream_mode:
            modes: Any = [stream_mode, "values"]
            states = [
                part async for mode, part in agent.astream(asked, stream_mode=modes) if mode == "values"
            ]
            state = states[-1]
        else:
            state = await agent.ainvoke(asked)
        said = [m for m in state["messages"] if m.type == "ai"]
        return Seen(
            said[-1].text,
            [m.response_metadata["finish_reason"] for m in said if "finish_reason" in m.response_metadata],
            [(c["name"], c["args"]) for m in said for c in m.tool_calls],
            (
                sum(m.usage_metadata["input_tokens"] for m in said),
                sum(m.usage_metadata["output_tokens"] for m in said),
            ),
        )

    return run


# ------------------------------------------------------------------ AgentScope


def make_agentscope(**options: Any) -> Run:
    require("agentscope.credential")
    from agentscope.agent import Agent
    from agentscope.credential import OpenAICredential
    from agentscope.message import UserMsg
    from agentscope.model import OpenAIChatModel
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool, Toolkit

    credential = OpenAICredential(api_key="k", base_url=CLOSED)
    model = OpenAIChatModel(credential=credential, model="m", max_retries=0, **options)

    async def run(question: str) -> Seen:
        tool = FunctionTool(
            calculate,
            name="calculator",
            description=TOOL["function"]["description"],
            input_schema=SCHEMA,
            permission=PermissionDecision(behavior=PermissionBehavior.ALLOW, message=""),
        )
        agent = Agent("solver", SYSTEM, model, Toolkit(tools=[tool]))  # it holds its conversation
        message = await agent.reply(UserMsg("user", question))
        blocks = [b for m in agent.state.context for b in m.content if b.type == "tool_call"]
        usage = message.usage
        return Seen(
            message.get_text_content() or "",
            [],
            [(b.name, json.loads(b.input)) for b in blocks],
            (usage.input_tokens, usage.output_tokens) if usage else None,
        )

    return run


# ------------------------------------------------------------------ the OpenAI Agents SDK


def make_openai_agents(*, chat: bool = False, stream: bool = False) -> Run:
    require("agents")
    import openai
    from agents import (
        Agent,
        FunctionTool,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
    )

    async def invoke(context: Any, arguments: str) -> str:
        return calculate(**json.loads(arguments))

    tool = FunctionTool(
        "calculator", TOOL["function"]["description"], SCHEMA, invoke, strict_json_schema=False
    )
    client = openai.AsyncOpenAI(base_url=CLOSED, api_key="k", max_retries=0)
    model: Any = (OpenAIChatCompletionsModel if chat else OpenAIResponsesModel)("m", client)
    settings = ModelSettings(include_usage=True)  # as clients must ask for it where answers are streamed
    agent = Agent("solver", instructions=SYSTEM, tools=[tool], model=model, model_settings=settings)

    async def run(question: str) -> Seen:
        result: Any
        if stream:
            result = Runner.run_streamed(agent, question)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, question)
        usage = result.context_wrapper.usage
        calls = [i.raw_item for i in result.new_items if i.type == "tool_call_item"]
        return Seen(
            str(result.final_output),
            [],
            [(c.name, json.loads(c.arguments)) for c in calls],
            (usage.input_tokens, usage.output_tokens),
        )

    return run


# ------------------------------------------------------------------ AutoGen


def make_autogen(*, stream: bool = False) -> Run:
    require("autogen_agentchat", "autogen_ext.models.openai")
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelFamily
    from autogen_core.tools import FunctionTool
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    class Calculator(FunctionTool):
        schema: Any = TOOL["function"]  # exactly that of the others

    info = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": ModelFamily.UNKNOWN,
    }

    class Client(OpenAIChatCompletionClient):
        """Notes finish reasons, which no message tells."""

        async def create(self, *args: Any, **kwargs: Any) -> Any:
            result = await super().create(*args, **kwargs)
            reasons.get().append(result.finish_reason)
            return result

        async def create_stream(self, *args: Any, **kwargs: Any) -> Any:
            async for part in super().create_stream(*args, **kwargs):
                if not isinstance(part, str):
                    reasons.get().append(part.finish_reason)
                yield part

    reasons: ContextVar[list[str]] = ContextVar("reasons")
    options: Any = {"stream_options": {"include_usage": True}} if stream else {}
    model = Client(model="m", base_url=CLOSED, api_key="k", max_retries=0, model_info=info, **options)
    tool = Calculator(calculate, TOOL["function"]["description"], "calculator")

    async def run(question: str) -> Seen:
        reasons.set([])
        agent = AssistantAgent(  # it holds its conversation
            "solver",
            model,
            tools=[tool],
            system_message=SYSTEM,
            max_tool_iterations=4,
            model_client_stream=stream,
        )
        result = await agent.run(task=question)
        calls = [c for m in result.messages if m.type == "ToolCallRequestEvent" for c in m.content]
        usages = [m.models_usage for m in result.messages if m.models_usage]
        return Seen(
            result.messages[-1].content,
            [{"function_calls": "tool_calls"}.get(reason, reason) for reason in reasons.get()],
            [(c.name, json.loads(c.arguments)) for c in calls],
            (sum(u.prompt_tokens for u in usages), sum(u.completion_tokens for u in usages)),
        )

    return run


MAKERS: dict[str, Callable[[], Run]] = {
    "openai_sdk": make_openai_sdk,
    "openai_sdk streamed": partial(make_openai_sdk, stream=True),
    "openai_sdk on responses": make_openai_sdk_responses,
    "langgraph": make_langgraph,
    "langgraph streamed": partial(make_langgraph, stream_mode="messages", stream_usage=True),
    "langgraph on responses": partial(make_langgraph, use_responses_api=True),
    "agentscope": make_agentscope,
    "agentscope whole": partial(make_agentscope, stream=False),
    "openai_agents": make_openai_agents,
    "openai_agents streamed": partial(make_openai_agents, stream=True),
    "openai_agents on chat": partial(make_openai_agents, chat=True),
    "openai_agents on chat streamed": partial(make_openai_agents, chat=True, stream=True),
    "autogen": make_autogen,
    "autogen streamed": partial(make_autogen, stream=True),
}
