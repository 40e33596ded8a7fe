"""A tiny random model with our own tokenizer: what the local backbone's tests run on."""

import asyncio
import copy

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM  # noqa: E402

from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.starter.calculator import Calculator  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402

# Two threads that share their cores with other work wait for each other; a tiny model needs one.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer():
    return Calculator().tokenizer(0)[0]


@pytest.fixture(scope="session")
def renderer(tokenizer):
    from renderers.qwen3 import Qwen3Renderer

    return Qwen3Renderer(tokenizer)


@pytest.fixture(scope="session")
def untouched(tokenizer):
    """The model, of which each test gets a copy."""
    config = Calculator().architecture(tokenizer)
    config.hidden_size, config.intermediate_size = 64, 96
    config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads = 2, 2, 2
    config.layer_types = config.layer_types[:2]
    config.max_position_embeddings = 96
    config.initializer_range = 0.2  # distributions with some shape, so that wrong tokens are noticed
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture
def model(untouched):
    return copy.deepcopy(untouched)


@pytest.fixture
def engine(model, tokenizer):
    return LocalEngine(model, tokenizer)


@pytest.fixture
def passes(engine, model):
    """How many tokens went through the model in each forward pass since its engine was made, seen by a hook on its embedding."""
    counts = []
    model.get_input_embeddings().register_forward_hook(lambda _, args, out: counts.append(args[0].numel()))
    return counts


@pytest.fixture
def running(engine):
    """Run a coroutine function with the started engine: ``running(lambda engine: ...)``."""

    def run(scenario):
        async def main():
            await engine.start()
            try:
                return await asyncio.wait_for(scenario(engine), timeout=PATIENCE)
            finally:
                await engine.close()

        return asyncio.run(main())

    return run
