"""Batches as rows, and rows as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ajet.types import AjetError, Batch
from ajet_trinity.batches import Row, RowLayout, Rows, padding, read_rows, rows_of, write_rows
from tests.plugins.trinity.recorded import TIMELINES, batch_of, job_of

MINI = {"train": {"mini_batches": 3, "batch_size": 3, "learning_rate": 0.5}}


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return batch_of(job_of(tmp_path, {"train": {"batch_size": 3, "learning_rate": 0.5}})).batch


def trained(rows: Rows) -> int:
    return sum(int(row.mask.sum()) for row in rows.rows)


def test_a_row_holds_a_timelines_credit_token_by_token(batch: Batch) -> None:
    rows = rows_of(batch, RowLayout(8, 1), 1.0).rows
    by_ids = {tuple(s.token_ids[: np.flatnonzero(s.mask)[-1] + 1]): s for s in batch.samples}
    full = [row for row in rows if row.mask.any()]
    assert len(full) == 2 * sum(TIMELINES)  # the third group has no credit
    for row in full:
        sample = by_ids[tuple(row.token_ids)]
        end = len(row.token_ids)
        mask = sample.mask[row.prompt : end]
        assert not sample.mask[: row.prompt].any() and not sample.mask[end:].any()
        assert (row.mask == mask).all()
        for ours, theirs in [
            (row.old, sample.logprobs),
            (row.advantages, sample.advantages),
            (row.weights, sample.weights),
        ]:
            assert (ours[mask] == theirs[row.prompt : end][mask]).all()
            assert not ours[~mask].any()


def test_calls_of_a_row_have_different_numbers(batch: Batch) -> None:
    rows = rows_of(batch, RowLayout(8, 1), 1.0).rows
    assert max(len(set(row.calls[row.mask])) for row in rows) == 2


def test_every_token_is_either_sent_or_counted_as_skipped(batch: Batch) -> None:
    rows = rows_of(batch, RowLayout(8, 1), 1.0)
    everything = sum(int(s.mask.sum()) for s in batch.samples)
    assert rows.skipped > 0
    assert trained(rows) + rows.skipped == everything


def test_samples_without_credit_are_sent_if_the_loss_has_a_gradient_for_them(batch: Batch) -> None:
    rows = rows_of(replace(batch, zero_costs_nothing=False), RowLayout(8, 1), 1.0)
    assert rows.skipped == 0


@pytest.mark.parametrize("size", [1, 4, 8, 64])
def test_chunks_are_padded_with_rows_of_weight_0(batch: Batch, size: int) -> None:
    rows = rows_of(batch, RowLayout(size, 1), 1.0)
    assert len(rows.rows) == rows.chunks * size
    pads = [row for row in rows.rows if not row.mask.any()]
    assert len(pads) == -(2 * sum(TIMELINES)) % size
    assert not any(row.weights.any() for row in pads)


def test_only_the_last_chunk_of_a_mini_batch_has_a_learning_rate(batch: Batch) -> None:
    rows = rows_of(batch, RowLayout(4, 1), 1.0)
    rates = [{row.rate for row in rows.rows[i : i + 4]} for i in range(0, len(rows.rows), 4)]
    assert rates == [{0.0}, {0.0}, {0.0}, {0.5}]
    assert rows.steps == 1


def test_a_mini_batch_without_credit_takes_no_step(tmp_path: Path) -> None:
    batch = batch_of(job_of(tmp_path, MINI)).batch
    assert len(batch.mini_batches) == 3
    rows = rows_of(batch, RowLayout(8, 1), 1.0)
    assert (rows.steps, rows.chunks) == (2, 2)
    assert sum(row.first for row in rows.rows) == sum(TIMELINES)


def test_each_worker_computes_its_part_of_every_chunk_in_order(batch: Batch) -> None:
    ranks, size = 2, 4
    rows = rows_of(batch, RowLayout(size, ranks), 1.0)
    share = len(rows.rows) // ranks
    workers = [rows.rows[rank * share : (rank + 1) * share] for rank in range(ranks)]
    for worker in workers:
        part = size // ranks
        rates = [{row.rate for row in worker[i : i + part]} for i in range(0, share, part)]
        assert rates == [{0.0}] * (rows.chunks - 1) + [{0.5}]
    alone = rows_of(batch, RowLayout(size, 1), 1.0)
    assert sorted(tuple(r.token_ids) for r in rows.rows) == sorted(tuple(r.token_ids) for r in alone.rows)


def test_a_layout_is_a_multiple_of_the_workers() -> None:
    assert RowLayout.of(10, 4) == RowLayout(12, 4)
    assert RowLayout.of(0, 3) == RowLayout(3, 3)


def test_another_temperature_than_the_jobs_is_an_error(batch: Batch) -> None:
    with pytest.raises(AjetError, match=r"agent 'a' sampled at temperature 1, but .*\(0.7\)"):
        rows_of(batch, RowLayout(8, 1), 0.7)


def same(one: Row, other: Row) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in Row.__slots__)


def test_a_file_returns_the_rows_that_were_written(batch: Batch, tmp_path: Path) -> None:
    rows = rows_of(batch, RowLayout(8, 1), 1.0)
    write_rows(tmp_path / "rows.safetensors", rows)
    found = read_rows(tmp_path / "rows.safetensors")
    assert len(found) == len(rows.rows)
    assert all(map(same, found, rows.rows))
    assert [path.name for path in tmp_path.glob("*rows*")] == ["rows.safetensors"]


def test_a_reader_refuses_rows_that_the_writer_has_not_counted(batch: Batch, tmp_path: Path) -> None:
    class Miscounted(Rows):
        @property
        def tokens(self) -> int:
            return super().tokens + 1

    rows = rows_of(batch, RowLayout(8, 1), 1.0)
    write_rows(tmp_path / "rows", Miscounted(rows.rows, rows.chunks, rows.steps, rows.skipped))
    with pytest.raises(ValueError, match=rf"sent {rows.tokens + 1} trained tokens .* reads {rows.tokens} in"):
        read_rows(tmp_path / "rows")


def test_padding_trains_nothing() -> None:
    assert not padding().mask.any() and len(padding().token_ids) == 2
