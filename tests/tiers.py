"""What is in the fast tier, `make test`: some cases of a parametrised test, and no test that takes long."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

BUDGET = 5.0
"""Seconds of a processor that a test of the fast tier may take. A second on an idle machine is the aim; a busy one takes more."""
IMPORTED = 100
"""A test that imports more modules is the first one with a framework, and its time says nothing."""

LONGER = frozenset({"slow", "whole", "kept", "gpu", "properties"})

thinned = pytest.mark.thinned
"""Of a test with several parameters, the fast tier runs cases in which each value of each parameter occurs."""


def fast(places: Collection[int], cases: Sequence[Any]) -> list[Any]:
    """The cases, for `pytest.mark.parametrize`; those at other indices than ``places`` are slow."""
    assert all(0 <= place < len(cases) for place in places)
    return [case if place in places else _slow(case) for place, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)


@contextmanager
def within_budget(item: pytest.Item) -> Iterator[None]:
    """Fail a test of the fast tier that takes longer than `BUDGET`, its finished child processes included. Environments of their own,
    such as verl's, run every tier."""
    began, modules = _processor_seconds(), len(sys.modules)
    yield
    seconds = _processor_seconds() - began
    measured = len(sys.modules) - modules <= IMPORTED and "whole" in item.config.option.markexpr
    if measured and seconds > BUDGET and not any(mark.name in LONGER for mark in item.iter_markers()):
        pytest.fail(
            f"it took {seconds:.1f} s of a processor, and a fast test has {BUDGET:g}: mark it `whole`",
            pytrace=False,
        )


def _processor_seconds() -> float:
    return sum(os.times()[:4])


def thin(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of `thinned` tests that the fast tier leaves out as slow."""
    tests: dict[tuple[Any, str], list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("thinned"):
            tests[item.parent, getattr(item, "originalname", "")].append(item)
    for cases in tests.values():
        # Names that one `parametrize` gives together vary together: they are one axis.
        axes = {_indices(case.callspec.params[name] for case in cases) for name in cases[0].callspec.params}
        sizes = sorted((1 + max(axis) for axis in axes), reverse=True)
        assert len(sizes) > 1, f"{cases[0].nodeid}: only a test with several parameters can be thinned"
        for case, indices in zip(cases, zip(*axes, strict=True), strict=True):
            if sum(indices) % sizes[1]:
                case.add_marker(pytest.mark.slow)


def _indices(values: Iterable[Any]) -> tuple[int, ...]:
    """Each value as a number: 0 for the first one and those that are the same object, 1 for the next, and so on."""
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(id(value), len(numbers)) for value in values)
