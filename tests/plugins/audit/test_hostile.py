"""Run folders that a stranger has made."""

from __future__ import annotations

import io
import zipfile
from types import SimpleNamespace
from typing import Any

import pytest

from ajet_audit.batches import read_step


def test_a_record_that_unpacks_to_gibibytes_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_audit.batches.MOST_UNPACKED", 1 << 20)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("about", "token_ids"):
            archive.writestr(f"{name}.npy", bytes(1 << 20))
    folder: Any = SimpleNamespace(read=lambda name: packed.getvalue())
    with pytest.raises(ValueError, match=r"step_000001.npz is damaged \(more than .* GiB when unpacked\)"):
        read_step(folder, 1)
