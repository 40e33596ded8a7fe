"""The templates in graders: ``{{item.answer}}`` and ``{{ sample.output_tools[0].function.name }}`` stand for values of the task's
record and of the model's answer. Texts stand as they are, all other values as JSON."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

SAMPLE = ("output_text", "output_json", "output_tools", "choices")
"""What a sample may have."""
_MARKED = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_STEP = re.compile(r"""\s*(?:\.\s*([^\s.\[\]]+)|\[\s*(\d+)\s*\]|\[\s*'([^']*)'\s*\]|\[\s*"([^"]*)"\s*\])""")
Step = str | int


class NotInSample(Exception):
    """The model's answer has no value for a template."""


def names_in(text: str) -> Iterator[tuple[str, list[Step]]]:
    """The namespace and the steps of each template in a text. Raises ValueError for one that has neither form."""
    for marked in _MARKED.finditer(text):
        yield _parsed(marked[1])


def _parsed(inside: str) -> tuple[str, list[Step]]:
    given = inside.strip()
    namespace = re.match(r"\w*", given)
    assert namespace
    at, steps = namespace.end(), list[Step]()
    while at < len(given) and (step := _STEP.match(given, at)):
        name, index, *quoted = step.groups()
        steps.append(int(index) if index is not None else next(t for t in (name, *quoted) if t is not None))
        at = step.end()
    if namespace[0] not in ("item", "sample") or at < len(given) or not steps:
        raise ValueError(
            f"{{{{{inside}}}}} is not a template. Write {{{{item.NAME}}}}, a field of the task's record, or {{{{sample.output_text}}}}"
        )
    if namespace[0] == "sample" and steps[0] not in SAMPLE:
        raise ValueError(f"{{{{{inside}}}}}: a sample has {', '.join(SAMPLE)}")
    return namespace[0], steps


def _checked(text: str) -> str:
    for _ in names_in(text):
        pass
    return text


Template = Annotated[str, AfterValidator(_checked)]
"""A text with templates."""


def texts_in(value: Any) -> Iterator[str]:
    """The texts anywhere in a value."""
    if isinstance(value, str):
        yield value
    for below in (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    ):
        yield from texts_in(below)


def first_lacking(text: str, item: Mapping[str, Any]) -> str | None:
    """The first template of ``item`` that has no value."""
    for namespace, steps in names_in(text):
        try:
            if namespace == "item":
                functools.reduce(_below, steps, item)
        except LookupError:
            return ".".join(["item", *map(str, steps)])
    return None


def holds_null(text: str, item: Mapping[str, Any]) -> bool:
    """Whether a template of ``item`` stands for null, or NaN: tables have it where a record lacks a field."""
    return any(
        (value := functools.reduce(_below, steps, item)) is None
        or (isinstance(value, float) and value != value)
        for namespace, steps in names_in(text)
        if namespace == "item"
    )


def filled(text: str, values: Mapping[str, Any]) -> str:
    """The text with values in place of its templates; templates inside a value are not filled. ``values`` are those of ``item`` and of
    ``sample``. Raises ValueError for what the item lacks, and NotInSample for what the sample lacks."""
    return _MARKED.sub(lambda marked: _written(marked[1], values), text)


def _written(inside: str, values: Mapping[str, Any]) -> str:
    namespace, steps = _parsed(inside)
    value = values[namespace]
    for step in steps:
        try:
            value = _below(value, step)
        except LookupError:
            if namespace == "sample":
                raise NotInSample(inside.strip()) from None
            raise ValueError(f"the task's record has no {inside.strip()}, which the grader names") from None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _below(value: Any, step: Step) -> Any:
    """The value at a step. Raises LookupError."""
    if isinstance(value, Mapping):
        return value[str(step)]
    if isinstance(value, list | tuple) and str(step).isdecimal():
        return value[int(step)]
    raise LookupError(step)
