"""Messages point to pages that an installed package can show: `ajet docs TOPIC`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from ajet.cli.docs import page, pages
from ajet.types import ConfigError
from tests.pages import ROOT
from tests.program import Program

_POINTER = re.compile(r"`?ajet docs ([a-z][a-z#_-]+)")


def texts() -> Iterator[tuple[str, str]]:
    """Each string in the core and the plugins, except docstrings, with its file and line. In f-strings, "…" stands for each value."""
    for file in [*ROOT.glob("core/ajet/**/*.py"), *ROOT.glob("plugins/*/ajet_*/**/*.py")]:
        source = file.read_text(encoding="utf-8")
        if "docs" not in source:
            continue
        tree = ast.parse(source)
        docstrings = {
            id(node.value)  # also of attributes
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value


@pytest.mark.whole
def test_no_message_points_into_a_folder_that_only_a_clone_has() -> None:
    found = [where for where, text in texts() if re.search(r"\bdocs/[\w-]+\.md", text)]
    assert not found


def test_every_page_to_which_a_message_points_is_there() -> None:
    pointers = [(where, topic) for where, text in texts() for topic in _POINTER.findall(text)]
    assert len(pointers) > 12
    for where, topic in pointers:
        assert page(topic.rstrip("-")), where


def test_a_page_is_listed_and_shown_whole_or_by_section(ajet: Program) -> None:
    listed = ajet("docs").out
    assert all(re.search(rf"^{name} +\S", listed, re.MULTILINE) for name in pages())
    assert ajet("docs", "docs/alarms.md").out == ajet("docs", "alarms").out
    assert "<!--" not in ajet("docs", "environments").out
    section = ajet("docs", "environments#services").out
    assert section.startswith("#") and len(section) < len(ajet("docs", "environments").out) / 2


def test_a_page_of_an_example_or_a_plugin_is_found_by_its_name_or_as_other_pages_link_to_it() -> None:
    example = page("sqlite_agent")
    assert example.startswith("# SQLite")
    assert page("../examples/sqlite_agent/README.md") == page("examples/sqlite_agent") == example
    assert page("projects") == page("../plugins/projects/README.md")
    assert page("../../docs/models.md#for-a-first-run") == page("models#for-a-first-run")
    assert page("verl") != page("plugins/verl")


@pytest.mark.whole
def test_every_link_of_a_page_to_another_one_is_a_topic() -> None:
    """Only a clone has tables of keys, and what concerns tests and benchmarks."""
    found = {link for text in pages().values() for link in re.findall(r"\]\(([\w./#-]+)\)", text)}
    links = {link for link in found if re.search(r"^((?!bench|tests)[a-z./_-])*(README)?\.md\b", link)}
    assert len(links) > 100
    for link in links:
        assert page(link), link


def test_a_misspelt_page_or_section_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'alarms'"):
        page("alarm")
    with pytest.raises(ConfigError, match=r"no such page; a part is .*gateway#commands-as-workflows"):
        page("workflows")
    with pytest.raises(ConfigError, match=r"no such section; did you mean 'services'.*Its sections are"):
        page("environments#service")
