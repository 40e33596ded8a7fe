"""The audit names faults that make a run folder agree with itself, in runs of all kinds, and none in runs that are only odd."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.learning.filters import DiscardedAttempts, OverLong
from ajet.types import Task
from tests.plugins.audit.conftest import Runs, audited, judged
from tests.plugins.audit.test_audit import once
from tests.plugins.audit.test_call_credit import by_call
from tests.plugins.audit.test_forks import FORKED, steady, varied

TWO: Any = {
    "solver": {"agents": ["solver"], "lora": {"rank": 4}},
    "critic": {"agents": ["critic"], "lora": {"rank": 4}},
}
FILTERS = [OverLong(max_tokens=60), DiscardedAttempts()]


def shaky() -> Any:
    """A workflow of which some attempts fail, and some episodes."""
    tries: Counter[str] = Counter()

    async def run(task: Task) -> str:
        tries[task.id] += 1
        answer = await once(task)
        if tries[task.id] in (1, 3, 4):
            raise RuntimeError("no luck")
        return answer

    return run


def resumed(runs: Runs, **settings: Any) -> Path:
    runs.run(once, judged, steps=3, **settings)
    return runs.run(once, judged, steps=4, first_step=3, **settings)


def equal_for_some(task: Task, output: Any, episode: Any) -> float:
    return 1.0 if int(task.id[1:]) % 2 else float(episode.member)


FAILING: Any = {"rollout": {"retries": 1, "group_size": 3, "concurrency": 1}}
KINDS: dict[str, Callable[[Runs], Path]] = {
    "plain": lambda runs: runs.run(mini_batches=2),
    "filters": lambda runs: runs.run(filters=FILTERS, max_timelines=1),
    "failures": lambda runs: runs.run(shaky(), **FAILING),
    "forks": lambda runs: runs.run(
        steady, by_call, varied, rollout=FORKED, credit="tree", call_discount=0.5, steps=2, batch_size=1
    ),
    "adapters": lambda runs: runs.run(target_keys=TWO),
    "resumed": resumed,
    "replaced": lambda runs: runs.run(once, equal_for_some, dynamic_sampling=3.0),
    "asynchronous": lambda runs: runs.run(once, judged, asynchronous=True, max_staleness=1, steps=3),
}


@pytest.fixture(scope="module")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


class Files:
    """The files of a run, of which those that are asked for are written back by `close`."""

    def __init__(self, folder: Path, step: int = 2) -> None:
        self.folder = folder
        self.path = folder / f"batches/step_{step:06d}.npz"
        with np.load(self.path) as file:
            self.arrays: dict[str, Any] = {name: file[name].copy() for name in file.files}
        self.about: dict[str, Any] = json.loads(self.arrays.pop("about").tobytes())
        self.journal = _lines(folder / "episodes.jsonl")
        self.metrics = _lines(folder / "metrics.jsonl")
        self.settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        self.step = step

    @property
    def own(self) -> list[dict[str, Any]]:
        """The journal's lines of the step."""
        return [line for line in self.journal if line.get("step") == self.step]

    @property
    def figures(self) -> dict[str, Any]:
        """The last line of metrics of the step."""
        return [line for line in self.metrics if line.get("step") == self.step][-1]

    def episode(self, name: str) -> dict[str, Any]:
        return next(line for line in self.own if line["id"] == name)

    def follow(self) -> None:
        """Let sums of weights and numbers of trained tokens agree with the rows."""
        trained = int(self.arrays["mask"].sum()) * self.settings["train"]["epochs"]
        self.figures.update(tokens_trained=trained, tokens_zero_advantage=0)
        at = 0
        sums: list[dict[str, float]] = [{} for _ in self.about["sums"]]
        for i, sample in enumerate(self.about["samples"]):
            (mini,) = [n for n, m in enumerate(self.about["mini_batches"][: len(sums)]) if i in m]
            name, weights = sample["adapter"] or "", self.arrays["weights"][at : at + sample["length"]]
            sums[mini][name] = sums[mini].get(name, 0.0) + float(weights.sum(dtype=np.float64))
            at += sample["length"]
        self.about["sums"] = sums

    def remove(self, rule: str, episode: str) -> list[int]:
        """Take all calls of an episode out of the batch, by a rule; returns their numbers."""
        calls = self.drop_rows(episode)
        if rule:
            self.about["left_out"]["calls"].setdefault(rule, {})[episode] = calls
        return calls

    def drop_rows(self, episode: str) -> list[int]:
        rows, at, taken, whole = [], 0, 0, np.zeros(0, np.int32)
        for i, sample in enumerate(self.about["samples"]):
            length, shared = sample["length"], sample["shared"]
            whole = np.concatenate(
                [whole[:shared], self.arrays["token_ids"][taken : taken + length - shared]]
            )
            parts = {n: self.arrays[n][at : at + length] for n in ("mask", "weights", "advantages")}
            rows.append((i, sample, whole, parts))
            at, taken = at + length, taken + length - shared
        kept = [row for row in rows if row[1]["episode"] != episode]
        places = {i: place for place, (i, *_) in enumerate(kept)}
        self.about["samples"] = [{**sample, "shared": 0} for _, sample, _, _ in kept]
        self.about["mini_batches"] = [
            [places[i] for i in mini if i in places] for mini in self.about["mini_batches"]
        ]
        self.arrays["token_ids"] = np.concatenate([ids for _, _, ids, _ in kept])
        for name in ("mask", "weights", "advantages"):
            self.arrays[name] = np.concatenate([parts[name] for *_, parts in kept])
        return [
            span[2] for _, sample, _, _ in rows if sample["episode"] == episode for span in sample["spans"]
        ]

    def close(self) -> None:
        told = np.frombuffer(json.dumps(self.about).encode(), np.uint8)
        np.savez(self.path, about=told, **self.arrays)
        for name, lines in {"episodes.jsonl": self.journal, "metrics.jsonl": self.metrics}.items():
            (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        (self.folder / "settings.json").write_text(json.dumps(self.settings))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def first(files: Files) -> str:
    """The episode of the first row."""
    return str(files.about["samples"][0]["episode"])


def array(call: dict[str, Any], name: str, change: Callable[[Any], Any]) -> None:
    """Change the logprobs or versions of a call."""
    kind = "<f4" if name == "logprobs" else "<i4"
    values = np.frombuffer(base64.b64decode(call["tokens"][name]), kind).copy()
    call["tokens"][name] = base64.b64encode(change(values).astype(kind).tobytes()).decode()


# ------------------------------------------------------------------ what is planted


def over_long_by_name(f: Files) -> None:
    f.remove("over_long", first(f))
    f.follow()


def one_call_by(rule: str, f: Files) -> None:
    sample = f.about["samples"][0]
    start, end, call, *_ = sample["spans"].pop()
    for name in ("mask", "weights", "advantages"):
        f.arrays[name][start:end] = 0
    f.about["left_out"]["calls"].setdefault(rule, {}).setdefault(sample["episode"], []).append(call)
    f.follow()


def side_call(f: Files) -> None:
    one_call_by("side_calls", f)
    (call,) = f.about["left_out"]["calls"]["side_calls"][first(f)]
    next(c for c in f.episode(first(f))["calls"] if c["number"] == call)["tokens"]["side"] = True
    f.settings["rollout"]["side_calls"] = "train"


def with_filter(f: Files, **settings: Any) -> None:
    f.settings["train"]["filters"] = [*f.settings["train"]["filters"], settings]


def other_rule(f: Files) -> None:
    left = f.about["left_out"]["calls"]
    left["discarded_attempts"], left["over_long"] = left["over_long"], {}


def swapped_adapters(f: Files, names: dict[Any, Any]) -> None:
    for sample in f.about["samples"]:
        sample["adapter"] = names[sample["adapter"]]
    f.follow()


def versions(f: Files, version: int) -> None:
    for line in f.own:
        for call in line["calls"]:
            array(call, "versions", lambda old: old * 0 + version)


def all_replayed(f: Files) -> None:
    for call in f.episode(first(f))["calls"]:
        call["tokens"] |= {"replayed": True, "trained": False}
    f.remove("", first(f))
    f.follow()


def fork_of(f: Files, **fork: Any) -> None:
    line = next(line for line in f.own if "fork" in line)
    line["fork"] |= fork


def two_steps(f: Files) -> None:
    f.settings["train"]["mini_batches"] = 1


def swapped_shares(f: Files) -> None:
    f.about["mini_batches"].reverse()
    f.about["sums"].reverse()


def rate(f: Files, where: str) -> None:
    {"record": f.about, "metrics": f.figures, "job": f.settings["train"]}[where]["learning_rate"] *= 10


def renamed(f: Files, new: Callable[[dict[str, Any]], str], **line: Any) -> None:
    """Give an episode another id, everywhere."""
    old = first(f)
    changed = f.episode(old)
    changed |= line
    changed["id"] = new(changed)
    f.about["groups"] = {changed["id"] if n == old else n: g for n, g in f.about["groups"].items()}
    for sample in f.about["samples"]:
        sample["episode"] = changed["id"] if sample["episode"] == old else sample["episode"]


def renumbered_groups(f: Files) -> None:
    f.about["groups"] = {name: group + 1 for name, group in f.about["groups"].items()}


def renumbered_step(f: Files) -> None:
    for line in f.own:
        line["id"] = line["id"].replace("2.", "7.", 1)
    f.about["groups"] = {n.replace("2.", "7.", 1): g for n, g in f.about["groups"].items()}
    for sample in f.about["samples"]:
        sample["episode"] = sample["episode"].replace("2.", "7.", 1)


def deleted(f: Files, which: Callable[[dict[str, Any]], bool]) -> None:
    line = next(line for line in f.own if which(line))
    f.journal.remove(line)


def to_validation(f: Files) -> None:
    next(line for line in f.own if line["failure"])["phase"] = "validation"


def figure(name: str, f: Files) -> None:
    f.figures[name] = f.figures.get(name, 0) + 1


def setting(section: str, key: str, value: Any, f: Files) -> None:
    f.settings[section][key] = value


def a_second_line(f: Files) -> None:
    f.journal.append({**f.own[0], "reward": 9.0})


def call_deleted(f: Files) -> None:
    line = f.episode(first(f))
    number = f.about["samples"][0]["spans"][-1][2]
    one_call_by("nothing", f)
    del f.about["left_out"]["calls"]["nothing"]
    line["calls"] = [c for c in line["calls"] if c["number"] != number]


def bad_logprob(f: Files, value: float) -> None:
    import zlib

    for line in f.own:
        for call in line["calls"]:
            array(call, "logprobs", lambda old: np.concatenate([[value], old[1:]]))
    for sample in f.about["samples"]:
        calls = {c["number"]: c for c in f.episode(sample["episode"])["calls"]}
        for span in sample["spans"]:
            span[5] = zlib.crc32(base64.b64decode(calls[span[2]]["tokens"]["logprobs"]))


def better(f: Files, names: Callable[[str], bool]) -> None:
    for line in f.own:
        line["reward"] += names(line["id"])


def spent(f: Files) -> None:
    f.own[0]["spent"]["completion_tokens"] += 500


def no_counter(f: Files) -> None:
    figure("calls/tokens_not_received", f)
    f.own[0]["counters"]["tokens_not_received"] = 1
    f.own[0]["spent"]["completion_tokens"] += 2


def excluded_as(rule: str, f: Files) -> None:
    name = first(f)
    del f.about["groups"][name]
    f.remove("", name)
    f.about["left_out"]["episodes"][rule] = [name]
    f.follow()


def advantage_of_context(f: Files) -> None:
    f.arrays["advantages"][1] = 1.0


def version_of_a_step(f: Files) -> None:
    f.figures["weight_version"] += 5
    versions(f, f.figures["weight_version"] - 1)


def checkpoint(change: Callable[[Path], Any], f: Files) -> None:
    change(max((f.folder / "checkpoints").iterdir()))


def edited(name: str, key: str, value: Any, folder: Path) -> None:
    found = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**found, key: value}))


