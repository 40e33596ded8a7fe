"""Filters: what each drops, what it never drops, and how a job names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.interfaces.filter import Filter
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.prepare import prepare
from ajet.learning.filters import DiscardedAttempts, OverLong, Repetition, UnusedBranches, repeated
from ajet.plugins import load_plugins
from ajet.tracker.call import Call, recognise
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import ConfigError, Generation
from tests.properties import examples

U = {"role": "user", "content": "One and one?"}


class Episode:
    """Calls with the given tokens."""

    def __init__(self) -> None:
        self.record = EpisodeRecord()

    def call(
        self,
        sampled: list[int],
        finish: Literal["stop", "length"] = "stop",
        *,
        prompt: list[int] | None = None,
        chat: list[dict[str, Any]] | None = None,
        answer: str = "",
    ) -> None:
        tree = self.record.tree("k")
        at = tree.extend(tree.root, as_ids(prompt or [1]))
        ids = as_ids(sampled)
        generation = Generation(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), finish)
        chat_end = recognise(self.record.chat("k"), chat or [U])[0]
        call = Call(
            number=len(self.record.calls),
            agent="agent",
            target="policy",
            key="k",
            prompt=at,
            end=tree.extend(at, ids),
            generation=generation,
            temperature=1.0,
            trained=True,
            chat_end=chat_end,
        )
        self.record.add(call, {"role": "assistant", "content": answer})

    def dropped_by(self, policy: Filter) -> set[int]:
        return set(policy.drop(self.record, self.record.trained_calls))


@pytest.fixture
def episode() -> Episode:
    return Episode()


def test_unused_branches_drops_answers_that_nothing_came_of(episode: Episode) -> None:
    for answer in ("one", "two"):
        episode.call([5], answer=answer)
    told = {"role": "user", "content": "You said two. Why?"}
    episode.call([6], chat=[told], answer="because")
    assert set(UnusedBranches().drop(episode.record, episode.record.calls)) == {0}


def test_discarded_attempts_drops_what_the_agent_cut_out(episode: Episode) -> None:
    wrong, error = {"role": "assistant", "content": "wrong"}, {"role": "user", "content": "No."}
    episode.call([2], answer="wrong")
    episode.call([3], chat=[U, wrong, error], answer="right after all")
    right = {"role": "assistant", "content": "right after all"}
    episode.call([4], chat=[U, right, {"role": "user", "content": "And?"}], answer="done")
    assert episode.dropped_by(DiscardedAttempts()) == {0}


def test_over_long_counts_prompt_and_answer(episode: Episode) -> None:
    episode.call([2] * 3, prompt=[1] * 5)
    episode.call([2] * 4, prompt=[1] * 5)
    assert episode.dropped_by(OverLong(max_tokens=8)) == {1}


@pytest.mark.parametrize("period", [1, 2, 7, 32])
def test_an_answer_cut_off_while_repeating_itself_is_dropped(episode: Episode, period: int) -> None:
    episode.call([*range(100, 150), *(list(range(period)) * 100)[:100]], "length")
    assert episode.dropped_by(Repetition()) == {0}


def test_an_answer_that_the_model_ended_is_never_dropped(episode: Episode) -> None:
    episode.call([5] * 60)
    episode.call([5] * 1000)
    assert episode.dropped_by(Repetition()) == set()


@pytest.mark.parametrize(
    ("sampled", "why"),
    [
        (range(200), "nothing is repeated"),
        ([*range(100), *[5] * 60], "60 spaces"),
        ([*range(200), *[5] * 100], "less than half of the answer"),
        (list(range(33)) * 10, "a passage longer than 32 tokens"),
        ([5] * 40, "fewer than 64 tokens"),
        ([*[5] * 200, 6, 7], "it went on"),
    ],
    ids=str,
)
def test_an_answer_cut_off_without_degenerating_is_kept(episode: Episode, sampled: Any, why: str) -> None:
    episode.call(list(sampled), "length")
    assert episode.dropped_by(Repetition()) == set(), why


TEXTS = {
    "accents": "Là-bas, l'été dernier, Zoë et Anaïs ont dégusté des crêpes à la crème brûlée près de Nîmes. "
    * 2,
    "CJK": "一加一等于二,二加二等于四。今天天气很好,我们去公园散步,然后在河边的小店里喝茶,聊到很晚才回家。明天再见。"
    * 2,
    "Cyrillic": "Один плюс один равно двум, а дважды два — четыре; это знают даже дети, которые ещё не ходят. "
    * 2,
    "a table": "\n".join(f"| {i:>6} | {i * i:>8} | {'-' * 12} |" for i in range(12)),
    "60 spaces": f"def f(x):\n{' ' * 60}return x  # aligned\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_no_script_and_no_layout_is_degenerate(episode: Episode, text: str, finish: Any) -> None:
    for ids in (list(text.encode()), [ord(c) for c in text]):
        episode.call(ids, finish)
    assert episode.dropped_by(Repetition()) == set()


@examples(100)
@given(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), min_size=1, max_size=36))
def test_the_repeated_end_is_the_longest_of_any_period(start: list[int], period: list[int]) -> None:
    ids = start + period * 2 + period[:1]
    tails = [
        length
        for size in range(1, 33)
        for length in range(2 * size, len(ids) + 1)
        if ids[-length:-size] == ids[len(ids) - length + size :]
    ]
    assert repeated(as_ids(ids)) == max(tails, default=0)


# ------------------------------------------------------------------ in a job


def job(folder: Path, **train: Any) -> Job:
    (folder / "agent.py").write_text("async def run(task): ...\n")
    (folder / "tasks.jsonl").write_text('{"id": "a", "query": "?"}\n')
    (folder / "script.yaml").write_text("- {say: x}\n")
    layers = Layers()
    tree = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "agent.py:run",
        "train": train,
        "backbone": {"name": "debug", "debug": {"answers": {"type": "script", "path": "script.yaml"}}},
    }
    layers.add(tree, "job.yaml", folder)
    return prepare(layers)


def test_a_job_names_filters_by_name_or_with_their_fields(tmp_path: Path) -> None:
    ready = job(tmp_path, filters=["discarded_attempts", {"type": "over_long", "max_tokens": 9}])
    assert ready.filters == (DiscardedAttempts(), OverLong(max_tokens=9))


def test_no_filter_and_no_cap_by_default(tmp_path: Path) -> None:
    ready = job(tmp_path)
    assert ready.filters == () and ready.config.train.max_timelines is None


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (["repetitoin"], r"train\.filters\.0\.type: unknown filter 'repetitoin'; did you mean 'repetition'"),
        (
            ["discarded_attempts", {"type": "repetition", "min_token": 9}],
            r"train\.filters\.1\.min_token: unknown key; did you mean 'min_tokens'",
        ),
        (["over_long"], r"train\.filters\.0\.max_tokens: is required"),
        ([{"max_tokens": 9}], r"train\.filters\.0: needs `type`"),
        ("repetition", r"train\.filters: "),
        ([3], r"train\.filters\.0: "),
    ],
    ids=["unknown", "misspelt field", "missing field", "no type", "no list", "no name"],
)
def test_a_wrong_filter_names_its_place_and_the_nearest(tmp_path: Path, filters: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        job(tmp_path, filters=filters)


def test_the_cores_filters_are_installed_like_anyones() -> None:
    names = {name for kind, name in load_plugins().classes if kind == "filter"}
    assert names >= {"discarded_attempts", "over_long", "repetition", "unused_branches"}
