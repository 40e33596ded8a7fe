"""Writes the table of tests/tools/backbones.md: what each backbone can honour, from its `Capabilities`. A test compares.

python tools/backbones_table.py tests/tools/backbones.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import tables

from ajet.interfaces.backbone import OPTIONAL_KEYS, Capabilities
from ajet.job.job import Backbone
from ajet.plugins import load_plugins
from ajet.types import Need

NEEDS: Mapping[Need, str] = {
    "values": "algorithms with a critic (`ppo`)",
    "pairs": "algorithms on pairs (`dpo`)",
    "teacher": "algorithms with the model as its own teacher (`sdpo`)",
}
"""What some algorithms need, besides logprobs, which all of these backbones have."""
ROWS: Mapping[str, Callable[[Capabilities], bool]] = {
    "`targets.NAME.lora`": lambda can: can.lora,
    "top-p, top-k and min-p in training, exactly": lambda can: can.truncated_sampling,
    "several trained targets": lambda can: can.several_targets,
    **{text: lambda can, need=need: need in can.needs for need, text in NEEDS.items()},
    **{f"`{key}`": lambda can, key=key: key in can.keys for key in sorted(OPTIONAL_KEYS)},
    "`run.deterministic`": lambda can: can.deterministic,
    "`run.restarts`": lambda can: can.restarts,
}
"""What a job may ask, and how a backbone says that it can honour it. A backbone refuses the rest, by the name of the key."""


def backbones() -> dict[str, Capabilities]:
    """The installed backbones that train, by name."""
    found = {name: cls.cls for (kind, name), cls in load_plugins().classes.items() if kind == "backbone"}
    can = {name: cls.capabilities for name, cls in found.items() if issubclass(cls, Backbone)}
    return {name: can[name] for name in sorted(can) if can[name].trains}


def table() -> Iterator[str]:
    """The lines of the table."""
    columns = backbones()
    yield f"| | {' | '.join(f'`{name}`' for name in columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for what, has in ROWS.items():
        yield f"| {what} | {' | '.join('yes' if has(can) else 'no' for can in columns.values())} |"


def with_table(page: str) -> str:
    """A page with the table between its marks."""
    return tables.with_table(page, "backbones_table.py", table())


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
