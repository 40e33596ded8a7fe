"""docs/exactness.md names checks that are there, and figures that the benchmarks have."""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT, page, tool

PAGE = page("docs/exactness.md")
BENCHMARKS = tool("benchmarks_page").with_tables(page("bench/README.md"))


def test_every_check_that_it_names_is_there() -> None:
    named = set(re.findall(r"`((?:tests|bench)/[\w/.]+)`", PAGE))
    assert len(named) > 12
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("figure", ["1.2e-6", "1.7e-6", "1e-4", "6.0e-8", "3.7e-7", "3.4e-5", "0.007"])
def test_its_figures_are_those_of_the_benchmarks(figure: str) -> None:
    assert figure in BENCHMARKS
    assert figure in PAGE
