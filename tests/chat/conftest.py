"""`make test-templates ARGS=--record` writes tests/chat/families.md from what this run found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chat import table
from tests.chat.families import FAMILIES

_rows: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption(
        "--record", action="store_true", help="write tests/chat/families.md instead of comparing with it"
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the families' rows, here and from other processes."""
    if report.when == "call":
        found: dict[str, Any] = dict(report.user_properties)
        if "row" in found:
            _rows[found["family"]] = found["row"]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was found, and write the page if it is to be written."""
    if not _rows:
        return
    terminalreporter.write_line(table.summary(_rows.values()))
    if config.getoption("--record", default=False):
        rows = {**table.committed(), **_rows}
        missing = [name for name in FAMILIES if name not in rows]
        if missing:
            terminalreporter.write_line(f"{table.PAGE.name} is not written: no row of {', '.join(missing)}")
            return
        table.PAGE.write_text(table.page(rows))
        terminalreporter.write_line(f"{table.PAGE.name} is written")
