"""The table in tests/tools/backbones.md is what they declare."""

from __future__ import annotations

from tests.pages import page, tool

PAGE = page("tests/tools/backbones.md")
script = tool("backbones_table")


def test_the_page_has_what_the_script_writes() -> None:
    assert script.with_table(PAGE) == PAGE, "run: python tools/backbones_table.py tests/tools/backbones.md"


def test_it_has_every_backbone_that_trains_and_every_optional_key() -> None:
    head, _, *rows = script.table()
    assert head == "| | `local` | `tinker` | `trinity` | `verl` |"
    for key in script.OPTIONAL_KEYS:
        assert any(row.startswith(f"| `{key}` |") for row in rows), key
