"""The models of recipes that tests need, built before the tests' time begins: one takes minutes, more on a busy machine.

python -m tests.recipes starter calculator    # builds them now
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

# In a process of its own, as a recipe may be a file with neighbours of any name. The first process builds a model; others wait.
BUILD = """
import sys
from ajet.interfaces.progress import Silent
from ajet.job.models import model_source
model_source(sys.argv[1], 0, Silent())
"""


def build_models_of(item: pytest.Item) -> None:
    """Build what its marks `models` name and the cache has not."""
    for mark in item.iter_markers("models"):
        for model in mark.args:
            _build(model)


@cache
def _build(model: str) -> None:
    subprocess.run([sys.executable, "-c", BUILD, model], check=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _build(name)
