"""What ``--from`` names: an agent that is already there, and what a job needs to run it."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet.interfaces.workflow import make_workflow
from ajet.job.layers import import_from_here
from ajet.job.parts import is_command, load_named
from ajet.plugins import load_plugins
from ajet_projects.project import Agent

NEEDED = (
    "Needed is a function run(task), async or not, that returns the answer, a class with a method execute(task), or a compiled "
    "LangGraph graph whose state has messages."
)


def find(spec: str, folder: Path) -> Agent:
    """The agent that ``file.py:Name``, ``pkg.module:Name`` or ``cmd:COMMAND`` names, for a project in this folder. Raises
    ConfigError that says what was found there and what is needed."""
    if is_command(spec):
        here = Path(os.path.relpath(Path.cwd(), folder)).as_posix()
        workdir = f"  workdir: {json.dumps(here)}      # where the command runs\n"
        # A text of JSON is one of YAML, whatever the command has in it.
        return Agent(f"{spec} (a command)", json.dumps(spec, ensure_ascii=False), values={"workdir": workdir})
    import_from_here()
    file, _, name = spec.rpartition(":")
    if not file:
        raise _nameless(spec)
    agent = load_named(spec, "--from")
    is_module = not file.endswith(".py")
    path = spec if is_module else f"{Path(os.path.relpath(file, folder)).as_posix()}:{name}"
    wrapped = _wrapped(agent)
    if wrapped is None:
        _check(agent, spec)
    parts = _parts(agent)
    graphs = [part for part in parts if "langgraph" in _packages(part)]
    agents = [part for part in parts if _is_of_agents_sdk(part)]
    extra = ",langgraph" if graphs else ",openai-agents" if agents else ""
    tools = any("tools" in getattr(graph, "nodes", ()) for graph in graphs) or any(a.tools for a in agents)
    return Agent(
        f"{spec} ({described(agent)})",
        "workflow.py:run" if wrapped else path,
        install=(f"ajet[local{extra}]",),
        written={"workflow.py": "workflow.py"} if wrapped else {},
        values={"spec": spec, **_loading(path, is_module), **wrapped} if wrapped else {},
        tools=tools,
        is_module=is_module,
    )


def described(agent: Any) -> str:
    """An object in a few words: ``an async function``, ``a CompiledStateGraph of langgraph``."""
    if inspect.isclass(agent):
        return "a class"
    if inspect.isroutine(agent):
        return "an async function" if inspect.iscoroutinefunction(agent) else "a function"
    kind = type(agent)
    article = "an" if kind.__name__[0] in "AEIOUaeiou" else "a"
    return f"{article} {kind.__name__} of {kind.__module__.partition('.')[0]}"


def _wrapped(agent: Any) -> dict[str, str] | None:
    """How workflow.py calls what takes the text of a task in place of the task; None for anything else."""
    if _is_of_agents_sdk(agent):
        call = "(await Runner.run(agent, task.query)).final_output"
        return {"import": "from agents import Runner\n", "def": "async def", "call": call}
    if not (inspect.isroutine(agent) and _takes_text(agent)):
        return None
    is_async = inspect.iscoroutinefunction(agent)
    call = "await agent(task.query)" if is_async else "agent(task.query)"
    return {"import": "", "def": "async def" if is_async else "def", "call": call}


def _is_of_agents_sdk(agent: Any) -> bool:
    """Whether it is an agent of the OpenAI Agents SDK."""
    sdk: Any = sys.modules.get("agents")
    return hasattr(sdk, "Runner") and isinstance(agent, sdk.Agent)


def _parts(agent: Any) -> list[Any]:
    """What an agent consists of: itself, or for a function or a class all that its module has, such as the graph that it invokes."""
    module = sys.modules.get(getattr(agent, "__module__", None) or "")
    return list(vars(module).values()) if module and not _packages(agent) else [agent]


def _packages(agent: Any) -> set[str]:
    """The packages whose classes an object has; none for a class or a function."""
    bases = () if inspect.isclass(agent) or inspect.isroutine(agent) else type(agent).__mro__
    return {base.__module__.partition(".")[0] for base in bases}


def _takes_text(function: Callable[..., Any]) -> bool:
    """Whether a function says that its one required argument is a text."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # written in C: it has no signature
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return required == parameters[:1] and bool(required) and required[0].annotation in (str, "str")


def _loading(path: str, is_module: bool) -> dict[str, str]:
    """How workflow.py finds the agent."""
    quoted = json.dumps(path, ensure_ascii=False)
    if is_module:
        return {"paths": "", "path": quoted}
    return {"paths": "from pathlib import Path\n\n", "path": f"str(Path(__file__).parent / {quoted})"}


def _check(agent: Any, spec: str) -> None:
    """Raise ConfigError if the object can be no workflow."""
    where, what = f"--from {spec}", f"is {described(agent)}"
    packages = _packages(agent)
    if packages & {"agentscope", "autogen_agentchat"}:
        raise ConfigError(
            where,
            f"{what}, which keeps its conversation, so each episode needs a new one. Write a function run(task) that makes one, "
            "asks it task.query and returns the text of its answer, and name that.",
        )
    try:
        make_workflow(agent, spec, load_plugins().manager.hook)
    except ConfigError as error:
        graph = "langgraph" in packages and importlib.util.find_spec("ajet_langgraph") is None
        needed = "Graphs are workflows with pip install 'ajet[langgraph]'." if graph else NEEDED
        raise ConfigError(where, f"{what}: {error.text} {needed}") from None


def _nameless(module: str) -> ConfigError:
    """The error for a module without the name of an object in it, with those that could be meant."""
    try:
        members = load_named(f"{module}:__dict__", "--from")
    except ConfigError as error:
        return ConfigError(f"--from {module}", error.text)
    here = members["__name__"]
    names = [
        name
        for name, value in members.items()
        if not name.startswith("_")
        and _fits(value)
        and getattr(value, "__module__", here) in (here, type(value).__module__)
    ]
    # What takes a text is often a tool.
    names.sort(key=lambda name: inspect.isroutine(members[name]) and _takes_text(members[name]))
    there = f"It has {', '.join(names)}" if names else f"It has none that can be a workflow. {NEEDED} Then"
    return ConfigError(
        f"--from {module}", f"names no object in it. {there}: --from {module}:{(names or ['run'])[0]}."
    )


def _fits(value: Any) -> bool:
    try:
        if _wrapped(value) is None:
            _check(value, "")
    except ConfigError:
        return False
    return True
