"""Dotted keys of nested mappings, such as ``train.learning_rate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a tree; empty mappings are values."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def under(key: str, prefix: str) -> bool:
    """Whether a dotted key is ``prefix`` or lies below it."""
    return key == prefix or key.startswith(f"{prefix}.")
