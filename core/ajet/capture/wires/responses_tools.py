"""Tools of OpenAI Responses, and their calls as items. To a model, every tool is a function.

===================  ==========================================  ================================================
type of tool         the function of the model                   a call
===================  ==========================================  ================================================
``function``         itself                                      ``function_call``
``custom``           one text, ``input``                         ``custom_tool_call``, whose input is the text
``namespace``        ``NAMESPACE.NAME`` for each of its tools    as above, with ``namespace``
``local_shell``      fields of the action                        ``local_shell_call``
``tool_search``      its own parameters, if the client runs it   ``tool_search_call``
===================  ==========================================  ================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ajet.capture.wires.fields import described, json_text
from ajet.interfaces.wire import Faults, mapping, objects, text

_FUNCTION = {"type", "name", "description", "parameters", "strict", "defer_loading"}
_CUSTOM = {"type", "name", "description", "format", "defer_loading"}
_NAMESPACE = {"type", "name", "description", "tools"}
_SEARCH = {"type", "description", "execution", "parameters"}
_HOSTED = {
    *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
    *("file_search", "code_interpreter", "image_generation", "mcp", "programmatic_tool_calling"),
}
_PLAIN = "functions"
"""The namespace in which functions without one are."""
_SHELL = {
    "command": {
        "type": "array",
        "items": {"type": "string"},
        "description": "The program and its arguments.",
    },
    "working_directory": {"type": "string"},
    "timeout_ms": {"type": "integer"},
}
_RAW = ".raw"
"""The end of the id of a call whose arguments do not have the form of its tool: the item holds them as text, and so they
come back unchanged."""
CALLS = ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "tool_search_output")

Kind = Literal["function", "custom", "local_shell", "tool_search"]
_PREFIXES: Mapping[Kind, str] = {
    "function": "fc",
    "custom": "ctc",
    "local_shell": "lsh",
    "tool_search": "tsc",
}


@dataclass(frozen=True, slots=True)
class Own:
    """A tool as the client knows it."""

    kind: Kind
    name: str
    namespace: str | None = None


@dataclass(slots=True)
class ResponsesTools:
    """The tools of a request. ``offered`` and ``told`` are those of `ChatRequest`, ``own`` is the client's view by their names."""

    offered: list[Mapping[str, Any]] = field(default_factory=list)
    told: list[Mapping[str, Any]] = field(default_factory=list)
    own: dict[str, Own] = field(default_factory=dict)

    def offer(self, tools: Any, where: str, faults: Faults) -> None:
        """Add tools that the prompt lists. Those that only a search loads come later, with its output."""
        self.offered += self._read(tools, where, faults, deferred=False)

    def tell(self, tools: Any, where: str, faults: Faults) -> str:
        """Add tools that a message describes; return the description."""
        added = list(self._read(tools, where, faults, deferred=True))
        self.told += added
        return described(added)

    def _read(self, tools: Any, where: str, faults: Faults, deferred: bool) -> Iterator[Mapping[str, Any]]:
        """Tools in the chat form."""
        for index, tool in enumerate(objects(tools, where)):
            at = f"{where}[{index}]"
            if tool.get("type") == "namespace":
                yield from self._namespace(tool, at, faults, deferred)
            else:
                yield from self._tool(tool, at, faults, deferred)

    def _namespace(
        self, tool: Mapping[str, Any], at: str, faults: Faults, deferred: bool
    ) -> Iterator[Mapping[str, Any]]:
        """The tools of a namespace, whose description stands before that of its first tool."""
        faults.parameters(tool, _NAMESPACE, f"{at}.")
        name, about = text(tool, "name", f"{at}."), tool.get("description") or ""
        for index, inner in enumerate(objects(tool.get("tools"), f"{at}.tools")):
            for offered in self._tool(inner, f"{at}.tools[{index}]", faults, deferred, name):
                if about:
                    function = offered["function"]
                    said = f"{about}\n\n{function.get('description') or ''}".rstrip()
                    offered, about = {**offered, "function": {**function, "description": said}}, ""
                yield offered

    def _tool(
        self, tool: Mapping[str, Any], at: str, faults: Faults, deferred: bool, namespace: str | None = None
    ) -> Iterator[Mapping[str, Any]]:
        kind = tool.get("type")
        if kind == "function":
            faults.parameters(tool, _FUNCTION, f"{at}.")
            function = {
                k: tool[k] for k in ("description", "parameters", "strict") if tool.get(k) is not None
            }
            offered = self._own(Own("function", text(tool, "name", f"{at}."), namespace), function)
        elif kind == "custom":
            faults.parameters(tool, _CUSTOM, f"{at}.")
            function = {k: tool[k] for k in ("description",) if tool.get(k) is not None}
            function["parameters"] = _one("input", _text_schema(mapping(tool, "format"), at, faults))
            offered = self._own(Own("custom", text(tool, "name", f"{at}."), namespace), function)
        elif kind == "local_shell":
            function = {
                "description": "Runs a command in a shell of this computer.",
                "parameters": {"type": "object", "properties": _SHELL, "required": ["command"]},
            }
            offered = self._own(Own("local_shell", "local_shell"), function)
        elif kind == "tool_search" and tool.get("execution") == "client":
            faults.parameters(tool, _SEARCH, f"{at}.")
            function = {k: tool[k] for k in ("description", "parameters") if tool.get(k) is not None}
            offered = self._own(Own("tool_search", "tool_search"), function)
        else:
            if str(kind) in _HOSTED or kind == "tool_search":
                faults.hosted(f"{at}.type", str(kind))
            else:
                faults.parameter(f"{at}.type", kind)
            return
        if deferred or not tool.get("defer_loading"):
            yield offered

    def _own(self, own: Own, function: Mapping[str, Any]) -> dict[str, Any]:
        name = chat_name(own.namespace, own.name)
        self.own[name] = own
        return {"type": "function", "function": {"name": name, **function}}


