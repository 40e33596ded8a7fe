"""The backbone trinity keeps what every backbone promises. Each run starts Trinity, so all checks take a quarter of an hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_it_keeps_to_the_contract_of_backbones(
    check_backbone: Any, model: Path, tmp_path: Path, nothing_left: str
) -> None:
    check_backbone("trinity", model=str(model), folder=tmp_path)
