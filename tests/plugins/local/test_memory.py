"""What a job will take of memory is known before it starts, and a limit is kept to by splitting."""

import ctypes
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config  # noqa: E402

from ajet.estimate.devices import Gpus  # noqa: E402
from ajet.estimate.layout import JobSizes  # noqa: E402
from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.learning.settings import LoraSettings, TrainSettings  # noqa: E402
from ajet.types import AjetError, ConfigError  # noqa: E402
from ajet_advice.known import DEVICES, read_shape  # noqa: E402
from ajet_local import Local  # noqa: E402
from ajet_local.backbone import LocalEnginePlugin  # noqa: E402
from ajet_local.blueprint import Apart, Blueprint  # noqa: E402
from ajet_local.demand import (  # noqa: E402  # noqa: E402
    LEAST_CACHED,
    USEFUL_TOKENS,
    Demand,
    GivenSizes,
    fit,
    format_size,
    parse_size,
    refuse,
)
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.memory import (  # noqa: E402
    MOST_FREED,
    free_memory,
    out_of_memory,
    resident,
    shape_of,
    shape_of_model,
)
from ajet_lora.adapters import Adapters  # noqa: E402
from ajet_trees.memory import Training  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402

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


def demand(shape, tokens=0, cache=0, *, number=4, asynchronous=False, reference=0, **training):
    return Demand(
        Training(shape=shape, number=number, **training),
        tokens,
        cache,
        asynchronous=asynchronous,
        reference=reference,
    )


def test_the_parts_of_a_job():
    shape = shape_of_model(make_model())
    whole = demand(shape, 256, GiB)
    p = shape.parameters
    assert p == sum(x.numel() for x in make_model().parameters())
    assert {k: whole.parts[k] for k in ("weights", "gradients", "AdamW")} == {
        "weights": 4 * p,
        "gradients": 4 * p,
        "AdamW": 8 * p,
    }
    assert demand(shape, 256, GiB, asynchronous=True, reference=p).total - whole.total == 8 * p
    bf16 = demand(shape, 256, GiB, number=2)
    assert bf16.parts["weights"] == 4 * p and bf16.parts["the engine's copy"] == 2 * p
    assert bf16.parts["converted weights"] == 2 * (p - shape.embedding)
    model = make_model()
    adapters = Adapters(model)
    adapters.add("solver", LoraSettings(rank=3), seed=0)
    size = sum(x.numel() for x in adapters.parameters("solver"))
    assert shape.adapter_parameters(3) == size
    lora = demand(shape, 256, GiB, number=2, adapters=2 * size, trained=size)
    assert {k: lora.parts[k] for k in ("weights", "adapters", "gradients", "AdamW")} == {
        "weights": 2 * p,
        "adapters": 8 * size,
        "gradients": 4 * size,
        "AdamW": 8 * size,
    }
    adapters.add("some", LoraSettings(rank=2, modules=("q_proj", "down_proj")), seed=0)
    some = sum(x.numel() for x in adapters.parameters("some"))
    assert shape.adapter_parameters(2, ("q_proj", "down_proj")) == some


