"""Tools of MCP servers: a session for each episode, closed at its end."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ajet import ConfigError
from ajet.interfaces.base import Settings
from ajet.interfaces.service import own_python
from ajet.interfaces.workflow import WorkflowFailed
from ajet_environments.workers import NAME, kill_marked, new_mark

_OF_THE_CALL = (-32601, -32602, -32603)
"""Errors of JSON-RPC that a server answers a call with; with others the session has ended."""
MOST_PAGES = 100
"""Pages of a server's list of tools that are read."""
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
    async def opened(self, mark: str = "", workdir: Path | None = None) -> AsyncIterator[SessionTools]:
        """The tools during a block, at whose end the session is closed and the program is gone. ``mark`` begins the mark of its
        processes; ``workdir`` is the folder in which the program runs. Raises WorkflowFailed if the server cannot be reached."""
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
                    server = StdioServerParameters(
                        command=own_python(program), args=arguments, env=variables, cwd=workdir
                    )
                    transport = stdio_client(server, errlog=said)
                async with transport as streams, ClientSession(streams[0], streams[1]) as session:
                    await session.initialize()
                    tools = SessionTools()
                    tools.add(session, await _listed(session))
                    ready = True
                    yield tools
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


@asynccontextmanager
async def all_opened(
    servers: Sequence[McpTools], mark: str = "", workdir: Path | None = None
) -> AsyncIterator[SessionTools]:
    """The tools of several servers together. Raises WorkflowFailed if a server cannot be reached, or two have a tool of one name."""
    together = SessionTools()
    async with AsyncExitStack() as stack:
        for server in servers:
            together.join(await stack.enter_async_context(server.opened(mark, workdir)))
        yield together


class SessionTools:
    """The tools of open sessions."""

    def __init__(self) -> None:
        self.functions: list[dict[str, Any]] = []
        """As chat completions take them in ``tools``."""
        self._sessions: dict[str, Any] = {}
        """By the name of the tool."""

    @property
    def names(self) -> list[str]:
        """Those of the tools."""
        return list(self._sessions)

    def add(self, session: Any, listed: Sequence[Mapping[str, Any]]) -> None:
        """Add the tools that a session lists."""
        self._sessions |= dict.fromkeys((each["name"] for each in listed), session)
        self.functions += [
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

    def join(self, others: SessionTools) -> None:
        """Add the tools of other sessions. Raises WorkflowFailed if they have a tool of the same name."""
        if both := sorted(self._sessions.keys() & others._sessions.keys()):
            raise WorkflowFailed("tools", f"two MCP servers have a tool {both[0]!r}; leave one of them out")
        self._sessions |= others._sessions
        self.functions += others.functions

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool says; its errors, too, for the model to read."""
        if name not in self._sessions:
            return f"Error: there is no tool {name!r}."
        from mcp import McpError

        try:
            result = await self._sessions[name].call_tool(name, dict(arguments))
        except McpError as error:
            if error.error.code not in _OF_THE_CALL:
                raise
            return f"Error: {error.error.message}"
        parts = [part.model_dump(by_alias=True, mode="json") for part in result.content]
        return "\n".join(map(_said, parts))

    async def answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """The message that answers one of an assistant message's ``tool_calls``; it says what is wrong with the call, too."""
        try:
            arguments = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            said = await self.call(call["function"]["name"], arguments)
        else:
            said = "Error: the arguments are not a JSON object."
        return {"role": "tool", "tool_call_id": call["id"], "content": said}


async def _listed(session: Any) -> list[dict[str, Any]]:
    """All tools of a server, which may list them on several pages."""
    found: list[dict[str, Any]] = []
    cursor = None
    for _ in range(MOST_PAGES):
        page = await session.list_tools(cursor=cursor)
        found += [tool.model_dump(by_alias=True, mode="json") for tool in page.tools]
        cursor = page.nextCursor
        if not cursor:
            return found
    raise WorkflowFailed("tools", f"the MCP server lists its tools on more than {MOST_PAGES} pages")


def _said(part: Mapping[str, Any]) -> str:
    """What a part of a tool's result says: its text, also that of a resource, or where a resource is."""
    whole = part.get("resource") or part
    return (
        str(whole.get("text") or whole.get("uri") or f"[{part['type']}]")
        if part["type"] != "text"
        else part["text"]
    )


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
