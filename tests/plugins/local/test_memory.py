"""What a job will take of memory is known before it starts, and a limit is kept to by splitting."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config  # noqa: E402

from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.learning.packing import pack  # noqa: E402
from ajet.learning.settings import LoraSettings, TrainSettings  # noqa: E402
from ajet.types import AjetError, ConfigError, Sample, Span  # noqa: E402
from ajet_local import Local  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.memory import (  # noqa: E402
    LEAST_CACHED,
    Demand,
    Shape,
    fit,
    fitting_tokens,
    free_memory,
    out_of_memory,
    refuse,
)
from ajet_local.modeling import checkpointing, enable_checkpointing  # noqa: E402
from ajet_local.rows import trained_tokens  # noqa: E402
from ajet_local.sizes import format_size, parse_size  # noqa: E402
from ajet_local.trees import enable_trees, tree_tokens  # noqa: E402
from ajet_lora.adapters import Adapters  # noqa: E402
from ajet_trees.models import ComputedTree  # noqa: E402

GiB = 1 << 30


def make_model(architecture=Qwen3Config, **more):
    sizes = dict(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(architecture(**{**sizes, **more}), dtype=torch.float32).eval()


def samples(count=8, trunk=100, length=40):
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 500, trunk)
    found = []
    for _ in range(count):
        ids = np.array([*shared, *rng.integers(0, 500, length)], np.int32)
        on = (np.arange(len(ids)) >= trunk).astype(np.float32)
        found.append(Sample(ids, on > 0, on, on, on, (Span(trunk, len(ids), 0, "agent", "policy"),)))
    return found


def saved_bytes(model, work):
    """Bytes of all tensors that autograd keeps, each storage once, without the model's own."""
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept = {}

    def pack_hook(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack_hook, lambda tensor: tensor), checkpointing(model):
        result = work()
    del result
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "lora"])
@pytest.mark.parametrize("way", ["tree", "rows"])
@pytest.mark.parametrize("architecture", [Qwen2Config, Qwen3Config, LlamaConfig])
def test_the_estimate_of_activations_is_what_autograd_saves(architecture, way, adapted):
    model = make_model(architecture)
    shape = Shape.of_model(model)
    if adapted:
        adapters = Adapters(model)
        adapters.add("solver", LoraSettings(rank=4), seed=0)
        adapters.train(["solver"])
        adapters.activate("solver")
    assert enable_trees(model) == ""
    batch = samples(trunk=4 if way == "rows" else 100)

    def work():
        if way == "rows":
            return trained_tokens(model, batch).new
        return tree_tokens(model, ComputedTree(pack(batch))).new

    tokens = (
        sum(len(s.token_ids) for s in batch) if way == "rows" else len(ComputedTree(pack(batch)).token_ids)
    )
    trained = sum(int(s.mask.sum()) for s in batch)
    logits = trained * (500 * 4 + 64 * 4)  # logprobs, and what the head reads
    found = saved_bytes(model, work) - logits
    assert Demand(shape, tokens, 0).saved == pytest.approx(found, rel=0.3)


def test_the_estimate_knows_gradient_checkpointing():
    model = make_model(num_hidden_layers=12)
    enable_checkpointing(model)
    enable_trees(model)
    batch = samples()
    tree = ComputedTree(pack(batch))
    trained = sum(int(s.mask.sum()) for s in batch)
    found = saved_bytes(model, lambda: tree_tokens(model, tree).new) - trained * (500 * 4 + 64 * 4)
    demand = Demand(Shape.of_model(model), len(tree.token_ids), 0, checkpointing=True)
    a_layer = len(tree.token_ids) * demand.shape.layer_width * 4  # is there only on the way back
    assert demand.saved - a_layer == pytest.approx(found, rel=0.3)


def test_the_parts_of_a_job():
    shape = Shape.of_model(make_model())
    whole = Demand(shape, 256, GiB)
    p = shape.parameters
    assert p == sum(x.numel() for x in make_model().parameters())
    assert {k: whole.parts[k] for k in ("weights", "gradients", "AdamW")} == {
        "weights": 4 * p,
        "gradients": 4 * p,
        "AdamW": 8 * p,
    }
    beside = replace(whole, asynchronous=True, reference=p)
    assert beside.total - whole.total == 8 * p
    bf16 = replace(whole, number=2)
    assert bf16.parts["weights"] == 4 * p and bf16.parts["the engine's copy"] == 2 * p
    model = make_model()
    adapters = Adapters(model)
    adapters.add("solver", LoraSettings(rank=3), seed=0)
    size = sum(x.numel() for x in adapters.parameters("solver"))
    assert shape.adapter_parameters(LoraSettings(rank=3)) == size
    lora = replace(whole, adapters=2 * size, trained=size, number=2)
    assert {k: lora.parts[k] for k in ("weights", "adapters", "gradients", "AdamW")} == {
        "weights": 2 * p,
        "adapters": 8 * size,
        "gradients": 4 * size,
        "AdamW": 8 * size,
    }
    adapters.add("some", LoraSettings(rank=2, modules=("q_proj", "down_proj")), seed=0)
    some = sum(x.numel() for x in adapters.parameters("some"))
    assert shape.adapter_parameters(LoraSettings(rank=2, modules=("q_proj", "down_proj"))) == some


