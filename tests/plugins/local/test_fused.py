"""Layers whose parts torch has compiled: the gradients of the plain pass, with fewer kernels that move fewer bytes."""

import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.learning.algorithms import SFT  # noqa: E402
from ajet.learning.settings import LoraSettings, TrainSettings  # noqa: E402
from ajet.types import Batch, ConfigError  # noqa: E402
from ajet_local import Local  # noqa: E402
from ajet_local.fused import fuse  # noqa: E402
from ajet_local.modeling import enable_checkpointing  # noqa: E402
from ajet_local.trees import enable_trees  # noqa: E402
from ajet_trees.head import head_of  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402
from tests.plugins.local import test_gpu as jobs  # noqa: E402
from tests.plugins.local.test_trees import (  # noqa: E402
    TRAINED,
    assert_equal,
    by_target,
    loss_and_gradients,
    of_rows,
    of_tree,
    random_forest,
    tiny,
    with_adapters,
)
from tests.tiers import thinned  # noqa: E402

SHAPE = dict(
    hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8, head_dim=128
)
"""A layer of Qwen3-0.6B."""
TOKENS = 258
"""Of the tree over which a model is tried."""


def ready(**more):
    """A model with transformers' own norms, prepared for trees."""
    model = tiny(**more)
    for part in model.modules():
        vars(part).pop("forward", None)
    assert enable_trees(model) == ""
    return model


def fused(model, *, autocast=False, backend="aot_eager"):
    """Tracing and differentiation are those of the compiler that a job has; by default this one makes no kernels."""
    return fuse(model, lambda: torch.autocast("cpu", torch.bfloat16, enabled=autocast), backend=backend)


def own_forwards(model):
    return [name for name, part in model.named_modules() if "forward" in vars(part)]


@pytest.fixture(autouse=True)
def _compiled_anew():
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


