"""How many examples hypothesis draws for a property: some in `make test`, all of them in `make test-slow`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

FEW = 15
"""Examples in the fast tier."""
ALL = "AJET_ALL_EXAMPLES"
"""Set in the environment: every example is drawn."""


def drawn(count: int, **options: Any) -> settings:
    """Settings that draw ``count`` examples in the slow tier. Mark the test with ``properties``."""
    few = count if ALL in os.environ else min(count, FEW)
    return settings(max_examples=few, deadline=None, **options)


def examples(count: int, **options: Any) -> Callable[[Any], Any]:
    """A test of a property, with ``count`` examples in the slow tier."""

    def decorate(test: Any) -> Any:
        return pytest.mark.properties(drawn(count, **options)(test))

    return decorate
