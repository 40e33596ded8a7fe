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


def test_a_misspelt_page_or_section_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'alarms'"):
        page("alarm")
    with pytest.raises(
        ConfigError, match="no such page; a part is frameworks#langgraph, own-agent#a-langgraph-agent"
    ):
        page("langgraph")
    with pytest.raises(ConfigError, match=r"no such section; did you mean 'services'.*Its sections are"):
        page("environments#service")