def flipped(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(range(98)) + b"\xff")


def finished_without_checkpoint(f: Files) -> None:
    checkpoint(shutil.rmtree, f)
    (f.folder / "ended.json").write_text('{"name": "finished", "why": ""}')


def no_ending(f: Files) -> None:
    (f.folder / "ended.json").write_text("{}")


FAULTS: dict[str, tuple[str, Callable[[Files], Any], str]] = {
    # filters and limits
    "an episode left out by a filter that does not drop it": (
        "filters",
        over_long_by_name,
        "was left out by over_long, but",
    ),
    "a short call left out as long": (
        "filters",
        partial(one_call_by, "over_long"),
        "was left out by over_long, but nothing",
    ),
    "a call left out under another rule": ("filters", other_rule, "but over_long leaves it out"),
    "a call left out by max_timelines in the only timeline": (
        "filters",
        partial(one_call_by, "max_timelines"),
        "was left out by max_timelines, but nothing",
    ),
    "other timelines than the seed chooses": ("filters", partial(setting, "run", "seed", 5), "max_timelines"),
    "no limit of timelines in the job": (
        "filters",
        partial(setting, "train", "max_timelines", None),
        "was left out by max_timelines, which the job does not name",
    ),
    "a filter in the job that did not run": (
        "plain",
        partial(with_filter, type="over_long", max_tokens=1),
        "is in the batch, but over_long leaves it out",
    ),
    "a filter with another bound": (
        "plain",
        partial(with_filter, type="over_long", max_tokens=150),
        "is in the batch, but over_long leaves it out",
    ),
    "an attempt left out as discarded": (
        "filters",
        partial(one_call_by, "discarded_attempts"),
        "was left out by discarded_attempts, but nothing",
    ),
    "an answer left out as repetition": (
        "plain",
        lambda f: (with_filter(f, type="repetition"), one_call_by("repetition", f)),
        "was left out by repetition, but nothing",
    ),
    "an answer left out as unused": (
        "plain",
        lambda f: (with_filter(f, type="unused_branches"), one_call_by("unused_branches", f)),
        "was left out by unused_branches, but nothing",
    ),
    "a limit that did not hold": (
        "plain",
        partial(setting, "train", "max_timelines", 1),
        "is in the batch, but max_timelines leaves it out",
    ),
    "a call marked as a side call": ("plain", side_call, "is marked as a side call, but the job"),
    "an episode excluded as stale": (
        "plain",
        partial(excluded_as, "stale"),
        "excluded as stale, but the job has no",
    ),
    "an episode excluded as not needed": (
        "plain",
        partial(excluded_as, "oversampled"),
        "excluded as oversampled, but the job has no",
    ),
    "an episode excluded for equal rewards": (
        "plain",
        partial(excluded_as, "equal_rewards"),
        "excluded as equal_rewards, but the job has no",
    ),
    "an episode excluded by an unknown rule": (
        "plain",
        partial(excluded_as, "luck"),
        "excluded as luck, but no such rule",
    ),
    "a group of equal rewards in the batch": (
        "replaced",
        lambda f: [line.update(reward=1.0) for line in f.own if line["id"].startswith(first(f)[:4])],
        "but the rewards of its group are equal",
    ),
    # targets and adapters
    "the adapters of all rows swapped": (
        "adapters",
        partial(swapped_adapters, names={"solver": "critic", "critic": "solver"}),
        "has the adapter",
    ),
    "rows without an adapter": (
        "adapters",
        partial(swapped_adapters, names={"solver": None, "critic": None}),
        "it trains no adapter",
    ),
    "rows with the adapter of another target": (
        "adapters",
        partial(swapped_adapters, names={"solver": "solver", "critic": "solver"}),
        "it trains the adapter solver",
    ),
    "a job without adapters": (
        "adapters",
        lambda f: f.settings["targets"]["solver"].pop("lora"),
        "but its target solver has no adapter",
    ),
    "a frozen target": (
        "adapters",
        lambda f: f.settings["targets"]["critic"].update(frozen_model="m"),
        "the job does not train target critic",
    ),
    "a target that the job does not train": (
        "adapters",
        partial(setting, "train", "targets", ["solver"]),
        "the job does not train target critic",
    ),
    # weight versions
    "tokens of an earlier version": ("plain", partial(versions, version=0), "sampled by weight version 0"),
    "tokens of a later version": ("plain", partial(versions, version=99), "sampled by weight version 99"),
    "tokens of the version that they made": (
        "plain",
        partial(versions, version=2),
        "sampled by weight version 2",
    ),
    "a version that no step made": ("plain", version_of_a_step, "it ended with weight version"),
    "tokens older than the job allows": (
        "asynchronous",
        partial(setting, "train", "max_staleness", 0),
        "sampled by weight version 0",
    ),
    "an asynchronous run that says it is not": (
        "asynchronous",
        partial(setting, "train", "asynchronous", False),
        "sampled by weight version 0",
    ),
    # forks
    "calls marked as replayed outside of forks": ("plain", all_replayed, "but its episode is not a fork"),
    "a fork that left its parent elsewhere": ("forks", partial(fork_of, calls=3), "its parent"),
    "a fork of another group": (
        "forks",
        partial(fork_of, parent="1.0/t0/0"),
        "which its group does not have",
    ),
    "a fork that is none": (
        "forks",
        lambda f: next(line for line in f.own if "fork" in line).pop("fork"),
        "but its episode is not a fork",
    ),
    "a job without forks": ("forks", partial(setting, "rollout", "fork", None), "has no rollout.fork"),
    "a fork that is missing": (
        "forks",
        partial(deleted, which=lambda line: line["member"] == 2),
        "a fork is missing",
    ),
    # optimizer steps and learning rates
    "two optimizer steps where the job has one": (
        "plain",
        two_steps,
        "2 optimizer steps a pass, but train.mini_batches gives 1",
    ),
    "mini-batches with each other's groups": (
        "plain",
        swapped_shares,
        "other groups than the seed gives them",
    ),
    "ten times the learning rate in the record": ("plain", partial(rate, where="record"), "learning rate"),
    "ten times the learning rate in the metrics": ("plain", partial(rate, where="metrics"), "learning rate"),
    "ten times the learning rate in the job": ("plain", partial(rate, where="job"), "but the job has"),
    "another schedule": (
        "plain",
        partial(setting, "train", "schedule", "linear"),
        "learning rate in its record",
    ),
    "a warm-up that did not take place": (
        "resumed",
        partial(setting, "train", "warmup_steps", 9),
        "but the job has",
    ),
    # episodes, groups and figures
    "a failed episode deleted": (
        "failures",
        partial(deleted, which=lambda line: bool(line["failure"])),
        "metrics.jsonl says episodes",
    ),
    "a failed episode as one of validation": ("failures", to_validation, "as one of validation"),
    "an episode with another number": (
        "plain",
        partial(renamed, new=lambda line: line["id"][:-1] + "5", member=5),
        "of its 2 episodes",
    ),
    "an episode with another number in its line": (
        "plain",
        lambda f: f.own[0].update(member=5),
        "the journal has it as number 5",
    ),
    "an episode of another task": (
        "plain",
        lambda f: f.own[0].update(task="t99"),
        "of task t99",
    ),
    "groups with other numbers": ("plain", renumbered_groups, "it counts in group"),
    "a step with another number": ("plain", renumbered_step, "the journal has it as one of step 2"),
    "a larger group size": ("plain", partial(setting, "rollout", "group_size", 3), "of its 3 episodes"),
    "a larger batch": ("plain", partial(setting, "train", "batch_size", 5), "but train.batch_size is 5"),
    "a line of metrics twice": (
        "plain",
        lambda f: f.metrics.append(dict(f.figures)),
        "has 2 lines of step 2",
    ),
    "an episode twice": ("plain", a_second_line, "is there twice"),
    **{
        f"another figure of {name}": (run, partial(figure, name), f"metrics.jsonl says {name}")
        for name, run in {
            "episodes": "plain",
            "episodes_failed": "failures",
            "groups": "plain",
            "tokens_sampled": "plain",
            "tokens_failed": "failures",
            "reward": "plain",
            "reward_max": "plain",
            "forks": "forks",
            "breaks": "plain",
            "failed/workflow:RuntimeError": "failures",
            "dropped_tokens/over_long": "filters",
        }.items()
    },
    "an episode without a reward": ("plain", lambda f: f.own[0].update(reward=None), "other values than"),
    # what calls sampled
    "tokens that no call sampled": ("plain", spent, "it sampled 500 tokens beside"),
    "more lost answers than are known": ("plain", no_counter, "it sampled 2 tokens beside"),
    "a call deleted everywhere": ("plain", call_deleted, "tokens beside those of its calls"),
    "logprobs that are NaN": (
        "plain",
        partial(bad_logprob, value=np.nan),
        "logprob of a token is nan",
    ),
    "positive logprobs": ("plain", partial(bad_logprob, value=0.5), "logprob of a token is 0.5"),
    "the rewards of a group one higher": (
        "plain",
        partial(better, names=lambda name: name.startswith("2.0")),
        "metrics.jsonl says reward",
    ),
    "an advantage of a context token": ("plain", advantage_of_context, "only context, has the advantage 1"),
    # checkpoints and the end
    "weights of the checkpoint flipped": ("plain", partial(checkpoint, flipped), "has changed since"),
    "weights of the checkpoint missing": (
        "plain",
        partial(checkpoint, lambda c: (c / "model.safetensors").unlink()),
        "model.safetensors is missing",
    ),
    "weights of the checkpoint cut": (
        "plain",
        partial(checkpoint, lambda c: (c / "model.safetensors").write_bytes(b"")),
        "has 0 bytes instead of 99",
    ),
    "the list of the checkpoint missing": (
        "plain",
        partial(checkpoint, lambda c: (c / "files.json").unlink()),
        "it is incomplete",
    ),
    "the checkpoint of another step": (
        "plain",
        partial(checkpoint, partial(edited, "ajet.json", "step", 777)),
        "is that of step 777",
    ),
    "the checkpoint of another version": (
        "plain",
        partial(checkpoint, partial(edited, "ajet.json", "version", 777)),
        "its weights are version 777",
    ),
    "a finished run without its last checkpoint": (
        "plain",
        finished_without_checkpoint,
        "has no checkpoint",
    ),
    "a run that does not say how it ended": ("plain", no_ending, "does not say how the run ended"),
}


@pytest.fixture
def run_of(
    runs: Runs, _kept: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A copy of a run of a kind, without its tokenizer, which takes time to load."""

    def copied(kind: str) -> Path:
        if kind not in _kept:
            made = KINDS[kind](runs)
            assert audited(made).faults == []
            shutil.rmtree(made / "tokenizer")
            _kept[kind] = shutil.move(made, tmp_path_factory.mktemp("kept") / kind)
        return Path(shutil.copytree(_kept[kind], runs.folder / "copy"))

    return copied


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_agrees_with_the_record_is_named(run_of: Callable[[str], Path], name: str) -> None:
    kind, plant, said = FAULTS[name]
    folder = run_of(kind)
    files = Files(folder)
    plant(files)
    files.close()
    faults = audited(folder).faults
    assert any(said in fault for fault in faults), faults
    assert all("\n" not in fault for fault in faults)
