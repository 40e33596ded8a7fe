"""verl's FSDP engine as two ranks, on rows that share tokens: what test_trees.py compares. It starts a process for each
rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ajet.learning.algorithms import GRPO
from ajet.learning.objective import objective
from ajet.learning.settings import TrainSettings
from ajet.types import Sample
from ajet_verl.layout import TreeRows, lay_out, lay_out_trees
from ajet_verl.loss import WorkerLoss

BENCH = Path(__file__).parents[3] / "bench"
RANKS = 2
LIMIT = 90
"""Tokens of a micro-batch, so that there are several."""
ROWS = (13, 13, 1)
"""Of each compared batch; one row leaves a rank with padding alone."""


def bench() -> Any:
    """The benchmark of this engine, which makes engines and batches."""
    if str(BENCH) not in sys.path:
        sys.path.append(str(BENCH))
    import verl_trees

    return verl_trees


def row_loss(**terms: Any) -> WorkerLoss:
    """GRPO with further terms of the loss."""
    settings = TrainSettings(**terms)
    return WorkerLoss(objective(GRPO(), settings), fresh=True, pulse=bench().Silent())


def forest(seed: int, rows: int = 12, longest: int = 40, words: int = 60) -> list[Sample]:
    """Samples that leave earlier ones anywhere, with equal ones and prefixes of others among them."""
    draw = np.random.default_rng(seed)
    made = [draw.integers(0, words, draw.integers(4, longest))]
    while len(made) < rows:
        other = made[draw.integers(len(made))]
        kept = draw.integers(0, len(other) + 1)
        ids = np.concatenate([other[:kept], draw.integers(0, words, draw.integers(0, longest))])
        if len(ids) >= 4:
            made.append(ids)
    starts = [int(draw.integers(1, len(ids))) for ids in made]
    stops = [int(draw.integers(start + 1, len(ids) + 1)) for ids, start in zip(made, starts, strict=True)]
    return [
        bench().sample(list(ids), start, float(draw.normal()), stop)
        for ids, start, stop in zip(made, starts, stops, strict=True)
    ]


def tiny(folder: Path, **changed: Any) -> str:
    """The folder of a small model."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    sizes: dict[str, Any] = {
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    kind = changed.pop("kind", Qwen3Config)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(kind(**sizes | changed)).save_pretrained(folder)
    return str(folder)


def part(samples: Sequence[Sample], laid_out: TreeRows, rank: int, **settings: Any) -> Any:
    """A rank's rows as trees."""
    share = len(laid_out.rows) // RANKS
    own = slice(rank * share, (rank + 1) * share)
    return bench().make_batch(samples, laid_out.rows[own], laid_out.trees[own], **settings)


def run(rank: int, folder: str) -> None:
    """Write what a rank finds."""
    tools = bench()
    tools.join(Path(folder) / "store", rank, RANKS)
    engine = tools.make_engine(f"{folder}/model")
    found: dict[str, Any] = {"obstacle": engine.tree_obstacle}
    for seed, count in enumerate(ROWS):
        samples = forest(seed, rows=count)
        mini_batch = range(len(samples))
        lengths = [len(s.token_ids) for s in samples]
        ((of_rows,),) = lay_out([mini_batch], lengths, RANKS)[rank : rank + 1]
        laid_out = lay_out_trees([mini_batch], samples, RANKS, LIMIT)
        rows = tools.make_batch(samples, of_rows, max_token_len_per_gpu=LIMIT, calculate_entropy=True)
        trees = part(samples, laid_out, rank, calculate_entropy=True)
        loss = row_loss(entropy=0.01)
        found[f"rows {seed}"] = tools.gradients(engine, rows, loss)
        found[f"trees {seed}"] = tools.gradients(engine, trees, loss)
        found[f"micro-batches {seed}"] = laid_out.trees[-1] + 1
    torch.save(found, f"{folder}/found-{rank}.pt")
    torch.distributed.destroy_process_group()


def main(folder: str) -> None:
    """Start the ranks and wait for them."""
    tiny(Path(folder) / "model")
    torch.multiprocessing.spawn(run, (folder,), RANKS)


if __name__ == "__main__":
    main(*sys.argv[1:])
