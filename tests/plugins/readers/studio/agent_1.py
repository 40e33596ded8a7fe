"""A conversation with an agent of AgentScope 1, sent to Studio: ``agent_1.py MODEL_URL STUDIO_URL [TRACING_URL]``.

With a TRACING_URL, Studio receives the messages of the conversation, but no spans.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import agentscope
from agentscope.agent import ReActAgent, UserAgent, UserInputBase, UserInputData
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import TextBlock
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit, ToolResponse


class Scripted(UserInputBase):
    """A user who asks these questions."""

    def __init__(self, *questions: str) -> None:
        self._questions = list(questions)

    async def __call__(self, *args: Any, **kwargs: Any) -> UserInputData:
        return UserInputData(blocks_input=[TextBlock(type="text", text=self._questions.pop(0))])


def look(place: str) -> ToolResponse:
    """Look what grows somewhere.

    Args:
        place (str): Where to look.
    """
    return ToolResponse(content=[TextBlock(type="text", text="oaks")])


async def main(model_url: str, studio_url: str, tracing_url: str | None = None) -> None:
    """Ask twice."""
    name = "without spans" if tracing_url else "with spans"
    agentscope.init(project="forest", name=name, studio_url=studio_url, tracing_url=tracing_url)
    UserAgent.override_class_input_method(Scripted("What grows in the woods?", "How old do they get?"))
    tools = Toolkit()
    tools.register_tool_function(look)
    guide = ReActAgent(
        name="guide",
        sys_prompt="Be brief.",
        model=OpenAIChatModel("m", api_key="k", stream=False, client_kwargs={"base_url": model_url}),
        formatter=OpenAIChatFormatter(),
        toolkit=tools,
        memory=InMemoryMemory(),
    )
    visitor = UserAgent("visitor")
    for _ in range(2):
        await guide(await visitor())


asyncio.run(main(*sys.argv[1:]))
