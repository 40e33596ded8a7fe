"""Timelines survive verl's queue, and mini-batches survive its counting of rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ajet.learning.batch import Learnable, TokenSelection
from ajet.types import AjetError
from ajet_verl.layout import PADDING, lay_out
from ajet_verl.rows import READ, group_rows, learnables, padding, read, to_fields
from tests.plugins.verl.exactness import TIMELINES, episodes


def members() -> list[Learnable]:
    found = [TokenSelection().learnable(episode) for episode in episodes()]
    return [member for member in found if member]


def test_a_groups_rows_are_its_episodes_again() -> None:
    sent = [member for member in members() if member.group == 1]
    _, fields, _ = group_rows("uid", sent, 1.0)
    back = learnables([read(f) for f in fields])
    assert [replace(m, lines=()) for m in back] == [replace(m, lines=()) for m in sent]
    assert [len(m.lines) for m in back] == list(TIMELINES)
    for one, other in zip(back, sent, strict=True):
        for line, original in zip(one.lines, other.lines, strict=True):
            assert line.spans == original.spans
            np.testing.assert_array_equal(line.token_ids, original.token_ids)
            np.testing.assert_array_equal(line.mask, original.mask)


def test_credit_reads_no_tensors_and_the_workers_get_all_that_was_sampled() -> None:
    sent = [member for member in members() if member.group == 1]
    _, fields, _ = group_rows("uid", sent, 1.0)
    lines = [line for member in sent for line in member.lines]
    for found, line in zip(fields, lines, strict=True):
        _, back = read({name: found[name] for name in READ})
        assert back.spans == line.spans and not back.token_ids.any()
        np.testing.assert_array_equal(back.mask, line.mask)
        first, mask = int(line.mask.argmax()), line.mask[int(line.mask.argmax()) :]
        np.testing.assert_array_equal(found["response_mask"].numpy(), mask)
        np.testing.assert_array_equal(found["rollout_log_probs"].numpy()[mask], line.logprobs[line.mask])
        np.testing.assert_array_equal(found["weight_versions"].numpy(), line.versions[first:])


def test_a_member_without_rows_still_counts_in_its_group() -> None:
    first, second, third = (member for member in members() if member.group == 0)
    filtered = replace(second, lines=(), dropped={"over_long_rows": second.sampled_tokens})
    keys, fields, _ = group_rows("uid", [first, filtered, third], 1.0)
    assert {key.split("_")[1] for key in keys} == {"0", "2"}
    back = learnables([read(f) for f in fields])
    assert [(m.member, m.reward, len(m.lines)) for m in back] == [
        (0, first.reward, 1),
        (1, second.reward, 0),
        (2, third.reward, 9),
    ]


def test_a_row_begins_before_its_first_trained_token_and_carries_the_true_reward() -> None:
    member = members()[2]
    _, [fields, *_], [tag, *_] = group_rows("uid", [replace(member, lines=member.lines)], 1.0)
    assert fields["response_mask"][0] == 1 and len(fields["prompts"]) >= 1
    assert fields["rm_scores"].sum() == np.float32(member.reward)
    assert tag["seq_len"] == len(fields["input_ids"]) == tag["prompt_len"] + tag["response_len"]


def test_a_lost_token_an_empty_row_and_another_temperature_are_refused() -> None:
    member = members()[1]
    with pytest.raises(AjetError, match="bug in AgentJet"):
        group_rows("uid", [replace(member, sampled_tokens=member.sampled_tokens + 1)], 1.0)
    line = member.lines[0]
    empty = replace(line, mask=np.zeros_like(line.mask))
    lost = {"x": int(line.mask.sum())}
    with pytest.raises(AjetError, match="bug in AgentJet"):
        group_rows("uid", [replace(member, lines=[empty, *member.lines[1:]], dropped=lost)], 1.0)
    with pytest.raises(AjetError, match="temperature"):
        group_rows("uid", [member], 0.5)


def test_padding_has_the_fields_of_a_row_and_teaches_nothing() -> None:
    member = members()[0]
    _, [fields], [tag] = group_rows("uid", [member], 1.0)
    fill, its_tag = padding(7, tag)
    assert fill.keys() == fields.keys() and its_tag.keys() - {"is_padding"} == tag.keys()
    assert not fill["response_mask"].any() and not fill["loss_mask"].any()
    assert {name: fill[name].dtype for name in ("input_ids", "calls")} == {
        name: to_fields(member.lines[0], read(fields)[0], "")[name].dtype for name in ("input_ids", "calls")
    }


@pytest.mark.parametrize("seed", range(50))
def test_every_mini_batch_keeps_its_rows_and_all_shares_are_equal(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 21, draw.integers(1, 6)).tolist()
    ranks, multiple = int(draw.integers(1, 5)), int(draw.integers(1, 4))
    numbers = iter(range(sum(sizes)))
    minis = [[next(numbers) for _ in range(size)] for size in sizes]
    lengths = draw.integers(1, 100, sum(sizes)).tolist()
    shares = lay_out(minis, lengths, ranks, multiple)
    assert len(shares) == ranks
    assert len({len(rows) for rank in shares for rows in rank}) == 1
    assert len(shares[0][0]) % multiple == 0
    for place, mini in enumerate(minis):
        rows = Counter(row for rank in shares for row in rank[place] if row != PADDING)
        assert rows == Counter(mini)


def test_ranks_get_about_as_many_tokens() -> None:
    lengths = [900, 100, 100, 100, 500, 300]
    shares = lay_out([list(range(6))], lengths, 2)
    tokens = [sum(lengths[i] for i in rank[0] if i != PADDING) for rank in shares]
    assert max(tokens) <= 1100
