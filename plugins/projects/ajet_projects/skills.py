"""``ajet skill``: gives coding agents the skill with which they train an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Teach coding agents to use AgentJet.", no_args_is_help=True, rich_markup_mode=None)
SKILL = Path(__file__).parent / "skill"


@app.callback()
def skill() -> None:
    """Teach coding agents to use AgentJet."""


@app.command()
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
