"""Environments of OpenEnv: a server with typed actions and observations. The agent's loop is ours."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import uvicorn
from openenv.core import GenericEnvClient

_OURS = ("done", "reward", "metadata")
"""Fields of every observation that are not for the agent."""


class Library:
    """``app`` names the server's application, ``module:name``, which then runs in this process; or ``url`` is that of a server.
    ``reset`` are arguments of each reset. A task is a seed."""

    def __init__(
        self,
        app: str = "",
        url: str = "",
        system: str = "",
        steps: int = 10,
        reset: Mapping[str, Any] | None = None,
    ) -> None:
        if bool(app) == bool(url):
            raise ValueError("name either `app`, module:name, or `url`")
        module, _, name = app.partition(":")
        self._app = getattr(importlib.import_module(module), name) if app else None
        self._url = url
        self._system = system
        self._steps = steps
        self._reset = reset or {}

    def tasks(self, count: int) -> list[dict[str, Any]]:
        """As many seeds."""
        return [{"id": f"seed-{seed}", "query": "", "metadata": {}} for seed in range(count)]

    async def run(self, index: int, model: dict[str, str], judge: dict[str, str] | None) -> dict[str, Any]:
        """One episode: the model acts until the environment is done, or after ``steps`` actions. The reward is the sum of those of
        all observations."""
        async with self._served() as url, GenericEnvClient(base_url=url) as environment:
            actions = await _actions(url, environment)
            async with openai.AsyncOpenAI(
                base_url=model["base_url"], api_key=model["api_key"], timeout=None
            ) as client:
                return await self._play(environment, actions, client, model["name"], index)

    async def _play(
        self, environment: Any, actions: Actions, client: Any, model: str, seed: int
    ) -> dict[str, Any]:
        result = await environment.reset(seed=seed, **self._reset)
        messages: list[Any] = [{"role": "system", "content": self._system}] if self._system else []
        messages.append({"role": "user", "content": shown(result.observation)})
        rewards: list[float] = []
        said = ""
        while not result.done and len(rewards) < self._steps:
            tools = {"tools": actions.tools} if actions.tools else {}
            choice = (await client.chat.completions.create(model=model, messages=messages, **tools)).choices[
                0
            ]
            said = choice.message.content or ""
            messages.append(choice.message.model_dump(exclude_none=True))
            for call, action in actions.of(choice.message):
                if action is None:
                    answer = "not a call of the tools"
                elif result.done or len(rewards) >= self._steps:
                    answer = "not done: the episode has ended"
                else:
                    result = await environment.step(action)
                    rewards.append(float(result.reward or 0.0))
                    answer = shown(result.observation)
                role = {"role": "tool", "tool_call_id": call} if call else {"role": "user"}
                messages.append({**role, "content": answer})
            if not actions.of(choice.message):
                break
        numbers = numbers_of(result.observation)
        return {
            "ok": bool(rewards),
            "reward": sum(rewards),
            "metrics": {**numbers, "steps": float(len(rewards))},
            "response": said,
            "error": "" if rewards else "the agent took no action",
        }

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[str]:
        """The address of the server while an episode runs."""
        if self._app is None:
            yield self._url
            return
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            server = uvicorn.Server(uvicorn.Config(self._app, log_level="warning", lifespan="on"))
            serving = asyncio.ensure_future(server.serve([listening]))
            try:
                while not server.started:
                    if serving.done():
                        raise RuntimeError("the environment's application did not start")
                    await asyncio.sleep(0.01)
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                server.should_exit = True
                await asyncio.wait([serving], timeout=5)


class Actions:
    """How what a model says becomes actions: by tools of the environment's own, by its text, if that is all that an action has, or by
    one tool whose arguments are an action."""

    def __init__(self, tools: list[dict[str, Any]], text: str = "", own: bool = False) -> None:
        self.tools = tools
        self._text = text
        self._own = own

    def of(self, message: Any) -> list[tuple[str, dict[str, Any] | None]]:
        """The actions in an answer, with the ids of their calls; None is what cannot be read."""
        if self._text:
            return [("", {self._text: message.content or ""})]
        return [(call.id, self._called(call.function)) for call in message.tool_calls or ()]

    def _called(self, function: Any) -> dict[str, Any] | None:
        try:
            arguments = json.loads(function.arguments or "{}")
        except ValueError:
            return None
        if not isinstance(arguments, dict):
            return None
        if self._own:
            return {"type": "call_tool", "tool_name": function.name, "arguments": arguments}
        return arguments


async def _actions(url: str, environment: Any) -> Actions:
    async with httpx.AsyncClient() as client:
        schema = (await client.get(f"{url}/schema")).raise_for_status().json()["action"]
    fields = {name: field for name, field in schema["properties"].items() if name != "metadata"}
    if {"tool_name", "arguments"} <= fields.keys():  # of an environment whose actions are MCP's
        listed = (await environment.step({"type": "list_tools"})).observation
        tools = [
            _tool(tool["name"], tool.get("description", ""), tool["input_schema"]) for tool in listed["tools"]
        ]
        return Actions(tools, own=True)
    required = schema.get("required") or list(fields)
    if len(required) == 1 and fields[required[0]].get("type") == "string":
        return Actions([], text=required[0])
    parameters = {**schema, "properties": fields}
    return Actions([_tool("act", schema.get("description", "Act in the environment."), parameters)])


def _tool(name: str, description: str, parameters: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def shown(observation: Any) -> str:
    """An observation as the agent reads it: its text if it has nothing else, else JSON."""
    if not isinstance(observation, Mapping):
        return str(observation)
    fields = {
        name: value for name, value in observation.items() if name not in _OURS and value not in (None, {})
    }
    texts = list(fields.values())
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else json.dumps(fields)


def numbers_of(observation: Any) -> dict[str, float]:
    """The numbers in an observation, by name."""
    fields = observation if isinstance(observation, Mapping) else {}
    return {
        name: float(value)
        for name, value in fields.items()
        if isinstance(value, int | float) and name not in _OURS
    }
