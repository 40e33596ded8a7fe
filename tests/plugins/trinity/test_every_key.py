"""The table for Trinity's files has every key of Trinity's own configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from typing import Any, get_args, get_type_hints

import pytest

from ajet_trinity_files.keys import AUXILIARY, TABLE, TASKSET


def missing(section: Any, table: Mapping[str, Any], place: str = "") -> Iterator[str]:
    hints = get_type_hints(section)
    for field in fields(section):
        key = f"{place}{field.name}"
        if key in table:
            continue
        below = [kind for kind in (hints[field.name], *get_args(hints[field.name])) if is_dataclass(kind)]
        if below:
            yield from missing(below[0], table, f"{key}.")
        elif not any(known.startswith(f"{key}.") for known in table):
            yield key


@pytest.mark.skipif(find_spec("trinity") is None, reason="Trinity is not installed: make test-trinity")
def test_every_key_of_trinity_is_in_the_table() -> None:
    from trinity.common.config import Config, InferenceModelConfig, TasksetConfig

    assert list(missing(Config, TABLE)) == []
    assert list(missing(TasksetConfig, TASKSET)) == []
    assert list(missing(InferenceModelConfig, AUXILIARY)) == []
