"""The workflow `chat`: the model answers a task, and may call tools before; or an agent of the user's does, with these tools."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr, field_validator

from ajet import ConfigError, Task, Tuner, WorkflowOutput, WorkflowPlugin
from ajet.interfaces.base import CodePath
from ajet.interfaces.workflow import coerce_output, load_object
from ajet_environments.tools import McpTools, SessionTools, all_opened
from ajet_environments.workers import kill_marked, new_mark


class ChatWorkflow(WorkflowPlugin):
    """Asks the model the task's question, and calls the tools that it asks for, until it answers.

    The answer is the response, for a judge of yours. An ``agent`` of yours gets the same tools, and does as it likes.
    """

    name = "chat"

    tools: tuple[McpTools, ...] = Field(
        (),
        description="MCP servers whose tools it may call: {type: mcp, command: […]}, a URL, or several of these.",
    )
    agent: CodePath = Field(
        "",
        description="Instead of this loop: an agent of yours, file.py:name, an async function of (task, tuner, tools).",
    )
    workdir: Path | None = Field(
        None,
        description="Folder in which the programs of servers run; default: the folder of the job file.",
    )
    system: str = Field("", description="The system prompt.")
    calls: int = Field(
        10, ge=1, description="Maximum calls of the model; the last one's answer is the response."
    )
    _mark: str = PrivateAttr("")

    @field_validator("tools", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        several = given if isinstance(given, list | tuple) else (given,)
        return tuple({"url": each} if isinstance(each, str) else each for each in several)

    @field_validator("agent")
    @classmethod
    def _is_there(cls, agent: str) -> str:
        if agent and not inspect.iscoroutinefunction(load_object(agent, "agent")):
            raise ConfigError(f"agent {agent}", "write `async def` with the parameters task, tuner, tools.")
        return agent

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Ends the programs of servers, whose sessions end with their episodes, for good."""
        live = self.model_copy()
        live._mark = new_mark()
        try:
            yield live
        finally:
            kill_marked(live._mark)

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        """See `WorkflowPlugin.execute`. Raises WorkflowFailed if a server cannot be reached."""
        async with all_opened(self.tools, self._mark, self.workdir) as tools:
            if self.agent:
                return coerce_output(await load_object(self.agent, "agent")(task, tuner, tools))
            return WorkflowOutput(response=await self._answer(task, tuner, tools))

    async def _answer(self, task: Task, tuner: Tuner, tools: SessionTools) -> str:
        import httpx

        messages: list[Mapping[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": self.system})
        messages += task.messages or [{"role": "user", "content": task.query}]
        offered = {"tools": tools.functions} if tools.functions else {}
        headers = {"authorization": f"Bearer {tuner.api_key}"}
        content = ""
        async with httpx.AsyncClient(base_url=tuner.base_url, headers=headers, timeout=None) as client:
            for _ in range(self.calls):
                body = {"model": "policy", "messages": messages, **offered}
                answer = (await client.post("/chat/completions", json=body)).raise_for_status().json()
                message = answer["choices"][0]["message"]
                content = message.get("content") or ""
                messages.append(message)
                if not message.get("tool_calls"):
                    break
                messages += [await tools.answer(call) for call in message["tool_calls"]]
        return content
