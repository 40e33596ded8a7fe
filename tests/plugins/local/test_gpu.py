"""On a CUDA device: bfloat16 with float32 weights of training, fused AdamW, trees by flex_attention, adapters."""

import asyncio
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, Qwen3Config  # noqa: E402

from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.learning.algorithms import SFT  # noqa: E402
from ajet.learning.settings import LoraSettings, TrainSettings  # noqa: E402
from ajet.types import Batch, GenerateRequest, Sample, Sampling, Span  # noqa: E402
from ajet_local import Local  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.rows import trained_tokens  # noqa: E402
from ajet_local.trees import enable_trees, has_trees, tree_tokens  # noqa: E402
from ajet_trees.models import ComputedTree  # noqa: E402
from ajet_trees.packing import pack  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402
from tests.plugins.local import test_recurrent as recurrent  # noqa: E402

BENCH = Path(__file__).resolve().parents[3] / "bench"
ON_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def tiny(tokenizer, **more):
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **more,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def samples(adapter=None, count=6):
    rng = np.random.default_rng(0)
    trunk = rng.integers(0, 500, 200)
    found = []
    for n in range(count):
        ids = np.array([*trunk[: 200 - 20 * n], *rng.integers(0, 500, 50)], np.int32)
        on = (np.arange(len(ids)) >= len(ids) - 50).astype(np.float32)
        spans = (Span(len(ids) - 50, len(ids), 0, "agent", "policy"),)
        found.append(Sample(ids, on > 0, on, on * rng.normal(), on / 50, spans, adapter=adapter))
    return found


class TestOnCuda:
    pytestmark = ON_CUDA

    def test_trees_by_flex_attention_give_the_gradients_of_rows(self, tokenizer):
        model = tiny(tokenizer).cuda()
        assert enable_trees(model) == "" and has_trees(model)
        found = []
        for tokens in (trained_tokens(model, samples()), tree_tokens(model, ComputedTree(pack(samples())))):
            model.zero_grad()
            (tokens.weights * -tokens.new * tokens.advantages).sum().backward()
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        assert (found[0] - found[1]).norm() <= 1e-4 * found[0].norm()

    @pytest.mark.parametrize("adapters", [{}, {"solver": LoraSettings(rank=4)}], ids=["all weights", "lora"])
    def test_a_job_samples_in_bfloat16_and_trains_in_float32(self, tokenizer, tmp_path, adapters):
        tiny(tokenizer).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        settings = TrainSettings(kl=0.01)
        trainer = Local().trainer(
            str(tmp_path), settings, seed=0, deterministic=False, progress=Silent(), adapters=adapters
        )
        name = next(iter(adapters), None)
        moved = [p for p in trainer.model.parameters() if p.requires_grad]
        assert {p.dtype for p in moved} == {torch.float32} and {p.device.type for p in moved} == {"cuda"}
        assert trainer.engine.model.dtype == torch.bfloat16

        async def scenario():
            engine = trainer.engine
            await engine.start()
            request = GenerateRequest(samples()[0].token_ids, Sampling(max_tokens=20, seed=0), adapter=name)
            try:
                return await engine.generate(request)
            finally:
                await engine.close()

        assert np.isfinite(asyncio.run(scenario()).logprobs).all()
        batch = Batch(samples(name), SFT().loss, [range(6)], 1e-2, frozenset({"reference"}))
        losses = [trainer.update(batch)["loss"] for _ in range(5)]
        assert np.isfinite(losses).all() and losses[-1] != losses[0]
        asyncio.run(trainer.publish())
        trainer.save(tmp_path / "saved")

    @pytest.mark.parametrize("kind", recurrent.SHAPES)
    def test_models_with_states_sample_what_a_pass_in_float64_says(self, kind):
        engine = LocalEngine(model := recurrent.tiny(kind).cuda(), None)
        exact = recurrent.Exact(model.cpu())
        model.cuda()
        asked = [
            recurrent.request(recurrent.prompt(0, 40).tolist() + recurrent.prompt(n, 3 * n).tolist(), seed=n)
            for n in range(4)
        ]
        for one, answer in zip(
            asked, recurrent.run(engine, lambda e: recurrent.all_of(e, asked)), strict=True
        ):
            exact.check(one, answer, 1e-3)  # products of float32 matrices may be computed in TF32

    def test_deterministic_runs_are_bit_equal(self, tokenizer, tmp_path):
        tiny(tokenizer).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)

        async def sampled(engine):
            await engine.start()
            asked = [
                GenerateRequest(s.token_ids, Sampling(max_tokens=20, seed=n)) for n, s in enumerate(samples())
            ]
            try:
                return await asyncio.gather(*map(engine.generate, asked))
            finally:
                await engine.close()

        def run():
            trainer = Local().trainer(
                str(tmp_path), TrainSettings(), seed=0, deterministic=True, progress=Silent()
            )
            batch = Batch(samples(), SFT().loss, [range(6)], 1e-2)
            for _ in range(3):
                trainer.update(batch)
            asyncio.run(trainer.publish())
            answers = asyncio.run(sampled(trainer.engine))
            return [p.cpu() for p in trainer.model.parameters()], [a.logprobs for a in answers]

        try:
            (one, said), (other, said_again) = run(), run()
        finally:
            torch.use_deterministic_algorithms(False)
        assert all(map(torch.equal, one, other))
        assert all(map(np.array_equal, said, said_again))


@pytest.mark.whole
def test_the_bench_runs_through_on_a_tiny_model(tokenizer, monkeypatch):
    """On the CPU, where its figures mean nothing."""
    monkeypatch.syspath_prepend(str(BENCH))
    bench = importlib.import_module("gpu")
    sizes = bench.Sizes(groups=1, members=3, prompt=30, answer=8, rounds=1, completions=4)
    model = tiny(tokenizer)
    figures = bench.training(model, sizes, bench.matmul_flops(model.device, 64))
    assert figures["token_ratio"] == pytest.approx(3 * 38 / (30 + 3 * 7))
    assert figures["tree_speedup"] > 0 and figures["share_of_peak"] > 0
    figures = asyncio.run(bench.generation(model.to(torch.bfloat16), sizes))
    assert figures["generated_tokens_per_second"] > 0


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_bench_says_so_without_a_cuda_device():
    done = subprocess.run(
        [sys.executable, str(BENCH / "gpu.py")], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert done.stderr == "bench/gpu.py measures a CUDA device, but torch finds none here.\n"
