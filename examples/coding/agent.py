"""A coding agent: a model and a shell. It repairs the repository in the working directory.

    python agent.py "python test.py fails. Files: farm.py limits.py test.py"

It needs no package. The model is at OPENAI_BASE_URL, with the key in OPENAI_API_KEY.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

SYSTEM = "Repair the repository with the shell."
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command in the repository.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
TURNS = 6
"""Calls of the model."""
SECONDS = 20
"""Time limit of a command."""
MOST = 2000
"""Characters of a command's output that the model sees: the last ones."""


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message."""
    body = {"model": os.environ.get("OPENAI_MODEL", "gpt-5-mini"), "messages": messages, "tools": [TOOL]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request) as reply:
        message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
    return message


def shell(arguments: str) -> str:
    """What a command prints, or its exit code; ``python`` is the interpreter of this program."""
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    # A module that is edited within a second, to the same size, would be taken from its stale bytecode.
    variables = {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            ["sh", "-c", json.loads(arguments)["command"]],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
        )
    except (KeyError, TypeError, ValueError) as error:
        return f"error: {error!r}; the shell takes one command"
    except subprocess.TimeoutExpired:
        return f"error: stopped after {SECONDS} s"
    return ran.stdout.decode(errors="replace").strip()[-MOST:] or f"exit {ran.returncode}"


def main(query: str) -> None:
    """Run the model's commands until it answers without one."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": query}]
    for _ in range(TURNS):
        messages.append(ask(messages))
        calls = messages[-1].get("tool_calls") or []
        for call in calls:
            result = shell(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not calls:
            break
    print(messages[-1]["content"])


if __name__ == "__main__":
    main(sys.argv[1])
