"""``ajet new``: makes a project folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project's name: my-agent.")],
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What its agent is written with: plain (the OpenAI SDK, the default), langgraph, agentscope, openai-agents, "
            "autogen, or command (a program of its own).",
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="AGENT",
            help="Train this agent, which stays where it is: my_agent.py:graph, or my_package.agents:run.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to write it; default: a new folder NAME.")
    ] = None,
) -> None:
    """Make a folder with an agent, its tasks, a judge and a job that runs at once."""
    import re

    from ajet import ConfigError
    from ajet.interfaces.helpers import nearest
    from ajet.utils.new_files import write_new
    from ajet_projects.found import find
    from ajet_projects.project import KINDS, files, next_command, own_agent

    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*", name):
        raise ConfigError(
            f"{name}: a project's name has only letters, digits, hyphens and underscores, such as my-agent; --folder takes any path."
        )
    if agent is not None and from_ is not None:
        raise ConfigError(f"--from {from_} brings its own agent; leave out --agent.")
    if agent is not None and agent not in KINDS:
        raise ConfigError(f"--agent {agent}: unknown{nearest(agent, KINDS)}. Known: {', '.join(KINDS)}.")
    target = folder or Path(name)
    chosen = own_agent(agent or "plain") if from_ is None else find(from_, target)
    write_new(target, files(name, target, chosen))
    print(f"Created {target}, to train {chosen.what}. Next: {next_command(target, chosen)}")
