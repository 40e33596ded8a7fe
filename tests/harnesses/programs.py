"""The programs of examples/coding_agents: how each is installed, and what a scripted model says to it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.matrix import ROOT, install

RECIPES = ROOT / "examples" / "coding_agents"
LONGEST = 1800.0
"""Seconds that an installation by npm may take."""
CACHE = ROOT / ".cache" / "harnesses"
_HEAD = re.compile(
    r"# (?P<title>.+?) (?P<version>[\d.]+)(?:, Python (?P<python>[\d.]+))?: (?P<tool>pip|npm) install (?P<what>.+)"
)


@dataclass(frozen=True)
class Program:
    """What a program's own tools are called, and which API it speaks."""

    api: str
    tool: str = ""
    """Its tool that runs shell commands; "" if it has none."""
    argument: str = "command"
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the tool."""
    text: str = ""
    """An answer with the content of the file in the place of COMMAND, for a program that edits files and runs no commands."""
    result: str = "<tool_response>"
    """What a prompt contains after the command has run."""
    done: str = ""
    """The command that ends the work; "" if a text does."""
    side: Mapping[str, str] = field(default_factory=dict)
    """Answers of its side calls, by a text of their prompts."""
    side_calls: int = 0
    """How many it makes in an episode of the recipe."""
    trains: Mapping[str, object] | None = None
    """Variables with which two steps are trained, too: they limit the answers of a model that does not know when to end."""

    def answers(self, commands: Mapping[str, str]) -> list[dict[str, Any]]:
        """Rules: each command for the tasks that contain its key, then the end."""
        beside = [{"when": when, "say": said} for when, said in self.side.items()]
        end = {"when": self.result, **(self._calls(self.done) if self.done else {"say": "Done."})}
        work = [{"when": when, **self._calls(command)} for when, command in commands.items()]
        return [*beside, end, *work, {"say": "No rule of this test."}]

    def _calls(self, command: str) -> dict[str, Any]:
        if not self.tool:
            return {"say": self.text.replace("COMMAND", command)}
        return {"call": {"name": self.tool, "arguments": {self.argument: command, **self.more}}}


PROGRAMS = {
    "claude-code": Program(
        "Messages",
        "Bash",
        more={"description": "Runs it"},
        side={"Write the title in the language": '{"title": "A file"}'},
        trains={"CLAUDE_CODE_MAX_OUTPUT_TOKENS": 16},
    ),
    "codex": Program("Responses", "exec_command", "cmd", trains={}),
    "gemini-cli": Program(
        "generateContent",
        "run_shell_command",
        more={"description": "Runs it"},
        side={"complexity_score": '{"complexity_reasoning": "simple", "complexity_score": 20}'},
        side_calls=1,
    ),
    "opencode": Program(
        "chat completions",
        "bash",
        more={"description": "Runs it"},
        side={"title generator": "A file"},
        side_calls=1,
    ),
    "qwen-code": Program(
        "chat completions", "run_shell_command", more={"description": "Runs it", "is_background": False}
    ),
    "mini-swe-agent": Program(
        "chat completions", "bash", done="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", trains={}
    ),
    "openhands": Program("chat completions", "terminal"),
    "open-interpreter": Program("chat completions", "execute", "code", more={"language": "shell"}),
    "llm": Program("chat completions", "shell", trains={}),
    "aider": Program("chat completions", text="answer.txt\n```\nCOMMAND\n```", result="No prompt"),
}


@dataclass(frozen=True)
class Installed:
    """What the first line of a recipe says."""

    title: str
    version: str
    python: str
    tool: str
    what: Sequence[str]


def head(name: str) -> Installed:
    """The first line of a recipe: its program, the tested version, and the command that installs it."""
    line = (RECIPES / f"{name}.yaml").read_text().splitlines()[0]
    found = _HEAD.fullmatch(line)
    assert found, f"{name}.yaml: {line}"
    what = [word.strip("'") for word in found["what"].split() if word != "-g"]
    return Installed(found["title"], found["version"], found["python"] or "", found["tool"], what)


def installed(name: str) -> Path:
    """The folder of a program's commands, which is made unless it is there. Raises CalledProcessError."""
    wanted, folder = head(name), CACHE / name
    stamp = folder / "stamp"
    if stamp.exists() and stamp.read_text() == repr(wanted):
        return folder / "bin"
    shutil.rmtree(folder, ignore_errors=True)
    if wanted.tool == "npm":
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        command = ["npm", "install", "-g", "--prefix", str(folder), *quiet, *wanted.what]
        subprocess.run(
            command, check=True, timeout=LONGEST, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    else:
        if wanted.python:
            subprocess.run([python(wanted.python), "-m", "venv", "--without-pip", str(folder)], check=True)
        else:
            venv.create(folder)
        # In a sandbox, nothing can be written there.
        install(folder / "bin" / "python", "--compile-bytecode", *wanted.what)
    stamp.write_text(repr(wanted))
    return folder / "bin"


def python(version: str) -> str:
    """A Python of a version, such as 3.12; pyenv's count too."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [*sorted(pyenv.glob(f"versions/{version}.*/bin/python")), shutil.which(f"python{version}")]
    assert found[0], f"Python {version} is not installed"
    return str(found[0])
