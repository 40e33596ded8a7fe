"""Rows that share tokens are computed as trees in verl's FSDP engine: each unique token once, with the gradients of rows."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ajet.types import AjetError, ConfigError, Sample
from ajet_trees.cost import Flops
from ajet_trees.packing import pack
from ajet_verl import layout
from ajet_verl.alignment import RunPaths, compose
from ajet_verl.layout import PADDING, TreeChoice, TreeRows, lay_out_trees
from ajet_verl.plugin import Verl
from tests.patience import PATIENCE
from tests.plugins.verl import trees_driver
from tests.plugins.verl.conftest import Machine
from tests.plugins.verl.test_alignment import job_of
from tests.plugins.verl.trees_driver import LIMIT, bench, forest, row_loss, tiny

TOLERANCE = 1e-5


def sample(ids: list[int], start: int, advantage: float = 1.0) -> Sample:
    made: Sample = bench().sample(ids, start, advantage)
    return made


def micro_batches(found: TreeRows, ranks: int) -> list[dict[int, list[int]]]:
    """The rows of each rank's micro-batches, by number."""
    share = len(found.rows) // ranks
    result: list[dict[int, list[int]]] = [{} for _ in range(ranks)]
    for place, (row, number) in enumerate(zip(found.rows, found.trees, strict=True)):
        result[place // share].setdefault(number, []).append(row)
    return result


# --------------------------------------------------------------------------- layout


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_every_row_is_in_one_micro_batch_and_all_ranks_have_equally_many(seed: int, ranks: int) -> None:
    samples = forest(seed, rows=30)
    mini_batches = [range(0, 20), range(20, 23), range(23, 30)]
    found = lay_out_trees(mini_batches, samples, ranks, LIMIT)
    assert sorted(row for row in found.rows if row != PADDING) == list(range(30))
    assert len(found.rows) % (ranks * len(mini_batches)) == 0
    share = len(found.rows) // ranks // len(mini_batches)
    for place, row in enumerate(found.rows):  # where verl cuts its mini-batches out of a rank's rows
        assert row == PADDING or row in mini_batches[place // share % len(mini_batches)]
    of_ranks = micro_batches(found, ranks)
    assert all(of_rank.keys() == of_ranks[0].keys() for of_rank in of_ranks)
    tokens = 0
    for rows in (rows for of_rank in of_ranks for rows in of_rank.values()):
        own = [samples[row] for row in rows if row != PADDING]
        size = len(pack(own).token_ids) if own else 0
        assert size <= LIMIT or len(own) == 1
        tokens += size
    assert found.tokens == tokens


def test_rows_that_share_most_stay_together_and_ranks_are_balanced() -> None:
    groups = [[sample([*range(g, g + 40), 90, n], 40) for n in range(6)] for g in (0, 5, 10, 15)]
    samples = [s for members in zip(*groups, strict=True) for s in members]
    found = lay_out_trees([range(24)], samples, 2, 1000)
    for of_rank in micro_batches(found, 2):
        assert sorted(Counter(row % 4 for rows in of_rank.values() for row in rows).values()) == [6, 6]
    assert found.tokens == 4 * (41 + 6)


def test_a_rank_without_rows_gets_padding_in_each_micro_batch() -> None:
    found = lay_out_trees([[0]], [sample(list(range(30)), 10)], 3, 100)
    assert found.rows == [0, PADDING, PADDING]
    assert found.trees == [0, 0, 0]


def test_rows_of_different_adapters_share_nothing() -> None:
    samples = [replace(sample(list(range(20)), 10), adapter=name) for name in ("a", "b")]
    assert lay_out_trees([range(2)], samples, 1, 100).tokens == 40


# --------------------------------------------------------------------------- trees or rows


SMALL = Flops(token=2e6, pair=1e4, block=1e7)


def test_trees_are_chosen_where_rows_share_much_and_rows_where_they_share_nothing() -> None:
    auto = TreeChoice("auto", SMALL, 10_000)
    shared = [sample([*range(300), n, n], 300) for n in range(8)]
    assert auto.rows([range(8)], shared, 1) is not None
    apart = [sample([n, *range(300)], 290) for n in range(8)]
    assert auto.rows([range(8)], apart, 1) is None
    assert TreeChoice(True, SMALL, 10_000).rows([range(8)], apart, 1) is not None
    assert TreeChoice(False, None, 0).rows([range(8)], shared, 1) is None


QWEN_06B = Flops(token=1.2e9, pair=1.15e5, block=1e9)


@pytest.mark.parametrize(("padded", "wanted"), [(True, True), (False, "auto")])
def test_rows_that_would_be_padded_on_a_gpu_are_computed_as_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, padded: bool, wanted: bool | str
) -> None:
    monkeypatch.setattr(layout.scale, "on_gpus", lambda: True)
    monkeypatch.setattr(layout, "obstacle_of", lambda workers: "")
    monkeypatch.setattr(layout, "flops_of", lambda model: QWEN_06B)
    job = job_of(tmp_path)
    assert isinstance(job.backbone, Verl)
    config = compose(job, job.backbone, RunPaths(job.model))
    config.actor_rollout_ref.model.use_remove_padding = not padded
    chosen = layout.choice(config, "auto", None, print)
    assert chosen.wanted == wanted
    rows = [sample([*range(1000), *range(n, n + 5000)], 1000) for n in range(1000, 1008)]
    assert (chosen.rows([range(8)], rows, 1) is not None) == padded, (
        "a tree would cost more time than rows without padding"
    )


def test_padded_rows_are_told_with_what_they_take_where_trees_are_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout.scale, "on_gpus", lambda: True)
    monkeypatch.setattr(layout, "obstacle_of", lambda workers: "the model is recurrent")
    job = job_of(tmp_path)
    assert isinstance(job.backbone, Verl)
    config = compose(job, job.backbone, RunPaths(job.model))
    config.actor_rollout_ref.model.use_remove_padding = False
    said: list[str] = []
    assert layout.choice(config, "auto", None, said.append).rows([range(8)], [], 1) is None
    assert "not trees: the model is recurrent. Without flash-attn they pad" in said[0]


