"""The base of every plugin: a frozen, picklable configuration that can open its resources."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator


class Settings(BaseModel):
    """A section of the job: frozen, every key known, defaults checked too."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_number_is_true(cls, value: Any, field: ValidationInfo) -> Any:
        if isinstance(value, bool):  # which pydantic takes for 0 or 1
            hint = cls.model_fields[field.field_name or ""].annotation
            kinds = {hint, *get_args(hint)}
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("expected a number")
        # NaN, with which every comparison fails: a limit of it would limit nothing.
        if isinstance(value, float) and value != value:
            raise ValueError("expected a number")
        return value


def by_type(value: Any) -> Any:
    """The spec of a plugin; its name alone is short for ``{type: name}``."""
    return {"type": value} if isinstance(value, str) else value


def one_judge(value: Any) -> Any:
    """The spec of a judge. Raises ValueError for a list, with what it stands for."""
    if isinstance(value, list | tuple):
        raise ValueError(
            "a job has one judge. To add up several, give each a name: "
            "{type: combine, parts: {right: {judge: math, weight: 1}, …}}"
        )
    return by_type(value)


def one_workflow(value: Any) -> Any:
    """The name or the spec of a workflow. Raises ValueError for what is neither."""
    if not isinstance(value, str | dict):
        raise ValueError("expected a name, such as agent.py:run, or {type: NAME, …}")
    return value


def by_name(value: Any) -> Any:
    """A section of the job; one word is short for ``{name: word}``."""
    return {"name": value} if isinstance(value, str) else value


def by_path(value: Any) -> Any:
    """The spec of a reader; a path alone is short for ``{type: jsonl, path: path}``."""
    return {"type": "jsonl", "path": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class SpecOf:
    """Marks a field that holds the spec of a plugin of this kind, ``{type: name, …}``."""

    kind: str


class Spec(dict[str, Any]):
    """A resolved spec in a field that takes the plugin itself, which is built when the field is checked."""

    def __init__(self, spec: Mapping[str, Any], build: Callable[[], Any]) -> None:
        super().__init__(spec)
        self.build = build

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


# Types of fields that hold paths, besides `Path`. A job makes them absolute before plugins are built (`ajet.job.parts`).
CodePath = Annotated[str, "file.py:Name or module:Name"]
"""An object in a file, whose path is made absolute, or in a module."""
PathOrName = Annotated[str, "path or name"]
"""A `CodePath`, a file or a folder, or something that is stored elsewhere (``org/name`` on a hub): made absolute only
if there is such a path."""
AlgorithmSpec = Annotated[dict[str, Any], BeforeValidator(by_type), SpecOf("algorithm")]
ChatModelSpec = Annotated[dict[str, Any], BeforeValidator(by_type), SpecOf("chat model")]
EngineSpec = Annotated[dict[str, Any], BeforeValidator(by_type), SpecOf("engine")]
FilterSpec = Annotated[dict[str, Any], BeforeValidator(by_type), SpecOf("filter")]
JudgeSpec = Annotated[dict[str, Any], BeforeValidator(one_judge), SpecOf("judge")]
LoggerSpec = Annotated[dict[str, Any], BeforeValidator(by_type), SpecOf("logger")]
ReaderSpec = Annotated[dict[str, Any], BeforeValidator(by_path), SpecOf("reader")]
ServiceSpec = Annotated[dict[str, Any], SpecOf("service")]
WorkflowSpec = Annotated[str | dict[str, Any], BeforeValidator(one_workflow), SpecOf("workflow")]
"""The name of an object, or ``{type: name, …}``."""


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: Any) -> Any:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|)\s*", value)
        if not match:
            raise ValueError("expected a duration such as 300s, 5m or 1h")
        return float(match[1]) * _UNITS[match[2]]
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
"""Seconds, written as a number or as a duration: 300s, 5m, 1h."""


_MULTIPLES = {"": 1, "k": 10**3, "m": 10**6}


def _count(value: Any) -> Any:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([km]?)\s*", value, re.IGNORECASE)
        if not match:
            raise ValueError("expected a number such as 200, 500k or 2M")
        return round(float(match[1]) * _MULTIPLES[match[2].lower()])
    return value


Count = Annotated[int, BeforeValidator(_count)]
"""A number, also written as 500k or 2M."""


class Plugin(Settings):
    """Its fields are its configuration, its docstring is its help.

    Resources (connections, models, subprocesses) live in ``async with plugin.open() as live:``;
    the plugin itself stays plain data, so that it can be sent to another process.
    """

    kind: ClassVar[str]
    """What it is for a job: the base class of readers sets ``reader``."""
    name: ClassVar[str]
    """What a job writes as its ``type``. No two plugins of a kind share a name."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Override to hold resources while a job runs; yield the object that does the work."""
        yield self


def first_line(obj: Any) -> str:
    """The first line of an object's docstring, for lists and help."""
    return (obj.__doc__ or "").strip().split("\n", 1)[0]
