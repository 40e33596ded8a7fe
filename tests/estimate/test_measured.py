"""The formulas of memory agree with what training allocates on this CPU, for whole models and adapters, in both types."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config  # noqa: E402

from ajet.estimate.layout import ModelSizes  # noqa: E402
from ajet.learning.algorithms import SFT  # noqa: E402
from ajet.learning.settings import LoraSettings  # noqa: E402
from ajet.types import Batch, Sample, Span  # noqa: E402
from ajet_local.demand import Demand  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.kv_cache import KVLayout  # noqa: E402
from ajet_local.memory import shape_of_model  # noqa: E402
from ajet_local.modeling import copy_in  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402
from ajet_lora.adapters import Adapters  # noqa: E402
from tests.tiers import fast, thinned  # noqa: E402

TOKENS = 512


def make_model(architecture, dtype=torch.float32, **sizes):
    config = architecture(
        **sizes,
        max_position_embeddings=2048,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def sizes(hidden, inner, layers, heads, keys, head_dim, vocabulary):
    return dict(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        head_dim=head_dim,
        vocab_size=vocabulary,
    )


SMALL = sizes(256, 768, 6, 8, 4, 32, 500)
WIDE = sizes(192, 1024, 4, 6, 2, 32, 2000)
DEEP = sizes(128, 384, 14, 8, 2, 32, 500)
SHAPES = {
    "Qwen3": (Qwen3Config, SMALL),
    "Llama, wide": (LlamaConfig, WIDE),
    "Qwen2, deep": (
        Qwen2Config,
        {k: v for k, v in DEEP.items() if k != "head_dim"} | {"num_attention_heads": 4},
    ),
    "Qwen3, many words, tied": (Qwen3Config, SMALL | {"vocab_size": 8000, "tie_word_embeddings": True}),
    "Llama, many heads": (LlamaConfig, SMALL | {"num_attention_heads": 16, "num_key_value_heads": 16}),
}
WAYS = {
    "all weights, float32": dict(),
    "all weights, float32, checkpointing": dict(checkpointing=True),
    "all weights, bfloat16": dict(number=2),
    "all weights, bfloat16, checkpointing": dict(number=2, checkpointing=True),
    "adapters, float32": dict(rank=8),
    "adapters, bfloat16": dict(number=2, rank=8),
    "adapters, bfloat16, checkpointing": dict(number=2, rank=8, checkpointing=True),
}


def sample(seed, vocabulary, adapter):
    ids = np.random.default_rng(seed).integers(0, vocabulary, TOKENS + 1).astype(np.int32)
    on = (np.arange(TOKENS + 1) >= 1).astype(np.float32)
    spans = (Span(1, TOKENS + 1, 0, "agent", "policy"),)
    return Sample(ids, on > 0, on, on, on / TOKENS, spans, adapter=adapter)


def peak_of_training(architecture, shape, number=4, rank=0, checkpointing=False):
    """The estimate and the peak of two steps with two micro-batches each: then gradients and moments exist beside activations."""
    dtype = {2: torch.bfloat16, 4: torch.float32}[number]
    adapters = None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make_model(architecture, torch.float32 if not rank else dtype, **shape)
    if rank:
        adapters = Adapters(model)
        adapters.add("solver", LoraSettings(rank=rank), seed=0)
        adapters.train(["solver"])
    sampled = copy_in(model, dtype) if dtype != torch.float32 and not rank else model
    trainer = LocalTrainer(
        model,
        None,
        LocalEngine(sampled, None, adapters=adapters, cache_mib=1),
        micro_batch_tokens=TOKENS + 1,
        gradient_checkpointing=checkpointing,
        adapters=adapters,
        autocast=dtype if dtype != torch.float32 and not rank else None,
    )
    found = shape_of_model(model)
    if rank:
        size = sum(p.numel() for p in adapters.parameters("solver"))
        found = shape_of_model(make_model(architecture, **shape))
        assert size == found.adapter_parameters(rank)
    samples = [sample(seed, found.vocabulary, "solver" if rank else None) for seed in (1, 2)]
    batch = Batch(samples, SFT().loss, [range(2)], 1e-3)
    resident = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept(model, sampled)}

    def update():
        trainer.update(batch)

    moments = 2 * 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    update()  # the moments exist from here on
    sizes = ModelSizes(
        shape=found, adapters={"solver": size} if rank else {}, trained=["solver"], entropy=False
    )
    estimate = replace(Demand.of(sizes, number).checkpointed(checkpointing), tokens=TOKENS)
    return estimate.total, sum(resident.values()) + moments + allocated(update)


def kept(*models):
    for model in models:
        yield from model.parameters()


def allocated(work):
    """The most bytes that torch allocates at once during ``work``, beside those that exist before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    events = [e for e in trace(profiled) if e.get("name") == "[memory]"]
    changes = [e["args"]["Bytes"] for e in sorted(events, key=lambda e: e["args"]["Ev Idx"])]
    return int(np.cumsum(changes).max())


def trace(profiled):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(file))
        return json.loads(file.read_text())["traceEvents"]


FLOAT32 = [place for place, way in enumerate(WAYS) if "float32" in way]
"""On a CPU without instructions for bfloat16, that type takes minutes."""
FAST = [
    pytest.param(way, marks=pytest.mark.whole) if way == "all weights, float32, checkpointing" else way
    for way in fast(FLOAT32, list(WAYS))
]


@pytest.mark.whole
@thinned
@pytest.mark.parametrize("way", FAST)
@pytest.mark.parametrize("name", SHAPES)
def test_the_estimate_is_within_a_tenth_of_the_measured_peak(name, way):
    architecture, shape = SHAPES[name]
    estimate, measured = peak_of_training(architecture, shape, **WAYS[way])
    assert estimate == pytest.approx(measured, rel=0.1)


def test_the_estimate_of_the_cache_is_what_the_engine_allocates():
    model = make_model(Qwen3Config, **SMALL)
    cache = KVLayout.of(model).zeros(tokens=100)
    assert shape_of_model(model).cached(100, 4) == cache.nbytes
