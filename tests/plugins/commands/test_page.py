"""docs/gateway.md has every setting of a command."""

from __future__ import annotations

import re

from ajet_commands import folders, placeholders, process
from ajet_commands.workflow import CommandWorkflow
from tests.pages import page

PAGE = page("docs/gateway.md").partition("## Commands as workflows\n")[2].partition("\n## ")[0]


def test_every_field_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE)
    assert {field.strip("`") for row in rows for field in row.split(", ")} == set(
        CommandWorkflow.model_fields
    )


def test_every_placeholder_and_limit_is_named() -> None:
    for name in placeholders.KNOWN:
        assert f"`{{{name}}}`" in PAGE
    for limit in (folders.MOST_FILES, process.MOST_PROCESSES):
        assert f"{limit:,}" in PAGE
    assert f"{folders.MOST_BYTES >> 20} MiB" in PAGE
