"""Tools of MCP servers: a session for each episode, closed at its end."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ajet import ConfigError
from ajet.interfaces.base import Settings
from ajet.interfaces.workflow import WorkflowFailed
from ajet_environments.marks import NAME, kill_marked, new_mark

INSTALL = "pip install 'ajet-plugin-environments[mcp]'"


class McpTools(Settings):
    """The tools of an MCP server: of a program that speaks over stdin and stdout, or at a URL."""

    type: Literal["mcp"] = "mcp"
    command: tuple[str, ...] = Field((), description="The server's program and its arguments.")
    url: str = Field("", description="Instead of a command: the address of a server, with streamable HTTP.")
    environment: dict[str, str] = Field(
        {}, description="Further environment variables of the program; no secrets."
    )

    @model_validator(mode="after")
    def _one_server(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("name either `command`, a list, or `url`")
        return self

    @asynccontextmanager
    async def opened(self, mark: str = "") -> AsyncIterator[Tools]:
        """The tools during a block, at whose end the session is closed and the program is gone. ``mark`` begins the mark of its
        processes. Raises WorkflowFailed if the server cannot be reached."""
        try:
            from mcp import ClientSession, StdioServerParameters
            from mcp.client.stdio import get_default_environment, stdio_client
            from mcp.client.streamable_http import streamable_http_client
        except ImportError as error:
            raise ConfigError("tools", f"they need the package mcp ({error}). {INSTALL}") from None
        mark += new_mark()
        ready = False
        with tempfile.TemporaryFile("w+") as said:
            try:
                if self.url:
                    transport: Any = streamable_http_client(self.url)
                else:
                    variables = {**get_default_environment(), **self.environment, NAME: mark}
                    program, *arguments = self.command
                    server = StdioServerParameters(command=program, args=arguments, env=variables)
                    transport = stdio_client(server, errlog=said)
                async with transport as streams, ClientSession(streams[0], streams[1]) as session:
                    await session.initialize()
                    listed = (await session.list_tools()).tools
                    ready = True
                    yield Tools(session, [each.model_dump(by_alias=True, mode="json") for each in listed])
            except Exception as error:
                inner = _innermost(error)  # mcp wraps also what the block raises
                if ready:
                    raise inner from None
                said.seek(0)
                cause = f"{type(inner).__name__}: {inner} {' '.join(said.read().split())[-300:]}".strip()
                raise WorkflowFailed(
                    "tools", f"{self.url or self.command[0]}: no MCP session: {cause}"
                ) from error
            finally:
                kill_marked(mark)


class Tools:
    """An open session."""

    def __init__(self, session: Any, listed: Sequence[Mapping[str, Any]]) -> None:
        self._session = session
        self.names = [each["name"] for each in listed]
        self.functions: list[dict[str, Any]] = [
            {
                "type": "function",
                "function": {
                    "name": each["name"],
                    "description": each.get("description") or "",
                    "parameters": each["inputSchema"],
                },
            }
            for each in listed
        ]
        """As chat completions take them in ``tools``."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool says; its errors, too, for the model to read."""
        result = await self._session.call_tool(name, dict(arguments))
        parts = [part.model_dump(by_alias=True, mode="json") for part in result.content]
        return "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in parts)


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