@pytest.mark.parametrize(
    ("verl", "named"),
    [
        ({"engine": "megatron"}, "engine: megatron"),
        ({"actor_rollout_ref": {"actor": {"use_dynamic_bsz": False}}}, "use_dynamic_bsz: false"),
        ({"actor_rollout_ref": {"model": {"use_fused_kernels": True}}}, "use_fused_kernels: true"),
        (
            {"actor_rollout_ref": {"actor": {"fsdp_config": {"ulysses_sequence_parallel_size": 2}}}},
            "ulysses_sequence_parallel_size: 2",
        ),
    ],
)
def test_a_job_that_asks_for_trees_where_a_key_excludes_them_is_refused(
    tmp_path: Path, verl: dict[str, Any], named: str
) -> None:
    for trees in (True, "auto", False):
        job = job_of(tmp_path, verl={**verl, "trees": trees})
        assert isinstance(job.backbone, Verl)
        if trees is True:
            with pytest.raises(ConfigError, match=f"backbone.verl.trees: not possible with .*{named}"):
                compose(job, job.backbone, RunPaths(job.model))
        else:
            config = compose(job, job.backbone, RunPaths(job.model))
            assert named in layout.tree_obstacle(config)


def test_the_key_takes_yamls_on_and_off(tmp_path: Path) -> None:
    for text, value in (("on", True), ("off", False), ("auto", "auto")):
        job = job_of(tmp_path, verl={"trees": text})
        assert isinstance(job.backbone, Verl)
        assert job.backbone.trees == value


def test_a_model_without_trees_is_trained_as_rows_with_a_message_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path)
    assert isinstance(job.backbone, Verl)
    config = compose(job, job.backbone, RunPaths(job.model))
    monkeypatch.setattr(layout, "obstacle_of", lambda workers: "it has sliding windows")
    said: list[str] = []
    assert layout.choice(config, "auto", None, said.append).flops is None
    assert said == ["verl's workers compute rows, not trees: it has sliding windows."]
    with pytest.raises(AjetError, match=r"it has sliding windows\. Set trees: auto"):
        layout.choice(config, True, None, said.append)


# --------------------------------------------------------------------------- exactness


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for models, while this process is the only rank of a process group."""
    path = tmp_path_factory.mktemp("engine")
    with bench().one_rank(path):
        yield path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Any:
    return bench().make_engine(tiny(folder / "model"))


def logprobs(
    engine: Any, batch: Any, samples: list[Sample], order: list[int]
) -> dict[str, list[torch.Tensor]]:
    """Logprobs and entropies at the places of the trained tokens, in the samples' order."""
    with engine.eval_mode():
        output = engine.infer_batch(batch)["model_output"]
    return {
        name: [row[np.flatnonzero(samples[i].mask) - 1] for _, i, row in _sorted(order, values.unbind())]
        for name, values in output.items()
    }


def _sorted(order: list[int], rows: Any) -> list[Any]:
    pairs = zip(range(len(order)), order, rows, strict=True)
    return sorted((p for p in pairs if p[1] != PADDING), key=lambda p: p[1])


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).norm() <= TOLERANCE * expected.norm())


