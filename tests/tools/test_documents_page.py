"""The page on what the documents promise: what tests/documents.yaml names is there."""

from __future__ import annotations

import ast
import re
import shlex

import pytest

from tests.pages import ROOT, page, tool

script = tool("documents_table")
ROWS = [row for rows in script.documents().values() for row in rows]
TESTS = sorted({row.shown for row in ROWS if row.shown.startswith("tests/")})
COMMANDS = sorted({row.shown for row in ROWS} - set(TESTS))


def test_the_page_links_to_pages_and_sections_that_are_there() -> None:
    """A link has the titles of its page and its section."""
    shown = script.page()
    assert all(f"| {row.number} | {row.feature} | {script.link(row.where)} |" in shown for row in ROWS)


def test_every_feature_is_there_once() -> None:
    assert [row.number for row in ROWS] == list(range(1, 110))


@pytest.mark.parametrize("name", TESTS)
def test_every_test_that_it_names_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert function.startswith("test_") and function in defined


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_it_names_is_a_target_of_the_makefile(command: str) -> None:
    make, target, *arguments = shlex.split(command)
    assert make == "make" and re.search(rf"^{target}:", page("Makefile"), re.MULTILINE)
    for folder in (argument.removeprefix("ARGS=") for argument in arguments):
        assert (ROOT / "examples" / folder / "job.yaml").is_file()


def test_a_section_that_is_not_there_is_noticed() -> None:
    with pytest.raises(KeyError, match="no-such-section"):
        script.link("start.md#no-such-section")
