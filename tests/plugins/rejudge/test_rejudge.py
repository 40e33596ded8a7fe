"""`ajet rejudge` says what a wrong judge has taught."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import ajet
from ajet.cli import run_program
from ajet.learning import algorithms as a
from ajet.learning.filters import OverLong
from ajet.plugins import load_plugins
from ajet.types import EpisodeView, JudgeOutput, Task
from tests.plugins.audit.conftest import everything
from tests.plugins.audit.test_forks import FORKED, steady, varied
from tests.plugins.rejudge.conftest import MakeRun, fixed, once


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rejudged.jsonl").read_text().splitlines()]


def judged_anew(folder: Path, judge: Any = None, **options: Any) -> Any:
    return ajet.rejudge(folder, judge, progress=False, **options)


@pytest.mark.whole
def test_a_hole_that_the_policy_finds_in_step_2_is_named_with_its_figures(recorded: MakeRun) -> None:
    folder = recorded(steps=3)
    journal = (folder / "episodes.jsonl").read_bytes()
    found = judged_anew(folder, fixed)
    assert found.first_wrong_step == 2 and found.changed == 4, "a member of each of two groups, in two steps"
    first, second, _ = found.as_dict()["steps"]
    assert (first["recorded"], first["true"], first["wrong"], first["missed"]) == (0.25, 0.25, 0, 0)
    assert (second["recorded"], second["true"]) == (0.5, 0.25)
    run = ajet.load_run(folder)
    tokens = {e.id: sum(int(t.mask.sum()) for t in e.timelines) for e in run.episodes() if e.step == 2}
    assert second["tokens"] == sum(tokens.values())
    wrong = sum(count for name, count in tokens.items() if name.endswith("/2"))
    assert second["turned"] == second["wrong"] == wrong and second["missed"] == 0
    assert second["wrong_share"] == pytest.approx(wrong / sum(tokens.values()), abs=1e-6)
    # GRPO: the rewards 1 0 1 0 have the deviation 0.577, 1 0 0 0 have 0.5; the weights of an episode add up to 1/8.
    taught = found.as_dict()["taught"][0]
    assert taught["id"].endswith("/2") and taught["response"] == "not right"
    assert taught["push"] == pytest.approx((0.5 / 0.57735 / 8, -0.25 / 0.5 / 8), rel=1e-4)
    told = next(line for line in lines(folder) if line["id"] == taught["id"])
    assert told["changed"] and (told["recorded"], told["judged"]) == ({"reward": 1.0}, {"reward": 0.0})
    assert (folder / "episodes.jsonl").read_bytes() == journal and found.changes.notes == []


def test_the_judge_of_the_job_changes_nothing(recorded: MakeRun) -> None:
    found = judged_anew(recorded())
    assert found.changed == 0 and found.first_wrong_step is None and found.changes.episodes == 16
    assert "no trained token had an advantage of the wrong sign" in str(found)


def test_episodes_whose_judge_failed_get_a_reward_and_count_as_missed(recorded: MakeRun) -> None:
    def crashing(task: Task, output: Any) -> float:
        return {"right": 1.0, "wrong": 0.0}[output.response]

    found = judged_anew(recorded(judge=crashing), fixed)
    step = found.as_dict()["steps"][1]
    assert found.changes.gained == 2 == found.changed and step["missed"] > 0 and step["wrong"] == 0
    assert found.first_wrong_step is None, "without the failed member the others had the same signs"


def test_rewards_that_should_have_differed_are_missed_and_not_wrong(recorded: MakeRun) -> None:
    def flat(task: Task, output: Any) -> float:
        return 1.0

    step = judged_anew(recorded(judge=flat, steps=1), fixed).as_dict()["steps"][0]
    assert (step["tokens"], step["wrong"], step["wrong_share"]) == (0, 0, 0.0) and step["missed"] > 0


def test_a_judge_that_fails_now_takes_the_credit_of_its_episodes_away(recorded: MakeRun) -> None:
    def broken(task: Task, output: Any) -> float:
        raise KeyError("x")

    found = judged_anew(recorded(steps=1), broken)
    assert found.changes.failing == {"judge:KeyError": 8} and found.changed == 8
    assert found.as_dict()["steps"][0]["wrong_share"] == 1.0 and "fails on 8 episodes" in str(found)


def test_what_the_journal_does_not_have_is_named_even_if_the_judge_hides_it(recorded: MakeRun) -> None:
    def reads(task: Task, output: Any, episode: Any) -> float:
        if output.response != "not right":
            return fixed(task, output)
        try:
            return float(output.metadata["score"])
        except KeyError:
            return 0.0

    found = judged_anew(recorded(), reads)
    assert found.as_dict()["unknown"] == {
        "the judge reads output.metadata, which the journal does not have": 2
    }
    assert found.changed == 0 and found.first_wrong_step is None, "groups that are not known are not compared"
    assert "not judged again: 2, as the judge reads output.metadata" in str(found)


def test_tasks_that_the_journal_does_not_have_are_named(recorded: MakeRun) -> None:
    folder = recorded(steps=1)
    journal = folder / "episodes.jsonl"
    told = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text("".join(json.dumps({k: v for k, v in e.items() if k != "given"}) + "\n" for e in told))
    assert judged_anew(folder, fixed).as_dict()["unknown"] == {"its task is not in the journal": 8}


def asks(task: Task, output: Any) -> float:
    """Asks a model that nothing may reach."""
    import httpx2

    body = {"model": "m", "messages": [{"role": "user", "content": f"Is it right? {output.response}"}]}
    said = (
        httpx2.post("http://127.0.0.1:9/v1/chat/completions", json=body, timeout=None)
        .raise_for_status()
        .json()
    )
    return float(said["choices"][0]["message"]["content"])


def test_a_model_is_not_asked_but_answers_what_it_was_asked_in_the_run(recorded: MakeRun) -> None:
    folder = recorded()
    journal = folder / "episodes.jsonl"
    told = [json.loads(line) for line in journal.read_text().splitlines()]
    for each in told:
        if each["response"] != "not right":
            said = {"choices": [{"message": {"role": "assistant", "content": str(each["reward"])}}]}
            asked = [{"role": "user", "content": f"Is it right? {each['response']}"}]
            call = {
                "url": "http://127.0.0.1:9",
                "request": {"model": "m", "messages": asked},
                "response": said,
            }
            each["judge_calls"] = [call]
    journal.write_text("".join(json.dumps(each) + "\n" for each in told))
    found = judged_anew(folder, asks)
    assert found.as_dict()["unknown"] == {"the judge asks its model what it was not asked in the run": 2}
    assert found.changed == 0 and not found.changes.failing


class Ranks(ajet.GroupJudge):
    """The first member is the best one."""

    name = "ranks"
    best: int = 0

    async def score_group(self, task: Task, episodes: Sequence[EpisodeView]) -> list[JudgeOutput]:
        assert len({e.task_id for e in episodes}) == 1
        return [JudgeOutput(float(e.member == self.best)) for e in episodes]


def test_a_judge_of_groups_gets_the_groups_of_the_run(recorded: MakeRun) -> None:
    folder = recorded(steps=1)
    assert judged_anew(folder, Ranks()).changed == 0
    assert judged_anew(folder, Ranks(best=1)).first_wrong_step == 1


def unfair(task: Task, output: Any, episode: Any) -> JudgeOutput:
    return JudgeOutput(float(episode.member), rewards={"critic": -float(episode.member)})


def fair(task: Task, output: Any, episode: Any) -> JudgeOutput:
    return JudgeOutput(float(episode.member), rewards={"critic": float(episode.member)})


def test_only_the_tokens_of_the_agent_whose_reward_was_wrong_count(recorded: MakeRun) -> None:
    def says(request: Any, prompt: str) -> str:
        return f"it is {len(prompt)}"

    folder = recorded(
        everything, unfair, says, steps=1, filters=[OverLong(max_tokens=300)], rollout={"group_size": 2}
    )
    found = judged_anew(folder, fair)
    step = found.as_dict()["steps"][0]
    assert 0 < step["wrong"] < step["tokens"] / 2 and not found.changes.differences
    assert found.changes.notes == [], "filters leave out what they left out in the run"


@pytest.mark.whole
@pytest.mark.parametrize("credit", ["tree", "episode"])
def test_forks_share_the_credit_of_their_parents(recorded: MakeRun, credit: str) -> None:
    def by_member(task: Task, output: Any, episode: Any) -> float:
        return float(episode.member % 3)

    def opposite(task: Task, output: Any, episode: Any) -> float:
        return -float(episode.member % 3)

    folder = recorded(steady, by_member, varied, rollout=FORKED, credit=credit, steps=1)
    assert judged_anew(folder, by_member).as_dict()["steps"][0]["wrong"] == 0
    found = judged_anew(folder, opposite)
    assert found.as_dict()["steps"][0]["wrong_share"] == 1.0 and found.changes.notes == []


@pytest.mark.parametrize(
    ("algorithm", "first"),
    [(a.ReinforcePlusPlus(), 2), (a.DPO(), None)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_advantages_are_those_of_the_algorithm(recorded: MakeRun, algorithm: Any, first: int | None) -> None:
    """Of a group with the hole, DPO takes the same pair: the first of the best and the first of the worst."""
    found = judged_anew(recorded(algorithm=algorithm), fixed)
    assert found.changed == 2 and found.first_wrong_step == first and found.changes.notes == []


def test_the_advantages_of_a_critic_are_not_known(recorded: MakeRun) -> None:
    found = judged_anew(recorded(algorithm=a.PPO(), steps=1), fixed)
    assert found.first_wrong_step is None and "signs of advantages are not known: " in str(found)


def test_a_journal_that_does_not_give_what_was_trained_is_told(recorded: MakeRun) -> None:
    folder = recorded(steps=1)
    journal = folder / "episodes.jsonl"
    journal.write_text(journal.read_text().replace('"reward": 0.0', '"reward": 1.0', 1))
    assert "do not give the advantages that were trained" in str(judged_anew(folder, fixed))


def test_links_of_a_run_folder_are_neither_read_nor_written_through(
    recorded: MakeRun, tmp_path: Path
) -> None:
    folder, other = recorded(steps=1), tmp_path / "other"
    other.write_text("mine")
    (folder / "rejudged.jsonl").symlink_to(other)
    judged_anew(folder, fixed)
    assert other.read_text() == "mine" and len(lines(folder)) == 8
    journal = folder / "episodes.jsonl"
    journal.rename(tmp_path / "elsewhere")
    journal.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ajet.ConfigError, match="is a link, which is not followed"):
        judged_anew(folder, fixed)


def test_the_command_prints_a_page_or_one_object(
    recorded: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(steps=2)
    named = f"{Path(__file__).with_name('conftest.py')}:fixed"
    assert run_program(["rejudge", str(folder), "--judge", named]) == 0
    said = capsys.readouterr().out
    assert "run: 2 of 16 verdicts change" in said and "rewards: 2 fall and 0 rise, by 1 on average" in said
    assert "first wrong update: step 2" in said and "step_000001" in said and "1 -> 0" in said
    assert run_program(["rejudge", str(folder), "--judge", named, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["first_wrong_step"] == 2


def test_a_run_whose_workflow_gave_the_rewards_needs_a_judge(recorded: MakeRun) -> None:
    folder = recorded(steps=1, job={"judge": None})
    with pytest.raises(ajet.ConfigError, match=r"judge= is missing|judge=: is missing"):
        judged_anew(folder)
    assert judged_anew(folder, fixed).changed == 0


class Counts(ajet.Judge):
    """Each verdict is another one."""

    name = "counts"

    async def judge(self, task: Task, output: Any, episode: EpisodeView) -> JudgeOutput:
        return JudgeOutput(float(next(COUNTER)))


COUNTER = itertools.count()


def reads_files(task: Task, output: Any) -> float:
    return float(len(output.files))


@pytest.mark.parametrize(
    ("judge", "told"),
    [
        ("fixed", "yes"),
        (
            "reads_files",
            "no: 4 of 4 episodes could not, as the judge reads output.files, which the journal does not have",
        ),
        ("counts", "yes, but the judge says something else of 4 of 4 episodes when it is asked again"),
    ],
)
def test_a_check_says_whether_a_run_could_be_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.yaml").write_text('- {say: "right"}\n')
    found = ajet.check(
        workflow=once,
        tasks=[{"query": "a"}],
        judge={"fixed": fixed, "reads_files": reads_files, "counts": Counts()}[judge],
        answers="answers.yaml",
        progress=False,
    )
    assert re.search(rf"^can be rejudged +{re.escape(told)}$", str(found), re.M)


def test_a_plugins_row_in_a_check_may_need_less_than_it_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plugin:
        @ajet.hookimpl
        def ajet_check(self, run_dir: Path) -> list[tuple[str, str]]:
            return [("episodes are in", run_dir.name)]

    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.yaml").write_text('- {say: "right"}\n')
    manager, plugin = load_plugins().manager, Plugin()
    manager.register(plugin)
    try:
        found = ajet.check(
            workflow=once, tasks=[{"query": "a"}], judge=fixed, answers="answers.yaml", progress=False
        )
    finally:
        manager.unregister(plugin)
    assert re.search(r"^episodes are in +\S+-check$", str(found), re.M), str(found)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "1"),
        ("step", None),
        ("reward", "x"),
        ("task", 5),
        ("rewards", [1]),
        ("phase", ["train"]),
        ("member", "a"),
    ],
)
def test_a_line_whose_fields_are_of_other_kinds_is_named(recorded: MakeRun, name: str, value: object) -> None:
    journal = recorded(steps=1) / "episodes.jsonl"
    first, *others = journal.read_text().splitlines()
    journal.write_text("\n".join([json.dumps({**json.loads(first), name: value}), *others]) + "\n")
    with pytest.raises(ajet.AjetError, match=f"episodes.jsonl:1: .*{name}"):
        ajet.rejudge(journal.parent, fixed, progress=False)