def saved(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_shape_is_read_from_a_config_alone(tmp_path, tokenizer):
    saved(make_model(), tokenizer, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    assert Shape.of(tmp_path) == Shape.of_model(make_model())


QWEN = Shape(
    parameters=596_049_920,
    layers=28,
    hidden=1024,
    queries=2048,
    keys=1024,
    inner=3072,
    vocabulary=151_936,
    linear={f"{n}.{m}": (1024, 2048) for n in range(28) for m in "qkvogud"},
)


def test_the_largest_micro_batch_that_fits_is_a_power_of_two():
    demand = Demand(QWEN, 256, GiB)
    assert fitting_tokens(demand, 1 << 50) == 16384
    assert fitting_tokens(demand, 8 * GiB) is None
    for limit in (20 * GiB, 40 * GiB):
        tokens = fitting_tokens(demand, limit)
        assert replace(demand, tokens=tokens).total <= limit < replace(demand, tokens=2 * tokens).total


def test_an_impossible_job_is_refused_with_its_parts_and_what_would_fit():
    def message(demand, limit):
        return str(refuse(demand, limit, "memory_limit"))

    demand = Demand(QWEN, 4096, 2 * GiB)
    small = message(demand, 16 * GiB)
    assert small.startswith("backbone.local: the job needs about ") and "\n" not in small
    assert "but there are 16.0 GiB (memory_limit): weights 2.2 GiB, gradients 2.2 GiB, AdamW 4.4 GiB" in small
    assert "the engine's cache 2.0 GiB, activations of 4096 tokens" in small
    assert (
        "It would fit with micro_batch_tokens: 512 or with" not in small or "gradient_checkpointing" in small
    )
    for limit in (8, 12, 16):
        text = message(demand, limit * GiB)
        assert ("It would fit with " in text) != ("Nothing makes it fit" in text)
    assert "a lora" in message(demand, 6 * GiB)
    assert "Nothing makes it fit: it takes at least" in message(demand, GiB)


def test_what_the_refusal_advises_does_fit():
    demand = Demand(QWEN, 16384, 4 * GiB)
    text = str(refuse(demand, 20 * GiB, "memory_limit"))
    advised = (
        int(text.partition("micro_batch_tokens: ")[2].split()[0].strip(".")) if "micro_batch" in text else 0
    )
    assert advised and replace(demand, tokens=advised).total <= 20 * GiB


def advised(text):
    """The changes of settings that a refusal names one by one."""
    words = text.partition("It would fit with ")[2].rstrip(".").split(" or with ")
    return [word.partition(" (")[0].partition(": ") for word in words if word]


def test_D8_a_qwen3_of_4b_is_trained_whole_on_80_gb_with_a_cache_that_holds_useful_sequences():
    with torch.device("meta"):
        config = Qwen3Config(
            vocab_size=151_936,
            hidden_size=2560,
            intermediate_size=9728,
            num_hidden_layers=36,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
        )
        shape = Shape.of_model(AutoModelForCausalLM.from_config(config))
    assert 4.0e9 < shape.parameters < 4.1e9
    limit = int(79.1 * GiB)  # what an H100 of 80 GB has free
    fitted = fit(Demand(shape, 0, 0, number=2), limit, tokens=None, cache=None)
    assert fitted.total <= limit and fitted.tokens >= 256
    assert fitted.cache >= shape.cached(LEAST_CACHED, 2)
    given = fit(Demand(shape, 0, 0, number=2), limit, tokens=None, cache=limit // 4)
    assert given.total > limit, "a cache that was asked for stays"
    ((name, _, value),) = [
        change for change in advised(str(refuse(given, limit, "free"))) if change[0] == "cache_mib"
    ]
    changed = replace(given, cache=int(value) << 20)
    assert name and changed.total <= limit and changed.cache >= shape.cached(LEAST_CACHED, 2)


def test_a_cache_stays_a_quarter_where_there_is_room_for_it():
    demand = fit(Demand(QWEN, 0, 0), 64 * GiB, tokens=None, cache=None)
    assert demand.cache == 16 * GiB and demand.tokens == fitting_tokens(demand, 64 * GiB)


def test_B3_errors_of_memory_that_ran_out_are_known():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 55)
    assert out_of_memory(refused.value) and out_of_memory(MemoryError())
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory")) and out_of_memory(OSError(12, "no"))
    assert not out_of_memory(RuntimeError("size mismatch")) and not out_of_memory(OSError(28, "full"))


def test_B3_a_job_that_runs_out_of_memory_is_told_what_to_lower(monkeypatch):
    monkeypatch.setattr(Local, "_run", lambda self, job: torch.empty(1 << 55))
    with pytest.raises(
        AjetError, match=r"backbone\.local: out of memory .*memory_limit.*micro_batch_tokens"
    ) as refused:
        Local().run(None)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text, size",
    [("2GiB", 2 * GiB), ("512 MiB", 512 << 20), ("1.5gb", 1_500_000_000), ("100", 100), ("64k", 64_000)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "2TiBs", "-1", "0"])
def test_what_is_no_size_is_refused_with_the_key(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)
    with pytest.raises(ValueError, match="memory_limit"):
        Local(memory_limit=text)


def test_sizes_are_written_shortly():
    assert [format_size(n) for n in (20 << 20, 1.5 * GiB)] == ["20 MiB", "1.5 GiB"]


def test_the_machine_has_memory_left():
    assert (
        1 << 20 < free_memory(torch.device("cpu")) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )


def test_a_sampler_of_its_own_caches_a_quarter_of_what_is_left(monkeypatch):
    monkeypatch.setattr("ajet_local.engine.free_memory", lambda device: 4 << 20)
    scheduler = LocalEngine(make_model(), None).scheduler
    assert scheduler.max_tokens * scheduler.layout.layers * scheduler.layout.layer_bytes == 1 << 20


def test_a_job_above_its_limit_is_refused_before_anything_is_loaded(tmp_path, tokenizer):
    saved(make_model(), tokenizer, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    local = Local(device="cpu", memory_limit="100MiB")
    with pytest.raises(
        ConfigError, match=r"the job needs about .*but there are 100 MiB \(memory_limit\): the program"
    ):
        local.trainer(str(tmp_path), TrainSettings(), seed=0, deterministic=False, progress=Silent())


# --------------------------------------------------------------------------- within a limit

TRAINED = """
import re, sys
from pathlib import Path
import numpy as np
import torch
from ajet.learning.algorithms import SFT
from ajet.learning.packing import pack
from ajet.learning.settings import TrainSettings
from ajet.interfaces.progress import Silent
from ajet.types import Batch, Sample, Span
from ajet_local import Local

folder, limit, out = sys.argv[1:]
torch.set_num_threads(1)
rng = np.random.default_rng(0)
trunk = rng.integers(0, 2000, 256)

def sample(ids):
    on = (np.arange(len(ids)) >= len(trunk)).astype(np.float32)
    spans = (Span(len(trunk), len(ids), 0, "agent", "policy"),)
    return Sample(np.array(ids, np.int32), on > 0, on, on * rng.normal(), on / len(ids), spans)

samples = [sample([*trunk, n, *rng.integers(0, 2000, 59)]) for n in range(64)]
assert len(pack(samples).token_ids) == 4096
local = Local(device="cpu", cache_mib=16, memory_limit=limit or None)
settings = TrainSettings(max_grad_norm=1e9, adam_epsilon=1.0)
trainer = local.trainer(folder, settings, seed=0, deterministic=False, progress=Silent())
trainer.update(Batch(samples, SFT().loss, [range(64)], 1.0))
torch.save(
    {
        "tokens": trainer.micro_batch_tokens,
        # Not ru_maxrss: a child's begins with what its parent had.
        "peak": int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024,
        "weights": torch.cat([p.detach().flatten() for p in trainer.model.parameters()]),
    },
    out,
)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_tree_of_64_branches_keeps_to_the_memory_limit_by_splitting_with_equal_gradients(
    tmp_path, tokenizer
):
    model = make_model(vocab_size=2000, hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
    saved(model, tokenizer, tmp_path / "model")

    def trained(limit):
        command = [sys.executable, "-c", TRAINED, str(tmp_path / "model"), limit, str(tmp_path / "out.pt")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, check=True, timeout=300)
        return torch.load(tmp_path / "out.pt")

    limited, free = trained("950MiB"), trained("")
    assert limited["tokens"] < 4096 <= free["tokens"]
    assert limited["peak"] <= 1.05 * parse_size("950MiB") < free["peak"]
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (limited["weights"] - free["weights"]).norm() <= 1e-5 * (free["weights"] - start).norm()
