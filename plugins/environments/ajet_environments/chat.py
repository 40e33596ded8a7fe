"""The workflow `chat`: the model answers a task, and may call tools before."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from pydantic import Field, PrivateAttr, field_validator

from ajet import Task, Tuner, WorkflowOutput, WorkflowPlugin
from ajet_environments.marks import kill_marked, new_mark
from ajet_environments.tools import McpTools, Tools


class ChatWorkflow(WorkflowPlugin):
    """Asks the model the task's question, and calls the tools that it asks for, until it answers.

    The answer is the response, for a judge of yours.
    """

    name = "chat"

    tools: tuple[McpTools, ...] = Field(
        (),
        description="MCP servers whose tools it may call: {type: mcp, command: […]} or {type: mcp, url: …}, or several.",
    )
    system: str = Field("", description="The system prompt.")
    calls: int = Field(
        10, ge=1, description="Maximum calls of the model; the last one's answer is the response."
    )
    _mark: str = PrivateAttr("")

    @field_validator("tools", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, Mapping | McpTools) else given

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
        import httpx

        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(each.opened(self._mark)) for each in self.tools]
            functions = [function for tools in opened for function in tools.functions]
            headers = {"authorization": f"Bearer {tuner.api_key}"}
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=tuner.base_url, headers=headers, timeout=None)
            )
            messages = [{"role": "system", "content": self.system}] if self.system else []
            messages += [dict(message) for message in task.messages] or [
                {"role": "user", "content": task.query}
            ]
            content = ""
            for _ in range(self.calls):
                body = {
                    "model": "policy",
                    "messages": messages,
                    **({"tools": functions} if functions else {}),
                }
                answer = (await client.post("/chat/completions", json=body)).raise_for_status().json()
                message = answer["choices"][0]["message"]
                content = message.get("content") or ""
                messages.append(message)
                if not message.get("tool_calls"):
                    break
                for call in message["tool_calls"]:
                    result = await _called(opened, call["function"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return WorkflowOutput(response=content)


async def _called(opened: list[Tools], function: Mapping[str, Any]) -> str:
    """What a tool says to a call of the model; what is wrong with the call, for the model to read."""
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        return f"Error: the arguments are not JSON ({error})."
    for tools in opened:
        if function["name"] in tools.names:
            return await tools.call(function["name"], arguments)
    return f"Error: there is no tool {function['name']!r}."
