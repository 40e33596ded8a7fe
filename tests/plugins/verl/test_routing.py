"""Router replay: rows of a mixture-of-experts model carry the experts that its tokens were sent to when they were sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.learning.batch import Learnable, TokenSelection
from ajet.types import ConfigError
from ajet_verl.alignment import router_replay
from ajet_verl.rows import ROUTED, group_rows, padding
from tests.plugins.verl.exactness import episodes
from tests.plugins.verl.test_alignment import at, received, validated

LAYERS, EXPERTS = 3, 2
RECORDS = {"actor_rollout_ref": {"rollout": {"enable_rollout_routing_replay": True}}}


def routed_members() -> list[Learnable]:
    """A group whose calls were answered by the experts that are the call's number."""
    found = [TokenSelection().learnable(episode) for episode in episodes((LAYERS, EXPERTS))[:3]]
    return [member for member in found if member]


def test_sampled_tokens_have_the_experts_of_their_own_call() -> None:
    for member in routed_members():
        for line in member.lines:
            assert line.routed_experts is not None
            assert line.routed_experts.shape == (len(line.token_ids), LAYERS, EXPERTS)
            for span in line.spans:
                sampling = line.routed_experts[span.start - 1 : span.end - 1]
                assert (sampling == span.call).all()
            assert (line.routed_experts[: line.spans[0].start - 1] == line.spans[-1].call).all()


def test_a_row_carries_them_and_padding_has_the_same_shape() -> None:
    members = routed_members()
    _, fields, tags = group_rows("uid", members, 1.0)
    lines = [line for member in members for line in member.lines]
    for row, tag, line in zip(fields, tags, lines, strict=True):
        np.testing.assert_array_equal(row[ROUTED].numpy(), line.routed_experts)
        assert tag[ROUTED] == [LAYERS, EXPERTS]
    fill, tag = padding(7, tags[0])
    assert fill.keys() == fields[0].keys() and fill[ROUTED].shape == (2, LAYERS, EXPERTS)


def test_rows_of_other_models_have_no_experts() -> None:
    member = TokenSelection().learnable(episodes()[0])
    assert member
    _, [fields], [tag] = group_rows("uid", [member], 1.0)
    assert ROUTED not in fields and ROUTED not in tag


@pytest.mark.usefixtures("on_gpus")
def test_r3_needs_the_experts_that_vllm_records(tmp_path: Path) -> None:
    engine = "megatron"
    mode = {"actor_rollout_ref": {"actor": {engine: {"router_replay": {"mode": "R3"}}}}}
    with pytest.raises(ConfigError, match="enable_rollout_routing_replay: true"):
        received(tmp_path, verl={"engine": engine, **mode})
    both: dict[str, Any] = {"actor_rollout_ref": mode["actor_rollout_ref"] | RECORDS["actor_rollout_ref"]}
    config = received(tmp_path, verl={"engine": engine, **both})
    assert (
        at(config, "actor_rollout_ref.rollout.enable_rollout_routing_replay") is True
        and router_replay(config) == "R3"
    )
    assert validated(config).engine.router_replay.mode == "R3"


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize("engine", ["dp", "megatron"])
def test_experts_that_nothing_replays_are_not_recorded(engine: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing would replay these experts"):
        received(tmp_path, verl={"engine": engine, **RECORDS})
