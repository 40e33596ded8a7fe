"""Whole programs, which are installed and run one at a time: `make test-harnesses`. Its last lines are a table."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ajet.utils.terminal import table

if not os.environ.get("AJET_HARNESSES"):
    collect_ignore = ["test_recipes.py", "test_skill.py"]

ROWS = pytest.StashKey[dict[object, dict[str, object]]]()
HEAD = ("program", "version", "API", "calls", "timelines", "side", "refused", "reward", "s", "MiB", "trained")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = {}


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """What the table tells of a program; what did not come about is missing in it."""
    found: dict[str, object] = {}
    yield found
    if found:
        request.config.stash[ROWS].setdefault(found["program"], {}).update(found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if rows := config.stash[ROWS]:
        lines = [tuple(str(found.get(name, "-")) for name in HEAD) for found in rows.values()]
        terminalreporter.write_line(table([HEAD, *lines]))
