"""A game of Werewolf between agents of AgentScope 2: each player is an agent with its own memory."""

from __future__ import annotations

import os
from typing import Any

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from game import Game, briefing

credential = OpenAICredential(
    api_key=os.environ.get("OPENAI_API_KEY", "unset"), base_url=os.environ.get("OPENAI_BASE_URL")
)
model = OpenAIChatModel(
    credential=credential, model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"), stream=False
)


async def run(task: Any) -> dict[str, Any]:
    """The side that wins the game of the task, and what happened in it."""
    roles = task.metadata["roles"]
    players = {name: Agent(f"{role}-{name}", briefing(roles, name), model) for name, role in roles.items()}

    async def ask(name: str, text: str) -> str:
        answer = await players[name].reply(UserMsg("moderator", text))
        return answer.get_text_content() or ""

    game = Game(roles, ask, seed=task.id)
    return {"winner": await game.play(), "log": game.log}
