"""``ajet new`` makes a project folder, ``ajet plugin new`` the package of a plugin, and ``ajet skill`` gives coding agents the skill
with which they train an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SKILL = Path(__file__).parent / "skill"
OWN = (
    " Its tasks are sums: put yours into tasks.jsonl and held_out.jsonl. Its model is small: show it examples, also of "
    "tool calls, as `ajet docs own-agent#what-a-small-model-needs` does."
)
"""What is to do in a project around an agent that is there."""


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
            help="Train this agent, which stays where it is: my_agent.py:graph, my_package.agents:run, or "
            "'cmd:node agent.js'.",
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
    from ajet_projects.found import find
    from ajet_projects.project import KINDS, files, next_command, own_agent, write_new

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
    print(
        f"Created {target}, to train {chosen.what}.{OWN if from_ else ''} Next: {next_command(target, chosen)}"
    )


plugin = typer.Typer(help="Create a plugin.", rich_markup_mode=None, no_args_is_help=True)


@plugin.callback()
def _plugin() -> None:
    pass


@plugin.command("new")
def new_plugin(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What kind of plugin, see above.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in job files: my_judge.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where to write it; default: a new folder ajet-NAME.")
    ] = None,
) -> None:
    """Write an installable package with a plugin and a test that passes.

    Kinds: judge, reader, workflow, logger, filter, algorithm, service, wire, engine and backbone.
    """
    import keyword
    import re

    from ajet import ConfigError
    from ajet.interfaces.helpers import nearest
    from ajet_projects.project import write_new
    from ajet_projects.skeletons import KINDS, files

    if kind not in KINDS:
        raise ConfigError(f"{kind}: no such kind of plugin{nearest(kind, KINDS)}. Known: {', '.join(KINDS)}.")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name}: a plugin's name has only lower-case letters, digits and underscores, such as my_{kind}."
        )
    target = folder or Path(f"ajet-{name.replace('_', '-')}")
    write_new(target, files(kind, name))
    article = "an" if kind[0] in "aeiou" else "a"
    print(f"Created {article} {kind} in {target}. Next: pip install pytest -e {target} && pytest {target}")


skill = typer.Typer(help="Teach coding agents to use AgentJet.", no_args_is_help=True, rich_markup_mode=None)


@skill.callback()
def _skill() -> None:
    """Teach coding agents to use AgentJet."""


@skill.command()
def install(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The folder of skills. Default: .claude/skills if there is a folder .claude here, else .agents/skills."
        ),
    ] = None,
) -> None:
    """Copy the skill `ajet` into a folder of skills; a copy that is already there is replaced."""
    import shutil

    from ajet import ConfigError

    target = (folder or Path(".claude" if Path(".claude").is_dir() else ".agents", "skills")) / "ajet"
    if target.is_symlink():
        raise ConfigError(str(target), "is a link, which is not replaced; remove it, or name another folder.")
    if target.exists() and not (target / "SKILL.md").is_file():
        raise ConfigError(
            str(target), "is there and has no SKILL.md, so it is not a skill; name another folder."
        )
    try:
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(SKILL, target, ignore=shutil.ignore_patterns("__pycache__"))
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(str(error.filename), "is a file; name a folder.") from None
    print(f"Installed {target}. Ask the coding agent: train my agent with ajet.")