def chat_name(namespace: Any, name: str) -> str:
    """The name of a tool to the model."""
    return f"{namespace}.{name}" if namespace and namespace != _PLAIN else name


def _text_schema(wanted: Mapping[str, Any], at: str, faults: Faults) -> dict[str, Any]:
    """The schema of a text in some format. Nothing constrains the sampling: the model reads the grammar."""
    if wanted.get("type", "text") == "text":
        return {"type": "string"}
    if wanted["type"] != "grammar":
        faults.parameter(f"{at}.format.type", wanted["type"])
        return {"type": "string"}
    syntax, grammar = (text(wanted, name, f"{at}.format.") for name in ("syntax", "definition"))
    return {"type": "string", "description": f"Text of this grammar ({syntax}):\n{grammar}"}


def _one(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name]}


# --------------------------------------------------------------------------- calls as items


def call_of(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The call (chat completions form) that an item of `CALLS` is. Raises Refused."""
    kind, call_id = item["type"], text(item, "call_id", f"{where}.")
    is_raw = call_id.endswith(_RAW)
    if kind == "function_call":
        name, arguments = (text(item, key, f"{where}.") for key in ("name", "arguments"))
    elif kind == "custom_tool_call":
        name, said = (text(item, key, f"{where}.") for key in ("name", "input"))
        arguments = said if is_raw else json_text({"input": said}, f"{where}.input")
    elif kind == "local_shell_call":
        name = "local_shell"
        action = {key: value for key, value in mapping(item, "action").items() if value and key != "type"}
        command = action.get("command")
        is_raw = is_raw and isinstance(command, list) and len(command) == 1
        arguments = str(command[0]) if is_raw and command else json_text(action, f"{where}.action")
    else:
        name, given = "tool_search", item.get("arguments")
        arguments = given if isinstance(given, str) else json_text(given, f"{where}.arguments")
    return {
        "id": call_id.removesuffix(_RAW),
        "type": "function",
        "function": {"name": chat_name(item.get("namespace"), name), "arguments": arguments},
    }


def output_id(item: Mapping[str, Any], where: str) -> str:
    """The id of the call whose output an item of `OUTPUTS` is. Raises Refused."""
    key = "id" if item["type"] == "local_shell_call_output" and "call_id" not in item else "call_id"
    return text(item, key, f"{where}.").removesuffix(_RAW)


def item_of(call: Mapping[str, Any], own: Mapping[str, Own], reply_id: str, index: int) -> dict[str, Any]:
    """A call as the item of its tool, without a status."""
    function, call_id = call["function"], call["id"]
    tool = own.get(function["name"], Own("function", function["name"]))
    item: dict[str, Any] = {"id": f"{_PREFIXES[tool.kind]}_{reply_id}_{index}", "type": f"{tool.kind}_call"}
    arguments, value = function["arguments"], _loaded(function["arguments"])
    if tool.kind == "local_shell":
        fits = _is_action(value)
        action = value if fits else {"command": [arguments]}
        item["action"] = {"type": "exec", "env": {}, **action}
        return item | {"call_id": call_id if fits else call_id + _RAW}
    if tool.kind == "tool_search":
        given = value if isinstance(value, dict) else arguments
        return item | {"call_id": call_id, "execution": "client", "arguments": given}
    named = {"name": tool.name, **({"namespace": tool.namespace} if tool.namespace else {})}
    if tool.kind == "function":
        return item | {"call_id": call_id, **named, "arguments": arguments}
    fits = isinstance(value, dict) and value.keys() == {"input"} and isinstance(value["input"], str)
    item |= {"type": "custom_tool_call", "call_id": call_id if fits else call_id + _RAW, **named}
    return item | {"input": value["input"] if fits else arguments}


def _loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def _is_action(arguments: Any) -> bool:
    """Whether arguments come back from an action as they are."""
    fields = {*_SHELL, "env", "user"}
    if not isinstance(arguments, dict) or not arguments.keys() <= fields or not all(arguments.values()):
        return False
    command = arguments.get("command")
    return isinstance(command, list) and all(isinstance(word, str) for word in command)
