"""One trained run for all tests of the studio, and a folder of each test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ajet_studio.library import Library

from . import runs


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """The folder of a run of two training steps."""
    return runs.train(tmp_path_factory.mktemp("studio"), tokenizer)


@pytest.fixture(scope="session")
def studio(trained: Path) -> Iterator[runs.Studio]:
    """A studio over the folder with the trained run."""
    with runs.serving(trained.parent) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder of runs."""
    made = tmp_path / "runs"
    made.mkdir()
    return made


@pytest.fixture(scope="session")
def shelf() -> runs.Shelf:
    """What the next studio serves."""
    return runs.Shelf()


@pytest.fixture(scope="session")
def shelf_studio(shelf: runs.Shelf) -> Iterator[runs.Studio]:
    """A studio over it."""
    with runs.serving_library(shelf) as found:
        yield found


@pytest.fixture
def own(folder: Path, shelf: runs.Shelf, shelf_studio: runs.Studio) -> Iterator[runs.Studio]:
    """A studio over the empty folder."""
    with closing(Library(folder)) as shelf.now:
        yield shelf_studio