PROMPT = [n % 60 for n in range(300)]
SHAPES: dict[str, list[Sample]] = {
    "a row alone": [sample([1, 2, 3, 4, 5, 6], 2)],
    "twins with opposite credit": [sample(PROMPT[:20], 9, 2.0), sample(PROMPT[:20], 9, -1.0)],
    "a prefix of another": [sample(PROMPT[:30], 9, 2.0), sample(PROMPT[:12], 4, -0.5)],
    "a group after a long prompt": [sample([*PROMPT, n, n + 1, 7], 300, n - 2.0) for n in range(5)],
    "nothing shared": [sample([n, *PROMPT[:9]], 5, n - 2.0) for n in range(5)],
    **{f"forest {seed}": forest(seed, longest=40 if seed else 200) for seed in range(4)},
}


@pytest.mark.parametrize("terms", [{}, {"entropy": 0.1}], ids=["alone", "with entropy"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logprobs_entropies_and_gradients_are_those_of_rows(
    engine: Any, shape: str, terms: dict[str, float]
) -> None:
    samples, make = SHAPES[shape], bench().make_batch
    longest = max(len(s.token_ids) for s in samples)
    laid_out = lay_out_trees([range(len(samples))], samples, 1, max(LIMIT, longest))
    settings = {
        "temperature": 0.7,
        "calculate_entropy": bool(terms),
        "max_token_len_per_gpu": max(LIMIT, longest),
    }
    rows, trees = make(samples, **settings), make(samples, laid_out.rows, laid_out.trees, **settings)
    expected = logprobs(engine, rows.copy(), samples, list(range(len(samples))))
    found = logprobs(engine, trees.copy(), samples, laid_out.rows)
    assert found.keys() == expected.keys() == ({"log_probs", "entropy"} if terms else {"log_probs"})
    for name, values in found.items():
        torch.testing.assert_close(
            torch.cat(values), torch.cat(expected[name]), atol=TOLERANCE, rtol=TOLERANCE
        )

    loss, exact = bench().gradients(engine, rows, row_loss(**terms))
    tree_loss, gradient = bench().gradients(engine, trees, row_loss(**terms))
    assert tree_loss == pytest.approx(loss, abs=TOLERANCE)
    assert exact.norm() > 1e-3 and close(gradient, exact)


def test_with_gradient_checkpointing_layers_are_computed_again_over_the_tree(
    folder: Path, engine: Any
) -> None:
    samples = SHAPES["forest 1"]
    other = bench().make_engine(str(folder / "model"), enable_gradient_checkpointing=True)
    laid_out = lay_out_trees([range(len(samples))], samples, 1, LIMIT)
    batch = bench().make_batch(samples, laid_out.rows, laid_out.trees)
    calls: list[int] = []
    other.module.model.layers[0].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    _, found = bench().gradients(other, batch, row_loss())
    assert close(found, bench().gradients(engine, batch, row_loss())[1])
    assert len(calls) == 2 * len(set(laid_out.trees))


def test_each_unique_token_is_computed_once(engine: Any) -> None:
    samples = SHAPES["a group after a long prompt"]
    laid_out = lay_out_trees([range(5)], samples, 1, 1000)
    seen: list[int] = []
    hook = engine.module.get_input_embeddings().register_forward_hook(
        lambda _, ids, __: seen.append(ids[0].numel())
    )
    try:
        bench().gradients(engine, bench().make_batch(samples, laid_out.rows, laid_out.trees), row_loss())
    finally:
        hook.remove()
    assert seen == [300 + 5 * 2]  # the last tokens predict nothing


def test_models_with_other_attention_find_out_that_they_compute_rows(folder: Path) -> None:
    from transformers import MistralConfig

    other = bench().make_engine(tiny(folder / "windows", kind=MistralConfig, sliding_window=4))
    assert "sliding_window" in other.tree_obstacle
    samples = SHAPES["forest 1"]
    laid_out = lay_out_trees([range(len(samples))], samples, 1, LIMIT)
    rows = bench().make_batch(samples, laid_out.rows)
    trees = bench().make_batch(samples, laid_out.rows, laid_out.trees)
    assert torch.equal(
        bench().gradients(other, trees, row_loss())[1], bench().gradients(other, rows, row_loss())[1]
    )


def test_two_ranks_get_the_gradients_of_rows(machine: Machine) -> None:
    machine.run(sys.executable, str(Path(trees_driver.__file__)), str(machine.folder), seconds=4 * PATIENCE)
    ranks = [torch.load(machine.folder / f"found-{rank}.pt") for rank in range(trees_driver.RANKS)]
    for found in ranks:
        assert found["obstacle"] == ""
        for seed, count in enumerate(trees_driver.ROWS):
            (_, expected), (_, gradient) = found[f"rows {seed}"], found[f"trees {seed}"]
            assert (found[f"micro-batches {seed}"] > 1) == (count > 1)
            assert expected.norm() > 1e-3 and close(gradient, expected)
            assert torch.equal(gradient, ranks[0][f"trees {seed}"][1])
