"""docs/plan.md: its commands run, and its tables are those of the code."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from ajet_advice.known import DEVICES
from tests.pages import blocks, page, tool
from tests.plugins.advice.published import MEMORY, SPEEDS

PAGE = page("docs/plan.md")
COMMANDS = [
    line.partition("#")[0].strip()
    for block in [*blocks(PAGE, "console"), *blocks(PAGE, "")]
    for line in block.splitlines()
    if line.startswith(("$ ajet", "ajet"))
]
JOB = """
task: {reader: tasks.jsonl}
workflow: agent.py:run
model: Qwen/Qwen3-0.6B
rollout: {context_length: 8192}
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_run(command, ajet, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    # This machine has no GPU.
    monkeypatch.setattr("ajet.estimate.devices.reported_gpus", lambda fields: ["NVIDIA H100 80GB HBM3"])
    done = ajet(*shlex.split(command.removeprefix("$ "))[1:])
    assert done.code == 0, done.out + done.err
    if "--json" in command:
        found = json.loads(done.out)
        assert found["gpus"]["name"] == "L40S" and found["fits"]
    if command.startswith("$"):
        assert done.out in PAGE


@pytest.mark.whole
def test_its_table_is_what_the_script_writes() -> None:
    table = page("plugins/advice/QWEN3.md")
    assert tool("plan_table").with_table(table) == table, (
        "run: python tools/plan_table.py plugins/advice/QWEN3.md"
    )


def test_it_lists_the_published_figures_that_the_tests_compare() -> None:
    for f in MEMORY:
        row = f"| {f.name} | {f.published} {f.unit} | {f.estimated:.1f} {f.unit} |"
        assert row in PAGE, row
    for rate in SPEEDS:
        row = f"| {rate.name} | {rate.published:,.0f} tokens/s | {rate.estimated} tokens/s |"
        assert row in PAGE, row


def test_it_lists_all_gpus() -> None:
    listed = re.search(r"\*\*The GPUs\*\* are (.+) and (\S+), with", PAGE)
    assert listed and [*listed[1].split(", "), listed[2]] == list(DEVICES)
