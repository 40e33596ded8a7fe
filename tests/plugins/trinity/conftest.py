"""A small random model, and Trinity's processes on this CPU, of which nothing may be left."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE

LONGEST = ("test_conformance.py", "test_runs.py", "test_gradients.py")
"""Files whose tests start Trinity, which takes a minute. They begin first."""
GONE_SECONDS = PATIENCE
MARK = "AJET_TEST_OF_TRINITY"
"""In the environment of all that a test starts, so that what is left can be found."""

if find_spec("trinity") is None:  # it has an environment of its own: make test-trinity
    collect_ignore = list(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move them to the front."""
    here = [item for item in items if item.path.parent == Path(__file__).parent and item.path.name in LONGEST]
    here.sort(key=lambda item: LONGEST.index(item.path.name))
    items[:] = [*here, *(item for item in items if item not in here)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with the tokenizer of the recipes and random weights."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    from ajet_local.starter.calculator import Calculator

    folder = tmp_path_factory.mktemp("model")
    tokenizer = Calculator().tokenizer(0)[0]
    config = Calculator().architecture(tokenizer)
    config.hidden_size, config.intermediate_size = 64, 96
    config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads = 2, 2, 2
    config.layer_types = config.layer_types[:2]
    config.max_position_embeddings = 160
    config.initializer_range = 0.2  # distributions with some shape, so that wrong tokens are noticed
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The mark of the processes that the test starts. After it, none of them may be left."""
    import psutil

    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)

    def left() -> list[Any]:
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(MARK) == mark and process.pid != os.getpid()
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    yield mark
    deadline = time.monotonic() + GONE_SECONDS
    while left() and time.monotonic() < deadline:
        time.sleep(0.2)
    remaining = left()
    commands = [" ".join(process.cmdline())[:200] for process in remaining]
    for process in remaining:
        process.kill()
    assert not commands, f"processes were left: {commands}"
