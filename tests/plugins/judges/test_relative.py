"""Judges that compare the members of a group: `listwise` and `pairwise`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ajet import EpisodeView, GroupJudge, Task, WorkflowOutput
from ajet_judges import Listwise, Pairwise
from ajet_judges.relative import schedule

from .judge_model import Asked, serving

TASK = Task("t", "Say a long word.", metadata={"answer": "five!"})


def group(*responses: str | None) -> list[EpisodeView]:
    """Members with these responses; None for one that failed."""
    return [
        EpisodeView("e", "t", i, 0, failure="timeout")
        if r is None
        else EpisodeView("e", "t", i, 0, output=WorkflowOutput(response=r))
        for i, r in enumerate(responses)
    ]


def rewards(judge: GroupJudge, members: Sequence[EpisodeView]) -> list[float | None]:
    verdicts = asyncio.run(judge.score_group(TASK, members))
    assert not any(isinstance(v, Exception) for v in verdicts)
    return [None if v is None else v.reward for v in verdicts]  # type: ignore[union-attr]


def longest(asked: Asked) -> Any:
    """Longer is better."""
    names = [n for n in asked.fields if n != "better"]
    verdict: dict[str, Any] = {"reason": ""} | {n: min(len(asked.data[n]), 10) for n in names}
    if "better" in asked.fields:
        a, b = len(asked.data["FIRST"]), len(asked.data["SECOND"])
        verdict["better"] = "first" if a > b else "second" if b > a else "equal"
    return verdict


def test_listwise_scores_all_members_in_one_question() -> None:
    with serving(longest) as model:
        found = rewards(Listwise(endpoint=model.endpoint()), group("aaa", "a", "aaaaa", "aaa"))
        assert found == [0.3, 0.1, 0.5, 0.3]
        assert len(model.asked) == 1 and len(model.asked[0].fields) == 3, "equal texts are shown once"


def test_their_order_tells_nothing_of_who_gave_which() -> None:
    with serving(longest) as model:
        judge = Listwise(endpoint=model.endpoint())
        rewards(judge, group("aaa", "a", "aaaaa"))
        rewards(judge, group("aaaaa", "aaa", "a"))
        assert model.asked[0].data == model.asked[1].data


@pytest.mark.parametrize("judge", [Listwise, Pairwise])
def test_failed_members_have_no_verdict_and_empty_responses_nothing(judge: Any) -> None:
    with serving(longest) as model:
        found = rewards(judge(endpoint=model.endpoint()), group("aaa", None, "", "aaaaa"))
    assert found[1:3] == [None, 0.0] and found[0] < found[3]  # type: ignore[operator]
    assert all("" not in asked.data.values() for asked in model.asked)


@pytest.mark.parametrize("judge", [Listwise, Pairwise])
def test_the_cost_is_shared_by_the_members_that_did_not_fail(judge: Any) -> None:
    with serving(longest) as model:
        verdicts = asyncio.run(
            judge(endpoint=model.endpoint()).score_group(TASK, group("aaa", None, "aaaaa"))
        )
    assert sum(v.metrics["llm_calls"] for v in verdicts if v) == len(model.asked)


def test_pairwise_is_the_share_of_comparisons_won() -> None:
    with serving(longest) as model:
        found = rewards(Pairwise(endpoint=model.endpoint()), group("a", "aa", "aaa", "aaaa", "aa"))
        assert found == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0, 1 / 3])
        assert len(model.asked) == 12, "four different texts, each pair in both orders"


def test_a_model_that_prefers_a_place_decides_nothing() -> None:
    with serving(lambda asked: {"reason": "", "better": "first"}) as model:
        assert rewards(Pairwise(endpoint=model.endpoint()), group("a", "aa", "aaa")) == [0.5] * 3


def test_who_is_alone_has_a_half_or_plays_the_reference() -> None:
    with serving(longest) as model:
        assert rewards(Pairwise(endpoint=model.endpoint()), group("aaa")) == [0.5]
        assert not model.asked
        judge = Pairwise(endpoint=model.endpoint(), opponent="answer")
        assert rewards(judge, group("aaa")) == [0.0]
        assert rewards(judge, group("aaaaaaa")) == [1.0]


@pytest.mark.parametrize(("players", "rounds"), [(8, 3), (7, 3), (6, 1), (2, 1), (5, 9), (1, 2), (8, None)])
def test_a_tournament_gives_everybody_as_many_different_opponents(players: int, rounds: int | None) -> None:
    pairs = schedule(players, rounds)
    assert len({frozenset(p) for p in pairs}) == len(pairs) and all(a != b for a, b in pairs)
    games = Counter(player for pair in pairs for player in pair)
    most = min(rounds or players, players - 1)
    assert all(most - 1 <= games[p] <= most for p in range(players))
    assert players % 2 or all(games[p] == most for p in range(players))


def test_a_rubric_takes_the_place_of_the_criteria(tmp_path: Path) -> None:
    path = tmp_path / "rubric.yaml"
    path.write_text("criteria:\n- {name: long, text: The word is long., weight: 2}\n")
    with serving(longest) as model:
        rewards(Listwise(endpoint=model.endpoint(), rubric=path), group("a", "aa"))
    assert "- The word is long. (counts 2)" in model.asked[0].orders
