"""One running engine for all tests, over a tiny random model: starting vLLM takes most of a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet.capture.portal import Portal
from ajet.interfaces.progress import Silent
from tests.patience import PATIENCE

SECONDS = PATIENCE
"""Deadline of a test; the engine has this long to answer."""
START_SECONDS = 4 * PATIENCE


SPARE = 48
"""Rows of the model without a token, as Qwen's models have them."""


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of one architecture. Their generation config says that a token ends an answer which the
    first of them likes to say."""
    import torch
    from transformers import AutoModelForCausalLM

    from ajet_local.starter.calculator import Calculator

    tokenizer = Calculator().tokenizer(0)[0]
    config = Calculator().architecture(tokenizer)
    config.hidden_size, config.intermediate_size, config.head_dim = 64, 96, 32
    config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads = 2, 2, 1
    config.layer_types = config.layer_types[:2]
    config.max_position_embeddings = 256
    config.vocab_size = len(tokenizer) + SPARE
    config.initializer_range = 0.2
    folders = []
    for seed in (0, 1):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        spare = list(range(len(tokenizer), config.vocab_size))
        said = model.generate(
            torch.tensor([[30, 5, 6, 7]]), max_new_tokens=4, do_sample=False, suppress_tokens=spare
        )[0, -1]
        model.generation_config.eos_token_id = [config.eos_token_id, int(said)]
        folders.append(tmp_path_factory.mktemp(f"model{seed}"))
        model.save_pretrained(folders[-1])
        tokenizer.save_pretrained(folders[-1])
    return folders


@pytest.fixture(scope="session")
def started(checkpoints: list[Path]) -> Iterator[tuple[Any, Portal]]:
    """The engine, on the loop of a portal as in a job. Nothing is left of it afterwards."""
    from ajet_vllm.plugin import VLLMEnginePlugin

    portal = Portal()
    # Small blocks, so that prompts of the tests' length are cached.
    plugin = VLLMEnginePlugin(
        dtype="float32", kv_cache_gib=0.1, options={"enforce_eager": True, "block_size": 32}
    )
    engine = plugin.build(str(checkpoints[0]), 0, Silent())
    shared: set[str] = set()
    try:
        engine.begin()  # as beside a trainer, whose model loads meanwhile
        portal.submit(engine.start()).result(START_SECONDS)
        for process in vllm_processes():
            shared |= {m.path for m in process.memory_maps() if m.path.startswith("/dev/shm/")}
        yield engine, portal
    finally:
        portal.submit(engine.close()).result(PATIENCE)
        portal.close()
        left = vllm_processes()
        for process in left:
            process.kill()
    assert not left, f"processes were left: {left}"
    assert shared, "vLLM's processes share memory, which this test has lost sight of"
    assert not [path for path in shared if Path(path).exists()]


def vllm_processes() -> list[Any]:
    """All descendants of this process but Python's own tracker of shared memory."""
    import psutil

    def runs(process: Any) -> bool:
        try:
            return "resource_tracker" not in "".join(process.cmdline())
        except psutil.NoSuchProcess:  # it has ended
            return False

    return list(filter(runs, psutil.Process().children(recursive=True)))


@pytest.fixture
def running(started: tuple[Any, Portal]) -> Callable[[Callable[[Any], Any]], Any]:
    """Run a coroutine function with the started engine: ``running(lambda engine: ...)``."""
    engine, portal = started

    def run(scenario: Callable[[Any], Any]) -> Any:
        return portal.submit(asyncio.wait_for(scenario(engine), SECONDS)).result(SECONDS + 5)

    return run
