"""Rubrics as YAML files that people read and edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from ajet import ConfigError, Settings
from ajet.interfaces.helpers import read_yaml

TAKEN = frozenset({"reason", *dir(BaseModel)})
"""Names that a verdict's fields already use."""
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class Criterion(Settings):
    """One property that a response has or lacks."""

    name: Name
    text: str = Field(min_length=1)
    weight: float = Field(1.0, allow_inf_nan=False)
    """Weight if it is met; negative for what a good response avoids."""


class Rubric(Settings):
    """The properties of a good response to a kind of task."""

    about: str = ""
    """The kind of task, for the judge model and for readers."""
    criteria: tuple[Criterion, ...] = Field(min_length=1)
    learned: Mapping[str, Any] | None = None
    """Figures from `ajet judge learn`; judges ignore them."""

    @model_validator(mode="after")
    def _useful(self) -> Rubric:
        names = [c.name for c in self.criteria]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice:
            raise ValueError(f"two criteria are called {twice}")
        if used := next((n for n in names if n in TAKEN), None):
            raise ValueError(f"`{used}` cannot be the name of a criterion: a verdict already uses it")
        if not any(c.weight for c in self.criteria):
            raise ValueError("every weight is 0, so all responses would be equal")
        return self

    def reward(self, met: Mapping[str, bool]) -> float:
        """From 0 (only criteria with negative weights are met) to 1 (only those with positive weights)."""
        low = sum(c.weight for c in self.criteria if c.weight < 0)
        high = sum(c.weight for c in self.criteria if c.weight > 0)
        return (sum(c.weight for c in self.criteria if met[c.name]) - low) / (high - low)


def read_rubric(path: Path) -> Rubric:
    """The rubric in a file. Raises ConfigError that names the file, the key and the remedy."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such rubric. `ajet judge learn` makes one, or write it by hand.")
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: not a rubric, which is a mapping with a list `criteria`.")
    try:
        return Rubric(**data)
    except (ValidationError, TypeError) as error:
        raise ConfigError(f"{path}: {_fault(error)}") from None


def write_rubric(path: Path, rubric: Rubric, heading: Sequence[str]) -> None:
    """Write a file for people to read: ``heading`` as comments, one paragraph per criterion."""
    import yaml

    def dump(value: Any) -> str:
        text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
        return text

    lines = [*(f"# {line}" for line in heading), dump({"about": rubric.about}).rstrip(), "", "criteria:"]
    for criterion in rubric.criteria:
        lines += [dump([criterion.model_dump()]).rstrip().replace("\n", "\n  ").replace("- ", "  - ", 1), ""]
    if rubric.learned is not None:
        lines += [dump({"learned": dict(rubric.learned)}).rstrip()]
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _fault(error: ValidationError | TypeError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"])) or "rubric"
    return f"{place}: {fault['msg'].removeprefix('Value error, ')} (found {str(fault['input'])[:80]!r})."
