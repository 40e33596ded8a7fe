"""Compares verl's FSDP engine on trees with the same engine on rows, on call logs: CPU time and exactness.

    .venv-verl/bin/python bench/verl_trees.py        # with the environment variables that `make test-verl` sets

The rows are the timelines of each log of `bench/tree_training.py`, and of a group of eight answers to one prompt. verl
computes them as its padded rows, and as the trees that the backbone lays out. Figures are CPU time of forward and backward
passes of one rank, on one thread; each is the minimum of several alternating rounds. Also printed: whether the backbone
would choose trees by itself, and the differences of loss and gradient. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from call_logs import SCENARIOS
from tree_training import SCALE, SCALES, difference, make_model, make_samples

from ajet.learning.algorithms import GRPO
from ajet.learning.objective import objective
from ajet.learning.settings import TrainSettings
from ajet.types import Sample, Span
from ajet_trees.cost import Flops
from ajet_verl.layout import PADDING, TREE, TreeChoice, lay_out_trees, of_rows, of_trees
from ajet_verl.loss import WorkerLoss

MEMBERS, PROMPT, ANSWER = 8, 400, 100
"""Of the group: its answers, and tokens of the prompt and of each answer, before they are scaled."""
MICRO_BATCH = 16384
"""Most tokens of a micro-batch: verl's default."""
ROUNDS = 3


class Silent:
    """Reports no progress."""

    def beat(self) -> None: ...


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and return the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--logs", default=",".join(["group", *SCENARIOS]), help="names of logs, separated by commas"
    )
    parser.add_argument("--scale", type=float, help="factor of all text lengths")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = make_model("qwen3")
    flops = Flops.of(model)
    with tempfile.TemporaryDirectory() as folder, one_rank(Path(folder)):
        model.save_pretrained(folder)
        engine = make_engine(folder)
        print(
            f"{'log':10}{'rows':>6}{'tokens':>9}{'seconds':>9}{'trees':>8}{'faster':>8}{'chosen':>8}{'loss':>9}{'gradient':>10}"
        )
        found = {}
        for name in options.logs.split(","):
            scale = options.scale or SCALES.get(name, SCALE)
            samples = group(scale) if name == "group" else make_samples(name, 0, scale)[1]
            found[name] = compare(engine, name, samples, flops)
    print(json.dumps({"verl_trees": found}))
    return {"verl_trees": found}


def group(scale: float) -> list[Sample]:
    """The answers of a group of episodes to one prompt."""
    draw = np.random.default_rng(0)
    prompt = draw.integers(8, 1000, int(PROMPT * scale))
    return [
        sample([*prompt, *draw.integers(8, 1000, int(ANSWER * scale))], len(prompt), draw.normal())
        for _ in range(MEMBERS)
    ]


def sample(ids: Sequence[int], start: int, advantage: float = 1.0, stop: int | None = None) -> Sample:
    """A sample whose tokens ``start`` to ``stop`` are trained."""
    mask = np.zeros(len(ids), np.bool_)
    mask[start:stop] = True
    return Sample(
        np.array(ids, np.int32),
        mask,
        np.where(mask, -1.0, np.nan).astype(np.float32),
        np.where(mask, advantage, 0).astype(np.float32),
        np.where(mask, 1 / mask.sum(), 0).astype(np.float32),
        (Span(start, stop or len(ids), 0, "agent", "policy"),),
    )


def compare(engine: Any, name: str, samples: Sequence[Sample], flops: Flops) -> dict[str, Any]:
    """The figures of a log."""
    loss = WorkerLoss(objective(GRPO(), TrainSettings()), fresh=True, pulse=Silent())  # type: ignore[arg-type]
    rows = make_batch(samples)
    laid_out = lay_out_trees([range(len(samples))], samples, 1, MICRO_BATCH)
    trees = make_batch(samples, laid_out.rows, laid_out.trees)
    of_both = [measured(engine, batch, loss) for batch in (rows, trees)]
    for _ in range(ROUNDS - 1):
        for both, batch in zip(of_both, (rows, trees), strict=True):
            both[0] = min(both[0], measured(engine, batch, loss)[0])
    (seconds, exact_loss, exact), (tree_seconds, tree_loss, gradient) = of_both
    lengths = [len(s.token_ids) for s in samples]
    chosen = TreeChoice("auto", flops, MICRO_BATCH).rows([range(len(samples))], samples, 1) is not None
    ratio, speedup = sum(lengths) / laid_out.tokens, seconds / tree_seconds
    print(
        f"{name:10}{len(samples):6}{ratio:9.2f}{seconds:9.2f}{tree_seconds:8.2f}{speedup:8.2f}{'yes' if chosen else 'no':>8}"
        f"{abs(tree_loss / exact_loss - 1):9.1e}{difference(gradient, exact):10.1e}",
        flush=True,
    )
    return {
        "speedup": round(speedup, 2),
        "token_ratio": round(ratio, 2),
        "chosen": chosen,
        "estimate": round(of_rows(lengths, flops) / of_trees(laid_out, flops), 2),
        "grad_rel_diff": float(f"{difference(gradient, exact):.2g}"),
    }


