"""The table of backbones in docs/architecture.md is what they declare."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("backbones_table", ROOT / "tools" / "backbones_table.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_what_the_script_writes(script: ModuleType) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert script.with_table(page) == page, "run: python tools/backbones_table.py docs/architecture.md"


def test_it_has_every_backbone_that_trains_and_every_optional_key(script: ModuleType) -> None:
    head, _, *rows = script.table()
    assert head == "| | `local` | `tinker` | `trinity` | `verl` |"
    for key in script.OPTIONAL_KEYS:
        assert any(row.startswith(f"| `{key}` |") for row in rows), key
