"""The trainer on a real model of a few thousand weights: what it learns from, what it publishes, and what a kill leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ajet import AjetError
from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.recorder import live_lines
from ajet.types import ConfigError
from ajet_online.schema import Stage
from ajet_online.store import TraceStore
from ajet_online.trainer import ASIDE, ROUND, OnlineTrainer
from ajet_online.versions import Versions
from tests.plugins.online.replies import Bench
from tests.tiers import fast
from tests.tiny import save_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), tokenizer)


@pytest.fixture
def bench(tmp_path: Path, file: Path, model: Path) -> Iterator[Bench]:
    store = TraceStore.open(str(file))
    yield Bench(store, model, tmp_path, [])
    store.close()


VALIDATION = {
    "task": {"validation": {"type": "jsonl", "path": "validation.jsonl"}},
    "judge": "judge.py:judge",
}


@pytest.fixture
def validated(bench: Bench) -> dict[str, Any]:
    """A job whose validation says what the file `reward` contains."""
    (bench.folder / "validation.jsonl").write_text(json.dumps({"query": "hi"}) + "\n")
    (bench.folder / "judge.py").write_text(
        "from pathlib import Path\n"
        "def judge(task, output):\n"
        f"    return float(Path({str(bench.folder / 'reward')!r}).read_text())\n"
    )
    (bench.folder / "reward").write_text("0.5")
    return {
        "task": {"validation": {"type": "jsonl", "path": str(bench.folder / "validation.jsonl")}},
        "judge": f"{bench.folder / 'judge.py'}:judge",
        "eval": {"sampling": {"max_tokens": 4}},
    }


def weights(path: str | Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict())


def changed(one: str | Path, other: str | Path) -> bool:
    before, after = weights(one), weights(other)
    return any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.whole
def test_it_learns_from_ratings_with_the_recorded_tokens(bench: Bench) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.train()
    first = bench.versions[1]
    assert (first.stage, first.parent) == (Stage.PUBLISHED, 0)
    assert changed(bench.model, first.path)
    assert bench.states() == {"a": "trained", "b": "trained"}
    tokens = sum(len(trace.tokens) for trace in bench.store.all())
    about = first.report
    assert about["tokens_trained"] == tokens and about["logprob_diff_max"] < 1e-4
    assert (about["replies"], about["reward"], about["staleness_max"], about["baseline"]) == (2, 0.5, 0, 0.5)


@pytest.mark.whole
def test_the_next_update_continues_from_the_last_with_its_optimizer_and_baseline(bench: Bench) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.rated({"c": 1.0, "d": 1.0})
    bench.train(2)
    _, first, second = bench.versions
    assert second.parent == 1 and second.report["staleness_max"] == 1
    assert second.report["baseline"] == pytest.approx(0.75), "half of 0.5 and half of 1"
    assert Path(first.path).name == "step_000001" and Path(second.path).name == "step_000002"


@pytest.mark.whole
def test_of_a_conversation_only_the_rated_reply_is_trained_in_its_place(bench: Bench) -> None:
    first = bench.reply("first")
    second = bench.reply("second", "and now?", after=first)
    bench.reply(
        "third",
        "why?",
        after=replace(second, prompt=np.concatenate([first.prompt, first.tokens, second.prompt])),
    )
    bench.store.rate(["second"], 1.0, "t", "0")
    bench.rated({"other": 0.0})
    bench.train()
    about = bench.versions[1].report
    others = {trace.id: trace for trace in bench.store.all()}
    assert about["tokens_trained"] == len(others["second"].tokens) + len(others["other"].tokens)
    assert about["logprob_diff_max"] < 1e-4, "after all tokens before it"
    assert bench.states() == {
        "first": "recorded",
        "second": "trained",
        "third": "recorded",
        "other": "trained",
    }


@pytest.mark.whole
def test_an_update_waits_for_the_ratings_of_the_served_version_and_takes_all_of_them(bench: Bench) -> None:
    bench.rated({"a": 1.0, "b": 0.0, "c": 1.0})
    trainer = bench.trainer(online={"rollback": {"ratings": 4}, "poll": 0.01})
    trainer.versions.begin(trainer.job.model)
    trainer._once()
    trainer._once()
    assert len(bench.versions) == 1
    assert bench.said == ["the update waits for 4 ratings of version 0 (plugins.online.rollback.ratings)"]
    bench.rated({"d": 0.0})
    trainer._once()
    assert len(bench.versions) == 2 and bench.versions[1].report["replies"] == 4
    bench.rated({"e": 1.0, "f": 0.0, "g": 1.0, "h": 0.0})
    trainer._once()
    assert len(bench.versions) == 2, "these are ratings of version 0"
    bench.rated({"i": 1.0, "j": 0.0, "k": 1.0, "l": 0.0}, version=1)
    trainer._once()
    assert bench.versions[2].report["replies"] == 8, "what came while it waited too"
    lines = live_lines(trainer.run_dir / "metrics.jsonl")
    assert [line["optimizer_steps"] for line in lines if line["type"] == "train"] == [2, 4], "of two replies"


@pytest.mark.whole
def test_a_rating_of_an_earlier_release_beyond_the_bounds_does_not_stop_the_others_from_being_learned(
    bench: Bench,
) -> None:
    bench.rated({"a": 1.0, "b": 0.0, "c": 1e308})
    bench.train(train={"batch_size": 3})
    assert bench.states() == {"a": "trained", "b": "trained", "c": "discarded"}
    (why,) = [trace.reason for trace in bench.store.all() if trace.id == "c"]
    assert why == "its reward is not from 0 to 1 (plugins.online.rewards)"


@pytest.mark.whole
def test_what_cannot_be_trained_is_discarded_with_the_reason(bench: Bench) -> None:
    bench.rated({"good": 1.0, "bad": 0.0, "unrated": None})
    greedy = bench.reply("x")
    bench.store.record([replace(greedy, id="greedy", trained=False)])
    bench.store.rate(["greedy"], 1.0, "greedy", "0")
    bench.train(train={"batch_size": 4})
    assert bench.states() == {
        "good": "trained",
        "bad": "trained",
        "unrated": "discarded",
        "x": "recorded",
        "greedy": "discarded",
    }
    reasons = {trace.id: trace.reason for trace in bench.store.all() if trace.reason}
    assert reasons == {
        "unrated": "it has no reward",
        "greedy": "it was sampled greedily, or with top_p or top_k",
    }


@pytest.mark.whole
def test_stale_replies_are_discarded(bench: Bench) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.train(1)
    bench.rated({"c": 1.0, "d": 0.0})
    bench.rated({"e": 1.0, "f": 0.0}, version=1)
    bench.train(1, train={"batch_size": 4, "max_staleness": 0})
    assert {n for n, state in bench.states().items() if state == "discarded"} == {"c", "d"}
    assert "more than 0 updates old" in next(t.reason or "" for t in bench.store.all() if t.id == "c")


@pytest.mark.whole
def test_a_long_journal_is_left_for_a_new_run_folder(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.train(1)
    monkeypatch.setattr("ajet_online.trainer.MOST_JOURNAL", 0)
    bench.rated({"c": 1.0, "d": 0.0}, version=1)
    bench.train(1)
    first, second = (Path(version.path) for version in bench.versions[1:])
    assert first.parents[1] != second.parents[1] and first.parents[2] == second.parents[2]
    assert second.name == "step_000002" and changed(first, second)


# --------------------------------------------------------------------------- the gate


@pytest.mark.whole
def test_a_candidate_below_the_threshold_is_kept_but_not_published(
    bench: Bench, validated: dict[str, Any]
) -> None:
    bench.rated({"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0})
    reward = bench.folder / "reward"
    trainer = bench.trainer(**validated, online={"updates": 1})
    reward.write_text("0.5")
    bench.store.commit()
    Versions(bench.store).begin(trainer.job.model)
    lease = bench.store.lease("t", 2, 60, by_run=True)
    assert lease
    version = trainer.update(lease)
    assert version and version.stage == Stage.PUBLISHED and bench.versions[0].reward == 0.5
    reward.write_text("0.1")
    lease = bench.store.lease("t", 2, 60, by_run=True)
    assert lease
    rejected = trainer.update(lease)
    assert rejected and rejected.stage == Stage.REJECTED
    assert rejected.reason == (
        "validation reward 0.100, version 0 has 0.500, the last published ones 0.500, and two standard errors are 0"
    )
    assert Path(rejected.path).name == f"{ASIDE}step_000002_version_2" and Path(rejected.path).is_dir()
    assert set(bench.states().values()) == {"trained"}

    reward.write_text("0.6")
    bench.rated({"e": 1.0, "f": 0.0}, version=1)
    bench.train(1, **validated)
    third = bench.versions[3]
    assert (third.parent, third.stage, Path(third.path).name) == (1, Stage.PUBLISHED, "step_000002")


@pytest.mark.whole
def test_the_served_version_stays_while_a_candidate_may_be_rejected(
    bench: Bench, validated: dict[str, Any]
) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.train(train={"keep_last": 1}, **validated)
    (bench.folder / "reward").write_text("0.1")
    bench.rated({"c": 1.0, "d": 0.0}, version=1)
    bench.train(train={"keep_last": 1}, **validated)
    _, served, rejected = bench.versions
    assert (served.stage, rejected.stage) == (Stage.PUBLISHED, Stage.REJECTED)
    assert Path(served.path).is_dir()


@pytest.fixture
def failing(bench: Bench) -> dict[str, Any]:
    """A job of three validation tasks, with the reward 1; those that the file `failing` names fail."""
    tasks, failing = bench.folder / "validation.jsonl", bench.folder / "failing"
    tasks.write_text("".join(json.dumps({"query": name}) + "\n" for name in "abc"))
    failing.write_text("")
    (bench.folder / "judge.py").write_text(
        "from pathlib import Path\n"
        "def judge(task, output):\n"
        f"    assert task.query not in Path({str(failing)!r}).read_text()\n"
        "    return 1.0\n"
    )
    return {
        "task": {"validation": {"type": "jsonl", "path": str(tasks)}},
        "judge": f"{bench.folder / 'judge.py'}:judge",
        "eval": {"sampling": {"max_tokens": 4}},
    }


@pytest.mark.whole
def test_a_candidate_with_which_episodes_fail_is_rejected_and_training_goes_on(
    bench: Bench, failing: dict[str, Any]
) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.train(1, **failing)
    reasons = []
    for names in ("bc", "abc", ""):
        (bench.folder / "failing").write_text(names)
        bench.rated({f"{names}-{n}": float(n) for n in range(2)}, version=1)
        bench.train(1, **failing)
        reasons.append(bench.versions[-1].reason)
    assert reasons[0] and reasons[0].startswith(
        "validation reward 0.333 (2 of 3 episodes failed), version 0 has 1"
    )
    assert reasons[1:] == ["all 3 validation episodes failed", None]
    assert [v.stage.name for v in bench.versions[1:]] == ["PUBLISHED", "REJECTED", "REJECTED", "PUBLISHED"]
    assert bench.versions[3].report["validation_failed"] == 3 and bench.versions[4].parent == 1
    assert Path(bench.versions[3].path).is_dir()
    assert set(bench.states().values()) == {"trained"}, "none is learned again"
    assert any("step 2: all 3 episodes failed: 3 judge:AssertionError" in line for line in bench.said)


@pytest.mark.whole
def test_a_job_whose_validation_fails_with_the_first_model_ends_and_keeps_the_feedback(
    bench: Bench, failing: dict[str, Any]
) -> None:
    (bench.folder / "failing").write_text("abc")
    bench.rated({"a": 1.0, "b": 0.0})
    with pytest.raises(AjetError, match="validation at step 0: all 3 episodes failed"):
        bench.train(1, **failing)
    assert set(bench.states().values()) == {"ready"}


@pytest.mark.kept
def test_after_a_rollback_training_goes_on_from_the_served_version(bench: Bench) -> None:
    bench.rated({"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0})
    bench.train(2)
    Versions(bench.store).withdraw(1, "users like it less")
    bench.rated({"e": 1.0, "f": 0.0}, version=2)
    bench.train(1)
    third = bench.versions[3]
    assert third.parent == 1 and third.report["staleness_max"] == 1, (
        "one update back from the withdrawn version"
    )
    assert bench.versions[2].path.endswith("_version_2")


# --------------------------------------------------------------------------- kills


def interrupted(trainer: OnlineTrainer, patch: pytest.MonkeyPatch, name: str) -> None:
    """Run a trainer that ends, as by a kill, where it calls a method of `Versions`."""

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with patch.context() as inside, pytest.raises(KeyboardInterrupt):
        inside.setattr(Versions, name, killed)
        trainer.run()


@pytest.mark.whole
@pytest.mark.parametrize("killed_at", fast({0}, ["learned", "publish"]))
def test_a_checkpoint_that_survived_counts_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    interrupted(bench.trainer(online={"updates": 1}), monkeypatch, killed_at)
    trainer = bench.trainer()
    trainer.recover()
    assert [v.stage for v in bench.versions] == [Stage.PUBLISHED] * 2
    assert bench.states() == {"a": "trained", "b": "trained"} and bench.versions[1].report["replies"] == 2
    assert not (trainer.run_dir / ROUND).exists()
    trainer.recover()
    assert len(bench.versions) == 2


@pytest.mark.whole
def test_a_checkpoint_whose_validation_was_interrupted_is_not_published(
    bench: Bench, validated: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet.learning.loop.WORTH_SAVING", 0.0)  # as after an update of a minute
    (bench.folder / "judge.py").write_text(
        "import itertools, os, signal, time\n"
        "calls = itertools.count()\n"
        "def judge(task, output):\n"
        "    if next(calls) == 1:  # the candidate; the first one was of version 0\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(1)\n"
        "    return 0.5\n"
    )
    bench.rated({"a": 1.0, "b": 0.0})
    with pytest.raises(KeyboardInterrupt):
        bench.train(1, **validated)
    trainer = bench.trainer(**validated)
    assert [path.name for path in checkpoints(trainer.run_dir)] == ["step_000001"]
    trainer.recover()
    assert len(bench.versions) == 1 and bench.states() == {"a": "ready", "b": "ready"}
    bench.train(1, **validated)
    assert bench.versions[1].stage == Stage.PUBLISHED and bench.versions[1].reward == 0.5


def test_without_a_checkpoint_the_traces_are_ready_again_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    trainer = bench.trainer()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bench.store, "release", lambda lease: None)  # a kill leaves no time for it
        patch.setattr(type(trainer.job.backbone), "run", _killed)
        trainer.run()
    assert bench.states() == {"a": "leased", "b": "leased"}
    bench.trainer().recover()
    assert bench.states() == {"a": "ready", "b": "ready"} and len(bench.versions) == 1


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.whole
def test_a_checkpoint_whose_lease_was_lost_is_not_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    interrupted(bench.trainer(online={"lease": 0.001}), monkeypatch, "learned")
    other = bench.store.lease("other", 2, 60, by_run=True)
    assert other
    trainer = bench.trainer()
    trainer.recover()
    assert len(bench.versions) == 1 and checkpoints(trainer.run_dir) == []
    assert "its lease had expired" in bench.said[-1]
    assert set(bench.states().values()) == {"leased"}


def test_a_failing_backbone_returns_the_traces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise AjetError("the disk is full")

    bench.rated({"a": 1.0, "b": 0.0})
    trainer = bench.trainer()
    monkeypatch.setattr(type(trainer.job.backbone), "run", fails)
    with pytest.raises(AjetError, match="the disk is full"):
        trainer.run()
    assert set(bench.states().values()) == {"ready"}


@pytest.mark.whole
def test_a_trainer_waits_for_the_update_of_another_and_then_learns_from_its_version(bench: Bench) -> None:
    bench.rated({name: float(name in "ace") for name in "abcdef"})
    one, two = bench.trainer("one"), bench.trainer("two", online={"poll": 0.01})
    one.versions.begin(one.job.model)
    bench.store.commit()
    lease = bench.store.lease(one.name, 2, 60, by_run=True)
    assert lease
    two._once()
    two._once()
    assert bench.said == [
        f"the trainer in {bench.folder / 'one'} makes an update, and this one waits: trainers take turns"
    ]
    one.update(lease)
    two._once()
    one._once()
    assert [(v.stage, v.parent) for v in bench.versions[1:]] == [(Stage.PUBLISHED, n) for n in range(3)]
    assert set(bench.states().values()) == {"trained"}


@pytest.mark.whole
def test_what_a_trainer_has_leased_before_it_could_note_it_is_ready_when_it_starts_again(
    bench: Bench,
) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.store.commit()
    assert bench.store.lease(bench.trainer().name, 2, 600, by_run=True)
    bench.train(1)
    assert bench.states() == {"a": "trained", "b": "trained"}


@pytest.mark.whole
def test_two_trainers_on_one_store_continue_each_others_versions(bench: Bench) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.train(1, folder="one")
    bench.rated({"c": 1.0, "d": 0.0}, version=1)
    bench.train(1, folder="two")
    first, second = bench.versions[1:]
    assert second.parent == first.number and Path(second.path).parents[2].name == "two"
    assert Path(second.path).name == "step_000002", "after a copy of the first one's checkpoint"


@pytest.mark.whole
@pytest.mark.parametrize("folder", ["one", "two"])
def test_a_rollback_to_a_version_that_its_trainer_has_set_aside_is_learned_from(
    bench: Bench, folder: str
) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.train(1, folder="one")
    for number, (name, trainer) in enumerate([("c", "two"), ("e", "one")], 1):
        bench.rated({name: 1.0, f"{name}2": 0.0}, version=number)
        bench.train(1, folder=trainer)
    first = bench.versions[1]
    assert Path(first.path).name == f"{ASIDE}step_000001_version_1", "the other one's version was served"
    Versions(bench.store).withdraw(1, "by hand")
    bench.rated({"g": 1.0, "h": 0.0}, version=1)
    bench.train(1, folder=folder)
    last = bench.versions[4]
    assert last.parent == 1 and Path(last.path).name == "step_000002", "after a copy of version 1"


# --------------------------------------------------------------------------- algorithms


@pytest.mark.whole
def test_grpo_compares_the_runs_of_a_task(bench: Bench) -> None:
    bench.replies([(name, "same question") for name in ("a0", "a1", "a2", "b0", "b1")])
    for name, reward in {"a0": 1.0, "a1": 0.0, "a2": 0.0, "b0": 1.0, "b1": 0.5}.items():
        bench.store.rate([name], reward, name[0], name[1])
    bench.store.commit()
    trainer = bench.train(train={"algorithm": "grpo"})
    assert not trainer.commits, "the runs of a task are complete when they are committed"
    assert bench.versions[1].report["replies"] == 5 and set(bench.states().values()) == {"trained"}


@pytest.mark.whole
def test_kto_takes_its_reference_point_from_the_last_update(bench: Bench, model: Path) -> None:
    bench.rated({"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0})
    bench.train(2, train={"algorithm": "kto"})
    _, first, second = bench.versions
    assert first.report["reference_point"] == 0 and first.report["reference_log_ratio"] == pytest.approx(
        0, abs=1e-5
    )
    assert second.report["reference_log_ratio"] != pytest.approx(0, abs=1e-5)
    assert second.report["reference_point"] == max(first.report["reference_log_ratio"], 0)


@pytest.mark.whole
def test_sft_learns_corrections_and_nothing_else(bench: Bench) -> None:
    bench.rated({"a": None}, correction="7")
    bench.rated({"b": 1.0})
    bench.train(1, train={"algorithm": "sft"})
    assert bench.states() == {"a": "trained", "b": "discarded"}
    about = bench.versions[1].report
    assert about["tokens_trained"] == 2, "the digit, and the end of the turn"
    assert about["loss"] > 0


@pytest.mark.whole
@pytest.mark.parametrize("correction", fast({0}, ["x" * 9_000_000, "z " * 30_000]))
def test_a_correction_beyond_the_models_context_is_discarded_and_the_others_are_learned(
    bench: Bench, correction: str
) -> None:
    bench.rated({"a": None}, correction="7")
    bench.rated({"b": None}, correction=correction)
    bench.train(1, train={"algorithm": "sft"})
    assert bench.states() == {"a": "trained", "b": "discarded"}
    (why,) = {trace.reason for trace in bench.store.all() if trace.reason}
    assert why.startswith("it is longer, with the conversation before it, than the model's context of ")
    assert bench.versions[1].report["discarded"] == 1


@pytest.mark.whole
def test_a_reply_is_as_long_as_the_conversation_up_to_it(bench: Bench) -> None:
    first = bench.reply("first", "a long question " * 10)
    bench.reply("second", "and now?", after=first)
    bench.rated({"a": 1.0, "b": 0.0})
    for name in ("first", "second"):
        bench.store.rate([name], 1.0, name, "0")
    context = len(first.prompt) + len(first.tokens)
    bench.train(1, train={"batch_size": 4}, rollout={"context_length": context})
    assert bench.states() == {"a": "trained", "b": "trained", "first": "trained", "second": "discarded"}


@pytest.mark.whole
def test_distillation_learns_from_a_teacher_whatever_the_feedback(bench: Bench, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(bench.model, teacher)
    bench.rated({"a": 1.0, "b": None})
    bench.train(1, train={"algorithm": "distillation", "reference": str(teacher)})
    assert bench.states() == {"a": "trained", "b": "trained"}


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ({"train": {"schedule": "cosine"}}, "train.schedule: online training has no last step"),
        ({"targets": {"a": {"lora": {}}, "b": {"lora": {}}}}, "online training trains one target, not a, b"),
    ],
)
def test_jobs_that_cannot_be_trained_online_are_refused(
    bench: Bench, job: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        bench.trainer(**job)


def test_a_store_of_another_model_is_refused(bench: Bench) -> None:
    Versions(bench.store).begin("another")
    with pytest.raises(ConfigError, match="first model is another"):
        bench.train()


@pytest.mark.whole
def test_ppo_learns_from_single_ratings_with_its_critic(bench: Bench) -> None:
    bench.rated({"a": 1.0, "b": 0.0})
    bench.rated({"c": 1.0, "d": 1.0})
    trainer = bench.train(2, train={"algorithm": "ppo"})
    assert trainer.commits, "feedback is complete as soon as it is given"
    _, first, second = bench.versions
    assert changed(first.path, second.path)
    heads = [
        next(iter(torch.load(Path(version.path) / "trainer.pt")["critics"].values()))
        for version in (first, second)
    ]
    assert any(not torch.equal(heads[0][name], heads[1][name]) for name in heads[0])
