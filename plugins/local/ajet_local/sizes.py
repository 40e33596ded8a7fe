"""Reads and writes memory sizes such as ``2GiB``."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_size(text: str | int) -> int:
    """Bytes of a size such as ``2GiB``, ``512 MB`` or a plain number. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?|)b?\s*", str(text).lower())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not a size; write it like 2GiB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2]])


def format_size(size: float) -> str:
    """Bytes as text, such as ``1.5 GiB`` or ``20 MiB``."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
