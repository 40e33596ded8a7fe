"""A working directory for each test, whose modules are forgotten afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MODULES = ("agent", "calculator", "judge", "my_agent", "workflow")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kept = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(kept)
