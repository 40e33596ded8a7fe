"""How many examples hypothesis draws for a property: some in `make test`, all of them in `make test-slow`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

FEW = 80
"""Examples in the fast tier."""
ALL = "AJET_ALL_EXAMPLES"
"""Set in the environment: every example is drawn."""


def examples(count: int, **options: Any) -> Callable[[Any], Any]:
    """A test of a property, with ``count`` examples in the slow tier."""
    drawn = count if ALL in os.environ else min(count, FEW)

    def decorate(test: Any) -> Any:
        return pytest.mark.properties(settings(max_examples=drawn, deadline=None, **options)(test))

    return decorate
