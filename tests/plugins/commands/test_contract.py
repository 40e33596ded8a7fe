"""Commands keep the contract of workflows, in a sandbox too."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet_commands.sandbox import check_sandbox
from ajet_commands.workflow import CommandWorkflow
from tests.plugins.commands.episodes import ASK

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_commands_keep_the_contract_of_workflows(check_workflow: Any, tmp_path: Path, sandbox: str) -> None:
    if sandbox != "none":
        try:
            check_sandbox()
        except ValueError as error:
            pytest.skip(str(error))
    program = tmp_path / "agent.py"
    program.write_text(f"{ASK}\nprint(ask(sys.argv[1]))")
    settings: Any = {"sandbox": sandbox, "read": (program,)} if sandbox != "none" else {}
    check_workflow(
        CommandWorkflow(command=(sys.executable, str(program), "{query}"), workdir=tmp_path, **settings)
    )
