"""An assistant that runs errands in a user's apps, written with AgentScope 2; the apps are an environment service."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from agentscope.agent import Agent, ReActConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit

from ajet.environments import Environment, environment

SYSTEM = "Run the errand with the apps."
ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="That is what it is for.")
MAX_TURNS = 6

credential = OpenAICredential(
    api_key=os.environ.get("OPENAI_API_KEY", "unset"), base_url=os.environ.get("OPENAI_BASE_URL")
)
model = OpenAIChatModel(credential=credential, model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"))


def tool(env: Environment) -> Callable[[str], Awaitable[str]]:
    """The apps of one episode, as a function for the agent."""

    async def api(call: str) -> str:
        """Call an app; help lists the calls."""
        if env.state.is_terminated:
            return "error: too many calls"
        state = await env.step({"role": "assistant", "content": call})
        return str(state.messages[-1]["content"])

    return api


async def run(task: Any) -> str:
    """The assistant's last message after the errand of ``task``; the environment scores the errand."""
    async with environment(task) as env:
        toolkit = Toolkit(tools=[FunctionTool(tool(env), permission=ALLOWED)])
        assistant = Agent("assistant", SYSTEM, model, toolkit, react_config=ReActConfig(max_iters=MAX_TURNS))
        message = await assistant.reply(UserMsg("user", str(env.state.messages[-1]["content"])))
        return message.get_text_content() or ""
