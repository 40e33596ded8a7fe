"""What the audit takes from the core, which it checks: nothing that has a part in what a run trains."""

from __future__ import annotations

import ast
from pathlib import Path

import ajet_audit

PACKAGE = Path(ajet_audit.__file__).parent


def test_it_finds_the_folder_lays_out_a_table_and_knows_the_prelude_of_tools() -> None:
    taken = {
        alias.name
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "ajet"
        for alias in node.names
    }
    assert taken == {"AjetError", "ConfigError", "find_run", "table", "with_tool_prompt"}
