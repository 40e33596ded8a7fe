"""Environments of NeMo Gym: its resources server, its agent and its model server, in this process instead of three.

The library's servers call each other by name, over HTTP. Each episode has its own, on free ports of 127.0.0.1; the model server is the
library's for OpenAI's API.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import resources_servers
import uvicorn
import yaml
from nemo_gym.server_utils import (
    GlobalAIOHTTPAsyncClientConfig,
    ServerClient,
    SimpleServer,
    get_response_json,
    is_global_aiohttp_client_setup,
    set_global_aiohttp_client,
)
from omegaconf import OmegaConf

ROOT = Path(next(iter(resources_servers.__path__))).parent
"""The folder that paths of the library's configurations are relative to."""
POLICY, JUDGE = "policy_model", "judge_model"
"""Names of the model servers in the library's configurations."""


class Library:
    """``config`` is one of the library's YAML files, such as ``resources_servers/calendar/configs/calendar.yaml``, with one agent.
    ``data`` is a file of rows; default: the first of the agent's data sets that is there."""

    def __init__(self, config: str, data: str = "") -> None:
        self._servers: dict[str, Any] = yaml.safe_load((ROOT / config).read_text())
        agents = [name for name, server in self._servers.items() if "responses_api_agents" in server]
        if len(agents) != 1:
            raise ValueError(f"{config} has {len(agents)} agents; one is needed")
        self._agent = agents[0]
        listed = next(iter(self._servers[self._agent]["responses_api_agents"].values())).get("datasets", ())
        files = [Path(data)] if data else [ROOT / each["jsonl_fpath"] for each in listed]
        if not (present := [file for file in files if file.is_file()]):
            raise ValueError(
                f"none of its data sets is here ({', '.join(map(str, files))}); name a file in `data`"
            )
        self._rows = [json.loads(line) for line in present[0].read_text().splitlines() if line.strip()]

    def tasks(self, count: int) -> list[dict[str, Any]]:
        """The first rows."""
        return [
            {"id": str(index), "query": _asked(row), "metadata": {}}
            for index, row in enumerate(self._rows[:count])
        ]

    async def run(self, index: int, model: dict[str, str], judge: dict[str, str] | None) -> dict[str, Any]:
        """One episode of the library's agent. The reward is what the resources server says of it."""
        if not is_global_aiohttp_client_setup():
            set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
        async with AsyncExitStack() as stack:
            client = await self._open(stack, model, judge)
            answer = await client.post(self._agent, "/run", json=self._rows[index])
            if not answer.ok:
                raise RuntimeError(f"its agent: {(await answer.text())[-1000:]}")
            outcome = await get_response_json(answer)
        if outcome.get("mask_sample"):
            return {
                "ok": False,
                "error": f"the library says that the episode is not valid: {outcome.get('failure_kind')}",
            }
        numbers = {
            name: float(value)
            for name, value in outcome.items()
            if isinstance(value, int | float) and name != "reward"
        }
        return {
            "ok": True,
            "reward": float(outcome["reward"]),
            "metrics": numbers,
            "response": _said(outcome["response"]),
            "error": "",
        }

    async def _open(self, stack: AsyncExitStack, model: Any, judge: Any) -> ServerClient:
        """A client of servers that run until the stack ends."""
        configs: dict[str, Any] = json.loads(json.dumps(self._servers))
        configs[POLICY] = _model_server(model)
        if judge:
            configs[JUDGE] = _model_server(judge)
        listening = {}
        for name, server in configs.items():
            ((kind, inner),) = server.items()
            ((_, settings),) = inner.items()
            listening[name] = stack.enter_context(socket.socket())
            listening[name].bind(("127.0.0.1", 0))
            settings |= {"host": "127.0.0.1", "port": listening[name].getsockname()[1], "name": name}
            if kind == "resources_servers" and "judge_model_server" in settings:
                if not judge:
                    raise ValueError(
                        f"{name} asks a model for its reward; name a frozen target in workflow.judge"
                    )
                settings["judge_model_server"]["name"] = JUDGE
        head = {"host": "127.0.0.1", "port": 0}
        client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(configs))
        for name, server in configs.items():
            ((kind, inner),) = server.items()
            ((which, settings),) = inner.items()
            folder = str(ROOT / kind / which)  # where the library starts it
            if kind == "resources_servers" and folder not in sys.path:
                sys.path.append(folder)
            made = _class(f"{kind}.{which}.app")
            config = made.model_fields["config"].annotation.model_validate(settings)
            opened = made(config=config, server_client=client)
            app = opened.setup_webserver()
            opened.setup_exception_middleware(app)  # it tells what went wrong
            await _serve(stack, app, listening[name])
        return client


def _model_server(endpoint: Mapping[str, str]) -> dict[str, Any]:
    settings = {
        "entrypoint": "app.py",
        "openai_base_url": endpoint["base_url"],
        "openai_api_key": endpoint["api_key"],
        "openai_model": endpoint["name"],
    }
    return {"responses_api_models": {"openai_model": settings}}


def _class(module: str) -> Any:
    """The server class that a module defines."""
    loaded = importlib.import_module(module)
    defined = [
        each
        for _, each in inspect.getmembers(loaded, inspect.isclass)
        if issubclass(each, SimpleServer) and each.__module__ == module
    ]
    if len(defined) != 1:
        raise ValueError(f"{module} defines {len(defined)} servers; one is needed")
    return defined[0]


async def _serve(stack: AsyncExitStack, app: Any, listening: socket.socket) -> None:
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    serving = asyncio.ensure_future(server.serve([listening]))

    async def stop() -> None:
        server.should_exit = server.force_exit = True
        await asyncio.wait([serving], timeout=5)

    stack.push_async_callback(stop)
    while not server.started:
        if serving.done():
            raise RuntimeError("a server of the environment did not start")
        await asyncio.sleep(0.01)


def _asked(row: Mapping[str, Any]) -> str:
    given = row["responses_create_params"].get("input") or ""
    return given if isinstance(given, str) else str(given[-1].get("content", ""))


def _said(response: Mapping[str, Any]) -> str:
    """The text of the last message of an answer of the Responses API."""
    messages = [each for each in response["output"] if each.get("type") == "message"]
    content = messages[-1]["content"] if messages else ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