@pytest.mark.whole
@thinned
@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_losses_and_gradients_are_those_of_the_plain_pass_and_later_trees_compile_nothing(
    trained, checkpointing
):
    model = ready()
    adapters = with_adapters(model, TRAINED[trained])
    if checkpointing:
        enable_checkpointing(model)
    cases = [
        (of_tree, random_forest(0)),
        (of_rows, random_forest(0)),
        (of_tree, random_forest(1, longest=90)),
    ]
    cases = [(tokens, by_target(samples, TRAINED[trained])) for tokens, samples in cases]
    expected = [loss_and_gradients(model, groups, tokens, adapters) for tokens, groups in cases]
    assert fused(model) == "" and len(own_forwards(model)) == 8 and head_of(model).kernels
    for number, (tokens, groups) in enumerate(cases):
        if number == 2:
            torch.compiler.set_stance("fail_on_recompile")
        assert_equal(loss_and_gradients(model, groups, tokens, adapters), expected[number], 1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("wrong", ["logprobs", "gradients"])
def test_a_model_that_compiles_to_something_else_stays_as_it_was(wrong):
    model = ready()
    part = model.model.layers[1].mlp

    def forward(x):
        y = type(part).forward(part, x)
        if not torch.compiler.is_compiling():
            return y
        return 2 * y if wrong == "logprobs" else y + (y - y.detach())

    part.forward = forward
    assert fused(model) == f"compiled kernels give other {wrong}"
    assert own_forwards(model) == ["model.layers.1.mlp"] and part.forward is forward
    assert head_of(model).kernels is None


def test_a_model_that_cannot_be_compiled_stays_as_it_was():
    model = ready()
    assert "no_such_compiler" in fused(model, backend="no_such_compiler")
    assert own_forwards(model) == [] and head_of(model).kernels is None


def test_layers_are_fused_only_where_the_job_asks_for_it_and_are_refused_by_name(tokenizer, tmp_path):
    jobs.tiny(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    def trainer(deterministic=False, adapters=None, **settings):
        return Local(device="cpu", **settings).trainer(
            str(tmp_path),
            TrainSettings(),
            seed=0,
            deterministic=deterministic,
            progress=Silent(),
            adapters=adapters or {},
        )

    assert own_forwards(trainer(dtype="bfloat16").model) == []
    with pytest.raises(ConfigError, match=r"backbone\.local\.fused.*the engine samples from the same model"):
        trainer(fused=True)
    with pytest.raises(ConfigError, match="the engine samples from the same model"):
        trainer(fused=True, dtype="bfloat16", adapters={"solver": LoraSettings(rank=4)})
    with pytest.raises(ConfigError, match="may differ between runs"):
        trainer(fused=True, dtype="bfloat16", deterministic=True)


@pytest.mark.whole
def test_a_fused_job_learns_as_a_plain_one(tokenizer, tmp_path):
    jobs.tiny(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    batch = Batch(jobs.samples(), SFT().loss, [range(6)], 1e-3)
    found = []
    for on in (False, True):
        trainer = Local(device="cpu", dtype="bfloat16", fused=on).trainer(
            str(tmp_path), TrainSettings(), seed=0, deterministic=False, progress=Silent()
        )
        assert bool(own_forwards(trainer.model)) is on
        found.append([trainer.update(batch) for _ in range(3)])
        trainer.save(tmp_path / f"fused {on}")
        trainer.load(tmp_path / f"fused {on}")
    for plain, ours in zip(*found, strict=True):
        assert ours["loss"] == pytest.approx(plain["loss"], rel=0.01)
        assert ours["grad_norm"] == pytest.approx(plain["grad_norm"], rel=0.02)


class TestOnCuda:
    pytestmark = jobs.ON_CUDA

    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_the_kernels_give_the_losses_and_gradients_of_the_plain_pass(self, checkpointing):
        model = ready().cuda()
        if checkpointing:
            enable_checkpointing(model)
        cases = [(of_tree, random_forest(seed, longest=longest)) for seed, longest in ((0, 40), (1, 300))]
        expected = [loss_and_gradients(model, [samples], tokens) for tokens, samples in cases]
        assert fused(model, backend="inductor") == ""
        for (tokens, samples), plain in zip(cases, expected, strict=True):
            assert_equal(loss_and_gradients(model, [samples], tokens), plain, 1e-3)  # products may be in TF32


COUNTED = """
import torch
import ajet_local.fused
ajet_local.fused.fuse_head = lambda *given: None
from tests.plugins.local.test_fused import SHAPE, fused, ready
torch.set_num_threads(1)
assert fused(ready(num_hidden_layers=1, initializer_range=0.02, **SHAPE), autocast=True, backend="inductor") == ""
"""


def reported(program):
    """Of each graph that a program compiles, in their order: the bytes that its kernels move, and what each kernel is."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "TORCH_LOGS": "inductor_metrics",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=True,
        timeout=PATIENCE,
        capture_output=True,
        text=True,
    ).stderr
    graphs = re.findall(r"'num_bytes_accessed': (\d+), 'nodes_num_elem': \[(.*?)\], 'node_runtimes'", said)
    return [(int(moved), re.findall(r"(\w+)\(\w+=[\w']+\), \d+", kernels)) for moved, kernels in graphs]


@pytest.mark.whole
def test_a_layer_of_qwen3_takes_at_most_70_kernels_and_400_kb_of_elementwise_traffic_a_token():
    """Forward and backward, under autocast with float32 weights; counted in what torch's compiler reports of its kernels for a CPU.
    Plain, they are 182 kernels and 1.3 MB."""
    graphs = reported(COUNTED)
    traffic = sum(moved for moved, _ in graphs)
    kernels = [kind for _, kinds in graphs for kind in kinds]
    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    queries, keys = (SHAPE["head_dim"] * SHAPE[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    shapes = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden), *3 * [(hidden, inner)]]
    weights = sum(i * o for i, o in shapes)
    # Of each, a product and those of its two gradients.
    assert sum(kind.startswith("Extern") for kind in kernels) == 3 * len(shapes)
    products = 3 * 2 * (weights + TOKENS * sum(i + o for i, o in shapes))
    # Not compiled: two sums of the residual stream, and conversions of queries and keys for attention; each also backwards.
    outside = 2 * 2 * (4 + 2 + 4) * hidden + 2 * (4 + 2) * (queries + keys)
    converted = 2 * (4 + 2) * weights  # to bfloat16, and their gradients from it
    elementwise = (traffic - products - converted) / TOKENS + outside
    assert len(kernels) + 2 * 2 + 2 * 2 + 2 <= 70  # 2: attention
    assert 200_000 <= elementwise <= 400_000


HEAD_COUNTED = """
import torch
from dataclasses import replace
from ajet_trees.head import Predictions, fuse_head, head_of
from tests.plugins.local.test_fused import HEAD, ready
torch.set_num_threads(1)
tokens, vocabulary = HEAD
model = ready(vocab_size=vocabulary)
fuse_head(model, lambda function: torch.compile(function, dynamic=True))
states = torch.randn(tokens, 32, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    found = Predictions(states, head_of(model)).logprobs(torch.arange(tokens), torch.ones(tokens), entropy=True)
sum(found).sum().backward()
"""
HEAD = 64, 50_001
"""Tokens, and a vocabulary that has no whole number of blocks."""


@pytest.mark.whole
def test_the_logits_are_read_once_and_then_read_and_overwritten_once_in_bfloat16():
    """Beside the products, which write and read them. By operations of torch, that takes 46 bytes a logit forward and 80 backward, or
    22 and 44 without the entropy."""
    (forward, summing), (backward, overwriting) = reported(HEAD_COUNTED)
    logits = HEAD[0] * HEAD[1]
    assert 2 <= forward / logits <= 2.1 and len(summing) <= 2
    assert 4 <= backward / logits <= 4.1 and len(overwriting) == 1
