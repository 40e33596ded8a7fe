"""The tree of a group: its forks, values, and the advantages that were trained."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from ajet.reports.credit import run_credit
from ajet.reports.episode import EpisodeReport, episode_report
from ajet.reports.folder import read_run
from ajet.reports.group_tree import GroupMember, GroupTrees, grown
from ajet.reports.run_summary import summarise
from ajet.reports.text import describe_episode, group_lines
from ajet.reports.token_text import TokenText
from ajet.rollout.batch_record import batch_file, trained_advantages
from ajet.rollout.episode import Fork
from tests.plugins.audit.conftest import Runs, runs, saved_tokenizer  # noqa: F401
from tests.plugins.audit.test_forks import FORKED, by_member, steady, varied
from tests.reports.conftest import page


def member(
    id: str, reward: float | None, calls: int, fork: Fork | None = None, agent: str = "a"
) -> GroupMember:
    said = {number: (agent, f"{id} says {number}") for number in range(calls)}
    return GroupMember(id, reward, None if reward is not None else "timeout", fork, list(range(calls)), said)


#  0 1 ─┬─ 2 3    reward 1    (e0)
#       ├─ 2 ─┬─ 3  reward 0    (f1, leaves e0 after two calls)
#       │     └─ 3  reward 0.5  (f2, leaves f1 after three)
#  0               failed      (e1)
MEMBERS = [
    member("e0", 1.0, 4),
    member("e1", None, 1),
    member("f1", 0.0, 4, Fork("e0", 2)),
    member("f2", 0.5, 4, Fork("f1", 3)),
]
ADVANTAGES = {
    ("e0", 0): 0.0,
    ("e0", 1): 0.0,
    ("e0", 2): 0.5,
    ("e0", 3): 0.25,
    ("f1", 2): -0.25,
    ("f1", 3): -0.5,
}


def test_the_nodes_are_where_forks_leave_with_the_mean_reward_below() -> None:
    tree = grown(MEMBERS, ADVANTAGES)
    assert (tree.value, tree.leaves, tree.has_forks, tree.is_recorded) == (0.5, 4, True, True)
    found = [(n.parent, n.value, n.leaves, n.episode, n.is_fork) for n in tree.nodes]
    assert found == [
        (-1, 0.5, 3, None, False),
        (0, 1.0, 1, "e0", False),
        (0, 0.25, 2, None, False),
        (2, 0.0, 1, "f1", True),
        (2, 0.5, 1, "f2", True),
        (-1, None, 1, "e1", False),
    ]
    calls = [[(s.calls, s.advantage) for s in node.stretches] for node in tree.nodes]
    assert calls == [
        [((0, 1), 0.0)],
        [((2,), 0.5), ((3,), 0.25)],
        [((2,), -0.25)],
        [((3,), -0.5)],
        [((3,), None)],
        [((0,), None)],
    ]
    assert tree.nodes[2].stretches[0].words == "f1 says 2"


def test_the_picture_has_a_line_for_each_stretch_of_calls() -> None:
    lines = group_lines(grown(MEMBERS, ADVANTAGES), "f1", everything=False)
    assert [line.rstrip() for line in lines] == [
        "CALLS            AGENT  ADVANTAGE  WORTH            EPISODE  ANSWER",
        "├─ calls 0–1     a      +0.000     value 0.5                 e0 says 0 … e0 says 1",
        "│  ├─ call 2     a      +0.500                               e0 says 2",
        "│  │  call 3     a      +0.250     reward 1         e0       e0 says 3",
        "│  └─ call 2     a      -0.250     value 0.25                f1 says 2",
        "│     ├─ call 3  a      -0.500     reward 0         ◀ f1     f1 says 3",
        "│     └─ call 3  a                 reward 0.5       f2       f2 says 3",
        "└─ call 0        a                 failed: timeout  e1       e1 says 0",
    ]


def test_a_fork_that_ended_where_it_left_its_parent_is_a_leaf_without_calls() -> None:
    diverged = GroupMember("f1", None, "diverged", Fork("e0", 1), [0], {0: ("a", "x")})
    tree = grown([member("e0", 1.0, 2), diverged], None)
    assert [(n.parent, n.episode, len(n.stretches)) for n in tree.nodes] == [
        (-1, None, 1),
        (0, "e0", 1),
        (0, "f1", 0),
    ]
    assert not tree.is_recorded and "no call" in group_lines(tree, "e0", everything=False)[-1]


def test_a_long_tree_is_cut_unless_all_is_asked_for() -> None:
    tree = grown([member(f"e{i}", 0.0, 1) for i in range(60)], {})
    assert len(group_lines(tree, "e0", everything=True)) == 61
    lines = group_lines(tree, "e0", everything=False)
    assert len(lines) == 42 and lines[-1] == "… 20 more lines; --all shows them"


# ------------------------------------------------------------------ of a run


def report(folder: Path, episode: str) -> EpisodeReport:
    run = read_run(folder)
    credit = run_credit(run)
    return episode_report(run, run.find(episode), credit, TokenText(folder), GroupTrees(run, credit))


def recorded(folder: Path, step: int) -> dict[tuple[str, int], float]:
    """What the record of a step says of each call, read a second time."""
    from ajet_audit.batches import read_step
    from ajet_audit.files import Folder

    rows = read_step(Folder(folder), step).rows
    return {
        (row.episode, call): float(row.advantages[start]) for row in rows for start, _, call, *_ in row.spans
    }


def _with(record: bytes, about: bytes) -> bytes:
    """A record that says something else of itself."""
    with np.load(io.BytesIO(record)) as arrays:
        kept = {name: arrays[name] for name in arrays.files if name != "about"}
    file = io.BytesIO()
    np.savez(file, about=np.frombuffer(about, np.uint8), **kept)
    return file.getvalue()


def test_calls_that_were_trained_alike_have_the_same_advantage(tmp_path: Path) -> None:
    spans = [
        [start, start + length, call] for call, (start, length) in enumerate([(0, 3), (3, 7), (10, 1000)])
    ]
    about = {"samples": [{"episode": "e0", "length": 1010, "spans": spans}]}
    path = batch_file(tmp_path, 1)
    path.parent.mkdir()
    advantages = np.full(1010, -1.2076124, np.float32)
    np.savez(path, about=np.frombuffer(json.dumps(about).encode(), np.uint8), advantages=advantages)
    trained = trained_advantages(tmp_path, 1)
    assert trained == {("e0", call): float(advantages[0]) for call in range(3)}
    (node,) = grown([member("e0", 0.0, 3)], trained).nodes
    assert [stretch.calls for stretch in node.stretches] == [(0, 1, 2)]


@pytest.mark.whole
def test_of_a_run_with_forks_the_advantages_are_those_that_were_trained(runs: Runs) -> None:  # noqa: F811
    folder = runs.run(steady, by_member, varied, rollout=FORKED, credit="tree", steps=1)
    wanted = recorded(folder, 1)
    assert trained_advantages(folder, 1) == pytest.approx(wanted)
    entries = read_run(folder).entries
    for entry in entries:
        tree = report(folder, entry.id).tree
        assert tree is not None and tree.has_forks and tree.leaves > 4
        for node in tree.nodes:
            rewards = [e.reward for e in entries if e.id == node.episode]
            assert not rewards or node.value == rewards[0]
    shown = [
        stretch.advantage
        for task in {entry.group for entry in entries}
        for tree in [report(folder, next(e.id for e in entries if e.group == task)).tree]
        if tree
        for node in tree.nodes
        for stretch in node.stretches
        for _ in stretch.calls
    ]
    assert sorted(a for a in shown if a is not None) == pytest.approx(sorted(wanted.values()))
    for entry in entries:
        parts = [
            p for c in report(folder, entry.id).conversations for p in c.tokens if p.trained and p.sampled
        ]
        assert {p.call: p.advantage for p in parts} == pytest.approx(
            {call: a for (episode, call), a in wanted.items() if episode == entry.id}
        )


def test_show_draws_the_tree_of_a_plain_group_too(runs: Runs) -> None:  # noqa: F811
    folder = runs.run(steps=1)
    entry = read_run(folder).entries[0]
    text = "\n".join(
        line.plain
        for line in describe_episode(report(folder, entry.id), everything=False, tokens=False, colour=False)
    )
    assert "group of 2 episodes: value 0.5" in text and f"◀ {entry.id}" in text
    found = read_run(folder)
    shown = page(summarise(found, run_credit(found)), [report(folder, entry.id)], everything=False)
    assert "group of 2 episodes: value 0.5" in shown and f"◀ {entry.id}" in shown


def test_without_a_record_the_tree_has_no_advantages_and_says_so(runs: Runs) -> None:  # noqa: F811
    folder = runs.run(steps=1)
    path = batch_file(folder, 1)
    whole = path.read_bytes()
    for data in (
        whole[:50],
        b"",
        _with(whole, b"[" * 10**5),
        _with(whole, b'{"samples": [{"spans": [[1, 2, Infinity]]}]}'),
    ):
        path.write_bytes(data)
        assert trained_advantages(folder, 1) is None
    found = report(folder, read_run(folder).entries[0].id)
    assert found.tree and not found.tree.is_recorded
    assert {s.advantage for node in found.tree.nodes for s in node.stretches} == {None}


def test_calls_of_an_earlier_episode_are_marked_as_replayed() -> None:
    start = Fork("1.0/t/3", 2, steered=True)
    members = [member("e0", 1.0, 4, start), member("e1", 0.0, 3, start)]
    tree = grown(members, {("e0", 2): 0.5, ("e0", 3): 0.5, ("e1", 2): -0.5})
    first = tree.nodes[0].stretches
    assert [(s.calls, s.words, s.advantage) for s in first] == [((0, 1), "replayed from 1.0/t/3", None)]
    assert [[(s.calls, s.advantage) for s in node.stretches] for node in tree.nodes[1:]] == [
        [((2, 3), 0.5)],
        [((2,), -0.5)],
    ]
