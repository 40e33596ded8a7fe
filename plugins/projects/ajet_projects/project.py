"""What `ajet new` writes for an agent: one of its own, or one that is already there; and how templates are filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from ajet import ConfigError

TEMPLATES = Path(__file__).parent / "templates"
SHARED = ("README.md", "held_out.jsonl", "job.yaml", "judge.py", "tasks.jsonl", "test_judge.py")
"""The files of every project; each has a template of its name."""


@dataclass(frozen=True, slots=True)
class Agent:
    """What an agent is, and what its project needs for it."""

    what: str
    """In a sentence: ``an agent on LangGraph``."""
    workflow: str
    """As the job names it."""
    install: tuple[str, ...] = ("ajet[local]",)
    """For pip."""
    needs: tuple[str, ...] = ()
    """Top modules without which it does not run."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Further files of the project: path to template."""
    values: Mapping[str, str] = field(default_factory=dict)
    """What these templates need, by name."""
    tools: bool = False
    """Whether it offers its model tools."""
    max_tokens: int = 64
    """Of an answer: enough for a tool call. A small model rambles if it may."""
    is_module: bool = False
    """Whether the job names it as ``pkg.module:Name``, which is imported from the working directory."""

    @property
    def model(self) -> str:
        """The model that it begins with."""
        return "smollm2-tools" if self.tools else "smollm2"


KINDS = {
    "plain": ("an agent on the OpenAI SDK", "ajet[local,openai]", "openai"),
    "langgraph": ("an agent on LangGraph", "ajet[local,langgraph] langchain", "ajet_langgraph langchain"),
    "agentscope": ("an agent on AgentScope", "ajet[local,agentscope] agentscope>=2", "ajet_agentscope"),
    "openai-agents": (
        "an agent on the OpenAI Agents SDK",
        "ajet[local,openai-agents]",
        "ajet_openai_agents",
    ),
    "autogen": ("an agent on AutoGen", "ajet[local,autogen]", "ajet_autogen"),
    "command": ("an agent that is a program of its own", "ajet[local]", ""),
}
"""What ``--agent`` may name: what it is, what pip installs for it, and the top modules that this brings."""
WORKFLOWS = {"langgraph": "agent.py:graph", "command": "cmd:python agent.py"}
WITHOUT_TOOLS = ("plain", "command")


def own_agent(kind: str) -> Agent:
    """The agent of a new project."""
    what, install, needs = KINDS[kind]
    tools = kind not in WITHOUT_TOOLS
    return Agent(
        what,
        WORKFLOWS.get(kind, "agent.py:run"),
        tuple(install.split()),
        tuple(needs.split()),
        {"agent.py": f"agents/{kind}.py"} | ({"calculator.py": "calculator.py"} if tools else {}),
        tools=tools,
        max_tokens=64 if tools else 16,
    )


ROWS = {
    "agent.py": "the agent, which imports nothing of AgentJet",
    "calculator.py": "its tool",
    "workflow.py": "gives the agent the text of a task",
}
"""What the README says of further files."""


def files(name: str, folder: Path, agent: Agent) -> dict[str, str]:
    """The files of a project, by their paths in its folder."""
    own = "agent.py" in agent.written
    values = {
        "title": " ".join(re.split("[-_]", name)),
        "what": agent.what,
        "where": "In the folder from which Python imports the agent:"
        if agent.is_module
        else "In this folder:",
        "install": " ".join(f'"{each}"' for each in agent.install),
        "job": _job(folder, agent),
        "workflow": agent.workflow,
        "model": agent.model,
        "first": "SmolLM2 with 135 million parameters, which is fetched (93 MB)"
        + (
            " and taught to call tools, in five to twelve minutes."
            if agent.tools
            else ", in less than a minute."
        ),
        "max_tokens": str(agent.max_tokens),
        "rows": "".join(f"| `{path}` | {ROWS[path]} |\n" for path in agent.written),
        "change": "Change `agent.py`. For one that you have, `ajet new NAME --from my_agent.py:run` writes the rest."
        if own
        else "Yours stays as and where it is.",
        "workdir": "",
        **agent.values,
    }
    written = {path: path for path in SHARED} | dict(agent.written)
    return {path: filled(TEMPLATES / f"{file}.txt", values) for path, file in written.items()}


def next_command(folder: Path, agent: Agent) -> str:
    """What to type after the project is made, for a shell."""
    missing = [name for name in agent.needs if find_spec(name) is None]
    steps = [] if agent.is_module else [["cd", str(folder)]]
    steps += [["pip", "install", *agent.install]] if missing else []
    return " && ".join(map(shlex.join, [*steps, ["ajet", "check", _job(folder, agent)]]))


def _job(folder: Path, agent: Agent) -> str:
    return str(folder / "job.yaml") if agent.is_module else "job.yaml"


def filled(template: Path, values: Mapping[str, str]) -> str:
    """The text of a template, in which ``«name»`` stands for a value."""
    text = template.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"«{name}»", value)
    return text


def write_new(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, by their paths in a folder that is empty or does not exist yet. Raises ConfigError, which names ``--folder``."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} already exists; name a new folder with --folder.")
        for path, text in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--folder {folder} cannot be written ({error.strerror}).") from None