def saved(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("architecture", [Qwen2Config, Qwen3Config, LlamaConfig])
@pytest.mark.parametrize("tied", [False, True])
def test_a_shape_is_read_from_a_config_alone(tmp_path, tokenizer, architecture, tied):
    """By transformers, for any architecture, and by the core, without transformers: both find what the model has."""
    model = make_model(architecture, tie_word_embeddings=tied)
    saved(model, tokenizer, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    assert shape_of(tmp_path) == shape_of_model(model) == read_shape(str(tmp_path))


QWEN = read_shape("Qwen/Qwen3-0.6B")


def fitted(found, limit, shared=True, **given):
    return fit(found, limit, GivenSizes(**given), shared=shared)


def test_the_micro_batch_is_the_largest_power_of_two_beside_a_quarter_for_the_cache():
    assert fitted(demand(QWEN), 1 << 50).tokens == 16384
    for limit in (24 * GiB, 40 * GiB):
        found = fitted(demand(QWEN), limit)
        assert found.cache == limit // 4 and found.total <= limit
        assert replace(found, tokens=2 * found.tokens).total > limit
        assert found.tokens & (found.tokens - 1) == 0


def test_a_plan_counts_the_chunk_of_a_fused_head():
    """For many tokens, the plan counts 1 GiB of bfloat16 logits with `fused`, and two and a half copies of 256 MiB without it. For few
    tokens, both take the same."""
    lengths = dict(context=2048, prompt=500, answer=500)
    sizes = JobSizes(shape=QWEN, adapters={}, trained=(), episodes=64, concurrency=64, **lengths)

    def training(tokens, **more):
        settings = dict(engine="local", dtype="bfloat16", cache_mib=1, micro_batch_tokens=tokens)
        local = Local(device="cuda", **settings, **more)
        layout = local.layout(sizes, Gpus(1, DEVICES["H100"]))
        return sum(layout.phases[-1].parts.values())

    assert training(16384, fused=True) - training(16384) == GiB - 640 * 2**20
    assert training(1024, fused=True) == training(1024)


def test_a_cache_gets_what_training_leaves_if_that_is_less_than_a_quarter():
    found = fitted(demand(QWEN, number=2), 17 * GiB)
    assert found.tokens == USEFUL_TOKENS and not found.training.checkpointing
    assert found.least_cache < found.cache < 17 * GiB // 4 and found.total == 17 * GiB


def test_activations_are_computed_twice_only_where_nothing_else_makes_room():
    limits = [gib * GiB for gib in range(13, 32, 2)]
    found = [fitted(demand(QWEN, number=2), limit) for limit in limits]
    checkpointing = [one.training.checkpointing for one in found]
    assert checkpointing == sorted(checkpointing, reverse=True) and set(checkpointing) == {True, False}
    assert all(one.total <= limit for one, limit in zip(found, limits, strict=True))
    given = fitted(demand(QWEN, number=2), 13 * GiB, checkpointing=False)
    assert not given.training.checkpointing, "what is set is kept"


def test_an_impossible_job_is_refused_with_its_parts_and_what_would_fit():
    def message(found, limit):
        return str(refuse(found, limit, "memory_limit"))

    found = demand(QWEN, 4096, 2 * GiB)
    small = message(found, 16 * GiB)
    assert small.startswith("backbone.local: the job needs about ") and "\n" not in small
    assert "but there are 16.0 GiB (memory_limit): weights 2.2 GiB, AdamW 4.4 GiB, gradients 2.2 GiB" in small
    assert "activations of 4096 tokens" in small and "the engine's cache 2.0 GiB" in small
    for limit in (8, 12, 16):
        text = message(found, limit * GiB)
        assert ("It would fit with " in text) != ("Nothing makes it fit" in text)
    assert "a lora" in message(found, 8 * GiB)
    assert "Nothing makes it fit: it takes at least" in message(found, GiB)


def test_what_the_refusal_advises_does_fit():
    found = demand(QWEN, 16384, 4 * GiB)
    text = str(refuse(found, 20 * GiB, "memory_limit"))
    tokens = int(text.partition("micro_batch_tokens: ")[2].split()[0].strip("."))
    assert replace(found, tokens=tokens).total <= 20 * GiB


def advised(text):
    """The changes of settings that a refusal names one by one."""
    words = text.partition("It would fit with ")[2].rstrip(".").split(" or with ")
    return [word.partition(" (")[0].partition(": ") for word in words if word]


def test_a_qwen3_of_4b_is_trained_whole_on_80_gb_with_a_cache_that_holds_useful_sequences():
    shape = read_shape("Qwen/Qwen3-4B")
    limit = DEVICES["H100"].usable
    found = fitted(demand(shape, number=2), limit)
    assert found.total <= limit and found.tokens >= USEFUL_TOKENS
    assert found.cache >= 2 * shape.cached(LEAST_CACHED, 2)
    given = fitted(demand(shape, number=2), limit, cache=limit // 4)
    assert given.total > limit, "a cache that was asked for stays"
    ((name, _, value),) = [
        change for change in advised(str(refuse(given, limit, "free"))) if change[0] == "cache_mib"
    ]
    changed = replace(given, cache=int(value) << 20)
    assert name and changed.total <= limit and changed.cache >= shape.cached(LEAST_CACHED, 2)


def test_the_backbone_accepts_it_on_a_card_of_80_gb_without_settings(tmp_path, tokenizer, monkeypatch):
    """With the shapes alone: no weights of 4 B parameters are loaded, and the card's free memory is what a driver reports."""
    sizes = dict(vocab_size=151_936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36)
    heads = dict(num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)
    Qwen3Config(**sizes, **heads).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (int(79.1 * GiB), int(79.6 * GiB)))
    local = Local(device="cuda")
    shape = shape_of(tmp_path)
    blueprint = Blueprint(
        local=local,
        source=tmp_path,
        shape=shape,
        compute=torch.bfloat16,
        train=TrainSettings(),
        seed=0,
        deterministic=False,
        progress=Silent(),
        needs=(),
        adapters={},
        trained=(),
        apart=None,
    )
    found = blueprint.demand()
    assert local.computed_in(shape, Silent()) == blueprint.compute
    assert found.training.number == 2 and found.training.whole and found.tokens >= USEFUL_TOKENS
    assert found.total <= 79.1 * GiB and found.cache >= 2 * found.least_cache


def test_an_engine_that_sleeps_leaves_its_memory_to_the_update():
    shape = read_shape("Qwen/Qwen3-4B")
    limit = DEVICES["H100"].usable
    together, apart = (
        fitted(replace(demand(shape, number=2), apart=apart), limit, shared=False) for apart in (False, True)
    )
    sampling, training = (sum(parts.values()) for parts in apart.phases.values())
    assert sampling <= limit and training <= limit and apart.total == max(sampling, training)
    assert "the engine's cache" not in apart.phases["training"]
    assert apart.cache > 2 * together.cache, "the cache gets what gradients and activations take otherwise"
    assert apart.tokens >= together.tokens
    assert "engine: local" in str(refuse(apart, limit // 4, "free"))


def test_an_engine_that_sleeps_caches_no_more_than_the_episodes_have():
    shape = read_shape("Qwen/Qwen3-0.6B")
    limit = DEVICES["H100"].usable
    small = replace(demand(shape, number=2), apart=True, cached=8 * 4096)
    assert fitted(small, limit, shared=False).cache == shape.cached(8 * 4096, 2)
    eight_bits = fitted(replace(small, eight_bit_cache=True), limit, shared=False)
    assert eight_bits.cache == shape.cached(8 * 4096, 1)
    unknown = fitted(replace(small, cached=None), limit, shared=False)
    assert fitted(replace(small, cached=1 << 30), limit, shared=False).cache == unknown.cache > 50 * GiB


def test_an_engine_that_samples_during_updates_fits_beside_them():
    shape = read_shape("Qwen/Qwen3-0.6B")
    limit = DEVICES["H100"].usable
    asked = replace(demand(shape, number=2, asynchronous=True), apart=True, cached=16 * 4096)
    found = fitted(asked, limit, shared=False)
    assert found.cache == shape.cached(16 * 4096, 2)
    assert {"gradients", "the engine's weights", "the engine's cache"} <= found.parts.keys()
    assert sum(found.parts.values()) == found.total <= limit
    tight = fitted(asked, 24 * GiB, shared=False)
    assert tight.cache < found.cache and tight.tokens < found.tokens and tight.total <= 24 * GiB


def test_a_cache_stays_a_quarter_where_there_is_room_for_it():
    assert fitted(demand(QWEN), 64 * GiB).cache == 16 * GiB


def test_a_cache_gets_all_that_is_left_of_a_gpu_up_to_half():
    found = fitted(demand(QWEN, number=2), 64 * GiB, shared=False)
    assert 16 * GiB < found.cache < 32 * GiB and found.total == 64 * GiB
    assert fitted(demand(QWEN, number=2), 400 * GiB, shared=False).cache == 200 * GiB


def test_errors_of_memory_that_ran_out_are_known():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 55)
    assert out_of_memory(refused.value) and out_of_memory(MemoryError())
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory")) and out_of_memory(OSError(12, "no"))
    assert not out_of_memory(RuntimeError("size mismatch")) and not out_of_memory(OSError(28, "full"))


def test_a_job_that_runs_out_of_memory_is_told_what_to_lower(monkeypatch):
    monkeypatch.setattr(Local, "_run", lambda self, job: torch.empty(1 << 55))
    with pytest.raises(
        AjetError, match=r"backbone\.local: out of memory .*memory_limit.*micro_batch_tokens"
    ) as refused:
        Local().run(SimpleNamespace(model="smollm2", progress=Silent()))
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


def test_an_engine_of_its_own_starts_before_the_model_loads_and_ends_if_that_fails(tmp_path, tokenizer):
    saved(make_model(), tokenizer, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    happened = []

    def build_shared(model, seed, progress, **asked):
        happened.append(f"built for {asked['requests']} requests")
        return SimpleNamespace(begin=begin)

    def begin():
        happened.append("begins")
        return lambda: happened.append("ends")

    with ExitStack() as ends:
        apart = Apart(plugin=SimpleNamespace(build_shared=build_shared), episodes=3, context=64, ends=ends)
        with pytest.raises(AjetError, match=str(tmp_path)):
            Local(device="cpu").trainer(
                str(tmp_path), TrainSettings(), seed=0, deterministic=False, progress=Silent(), apart=apart
            )
        assert happened == ["built for 3 requests", "begins"]
    assert happened[2:] == ["ends"]


def test_an_engine_that_only_answers_caches_a_quarter_of_its_limit_or_what_the_weights_leave(
    tmp_path, tokenizer
):
    saved(make_model(), tokenizer, tmp_path)

    def cached(limit):
        plugin = LocalEnginePlugin(device="cpu", memory_limit=limit)
        scheduler = plugin.build(str(tmp_path), 0, Silent()).scheduler
        return scheduler.max_tokens * scheduler.layout.layers * scheduler.layout.layer_bytes

    assert cached("64GiB") == 16 << 30
    assert 0 < cached(str(resident() + MOST_FREED + (20 << 20))) <= 20 << 20
    with pytest.raises(
        ConfigError, match=r"^backbone\.local\.memory_limit: the model needs .* Raise the limit"
    ):
        cached("10MiB")


# --------------------------------------------------------------------------- within a limit

FREED = """
import ctypes
import torch
from ajet_local.memory import MOST_FREED, resident, return_freed, share_heap

share_heap()
torch.ones(6 << 20)  # 24 MiB: from when it is freed on, smaller tensors come from the heap
tensors, blocks = [], []
for _ in range(2 * MOST_FREED >> 22):
    tensors.append(torch.ones(1 << 20))
    blocks.append(torch.ones(1 << 14))  # too large for what importing has freed
full = resident()
tensors.clear()
kept = resident()
return_freed(torch.device("meta"))
assert resident() > kept - MOST_FREED // 8, "only the memory of a CPU is returned"
return_freed(torch.device("cpu"))
print(full - kept < MOST_FREED // 8, full - resident() > 1.9 * MOST_FREED)
"""


@pytest.mark.whole
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc from 2.33 on says how much is free"
)
def test_what_an_update_has_freed_returns_to_the_system_although_small_blocks_stay():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FREED], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


TRAINED = """
import re, sys
from pathlib import Path
import numpy as np
import torch
from ajet.learning.algorithms import SFT
from ajet_trees.packing import pack
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
        subprocess.run(command, env=environment, check=True, timeout=PATIENCE)
        return torch.load(tmp_path / "out.pt")

    limited, free = trained("950MiB"), trained("")
    assert limited["tokens"] < 4096 <= free["tokens"]
    assert limited["peak"] <= 1.05 * parse_size("950MiB") < free["peak"]
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (limited["weights"] - free["weights"]).norm() <= 1e-5 * (free["weights"] - start).norm()
