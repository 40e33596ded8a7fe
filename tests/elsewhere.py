"""Tests of another command are left out, and counted; in CI no program may be missing.

A skip whose reason ends with `make test-NAME` names the command that runs the test, where it has all that it needs. Such tests
are deselected here, and a run's last lines say how many, and which command has them. What is skipped is then what this machine lacks.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

_COMMAND = re.compile(r"\bmake test-[a-z-]+$")
_LEFT = pytest.StashKey[Counter[str]]()
COMPLETE = "AJET_TESTS_COMPLETE"
"""If this variable is set, a test that is skipped as a program is missing fails."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEFT] = Counter[str]()


@pytest.hookimpl(trylast=True)  # after those of another tier
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    commands = [_command_of(item) for item in items]
    config.stash[_LEFT].update(command for command in commands if command)
    config.hook.pytest_deselected(items=[item for item, one in zip(items, commands, strict=True) if one])
    items[:] = [item for item, one in zip(items, commands, strict=True) if not one]


def _command_of(item: pytest.Item) -> str:
    for mark in item.iter_markers("skipif"):
        command = _COMMAND.search(mark.kwargs.get("reason", ""))
        if command and all(mark.args):
            return command.group()
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips itself at once: how many tests it has is not known, so it counts as one."""
    report = yield
    command = _COMMAND.search(_reason(report))
    if command:
        collector.config.stash[_LEFT][command.group()] += 1
        report.outcome, report.longrepr, report.result = "passed", None, []
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    reason = _reason(report)
    if os.environ.get(COMPLETE) and "is not installed" in reason and not _COMMAND.search(reason):
        report.outcome, report.longrepr = "failed", f"{reason}, and {COMPLETE} is set"
    return report


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Why it was skipped; empty if it was not."""
    return report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # of a process of pytest-xdist
    if output is not None:
        counts = session.config.stash[_LEFT]
        output["left_to"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process has collected all tests, so one count is enough."""
    counts: dict[str, int] = getattr(node, "workeroutput", {}).get("left_to", {})
    config: pytest.Config = node.config
    config.stash[_LEFT].clear()
    config.stash[_LEFT].update(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for command, number in sorted(config.stash[_LEFT].items()):
        terminalreporter.write_line(f"left to `{command}`: {number} tests, or modules of tests")