def measured(engine: Any, batch: Any, loss: WorkerLoss) -> list[Any]:
    """[CPU seconds, loss, float64 gradient] of the passes over a batch."""
    start = time.process_time()
    total, found = gradients(engine, batch, loss)
    return [time.process_time() - start, total, found]


# --------------------------------------------------------------------------- verl's engine


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """A block in which this process is the only rank of torch's process group."""
    join(folder / "store", 0, 1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def join(store: Path, rank: int, ranks: int) -> None:
    """Make this process a rank of a process group, which meets at the file ``store``."""
    import verl.workers.engine  # noqa: F401 (chooses the platform, which must precede the process group)

    dist.init_process_group("cpu:gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)


def make_engine(model: str, **settings: Any) -> Any:
    """verl's FSDP2 engine, as its workers make it, for a model's folder; ``settings`` are those of verl's model."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    defaults: dict[str, Any] = {
        "load_tokenizer": False,
        "external_lib": "ajet_verl.workers",
        "use_remove_padding": False,
        "enable_gradient_checkpointing": False,
        "override_config": {"attn_implementation": "sdpa"},
    }
    model_config = HFModelConfig(path=model, **defaults | settings)
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32"}
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=model_config,
        engine_config=FSDPEngineConfig(strategy="fsdp2", mixed_precision=precision, use_torch_compile=False),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=1),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def make_batch(
    samples: Sequence[Sample], order: Sequence[int] | None = None, trees: Sequence[int] = (), **settings: Any
) -> Any:
    """Samples as verl's workers receive them, in the given order, with `PADDING`; ``trees`` are the field `TREE`."""
    from verl.utils import tensordict_utils as tu

    padding = sample([0, 0], 1, 0.0)
    chosen = [
        padding if i == PADDING else samples[i] for i in (range(len(samples)) if order is None else order)
    ]
    masks = [s.mask & (s is not padding) for s in chosen]
    starts = [int(s.mask.argmax()) for s in chosen]

    def nested(arrays: Sequence[Any], kind: torch.dtype) -> torch.Tensor:
        return torch.nested.as_nested_tensor(
            [torch.as_tensor(a).to(kind) for a in arrays], layout=torch.jagged
        )

    def responses(arrays: Sequence[Any], kind: torch.dtype) -> torch.Tensor:
        return nested([array[start:] for array, start in zip(arrays, starts, strict=True)], kind)

    tensors = {
        "input_ids": nested([s.token_ids for s in chosen], torch.long),
        "position_ids": nested([np.arange(len(s.token_ids)) for s in chosen], torch.long),
        "prompts": nested([s.token_ids[:n] for s, n in zip(chosen, starts, strict=True)], torch.long),
        "responses": responses([s.token_ids for s in chosen], torch.long),
        "response_mask": responses(masks, torch.long),
        "loss_mask": responses(masks, torch.long),
        "rollout_log_probs": responses([np.nan_to_num(s.logprobs) for s in chosen], torch.float32),
        "advantages": responses([s.advantages for s in chosen], torch.float32),
        "weights": responses([s.weights for s in chosen], torch.float32),
        "calls": responses([_calls(s) for s in chosen], torch.int32),
        "weight_versions": responses([np.zeros(len(s.token_ids)) for s in chosen], torch.int32),
    }
    if trees:
        tensors[TREE] = nested([[number] for number in trees], torch.long)
    other = {
        "temperature": 1.0,
        "weight_version": 0,
        "use_dynamic_bsz": True,
        "max_token_len_per_gpu": MICRO_BATCH,
        "use_remove_padding": False,
        "use_fused_kernels": False,
        **settings,
    }
    return tu.get_tensordict(tensors, other)


def _calls(sample: Sample) -> np.ndarray:
    calls = np.zeros(len(sample.token_ids), np.int32)
    for number, span in enumerate(sample.spans, 1):
        calls[span.start : span.end] = number
    return calls


def gradients(engine: Any, batch: Any, loss: WorkerLoss) -> tuple[float, torch.Tensor]:
    """The loss of a batch on this rank, and the float64 gradient of all ranks."""
    with engine.train_mode():
        engine.optimizer_zero_grad()
        output = engine.forward_backward_batch(batch.copy(), loss)
        found = [p.grad.full_tensor() for p in engine.module.parameters()]
        flat = torch.cat([g.flatten().double() for g in found])
    return sum(output["loss"]), flat


if __name__ == "__main__":
    main()
