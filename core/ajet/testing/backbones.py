"""The contract of every `ajet.Backbone`, as checks that run small jobs on a real one.

    def test_conformance(check_backbone, tmp_path):  # once for each check
        check_backbone("mine", model=str(a_tiny_model), folder=tmp_path)

A check is a function that takes a `BackboneSubject` and raises AssertionError, with a sentence, if the backbone
violates the contract. Use a tiny model with random weights.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ajet.interfaces.backbone import OPTIONAL_KEYS, Capabilities, RunResult
from ajet.interfaces.progress import Silent
from ajet.types import ConfigError

__all__ = ["BACKBONE_CHECKS", "BackboneSubject"]

AGENT = """
import httpx2

async def run(task, tuner):
    chat = [{"role": "user", "content": task.query}]
    headers = {"authorization": f"Bearer {tuner.api_key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=120) as client:
        for _ in range(2):
            ask = {"model": "any", "messages": chat, "max_tokens": 4}
            answer = await client.post(f"{tuner.base_url}/chat/completions", json=ask)
            answer.raise_for_status()
            message = answer.json()["choices"][0]["message"]
            chat += [{"role": "assistant", "content": message["content"] or ""}, {"role": "user", "content": "more"}]
    return message["content"] or ""

def judge(task, output):
    return min(len(set(output.response)) / 100, 1.0)
"""
GROUPS, MEMBERS = 2, 2
_NO_KEYS: Mapping[str, Any] = MappingProxyType({})


class _Said(Silent):
    """Remembers the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@dataclass(frozen=True)
class BackboneSubject:
    """A backbone by name, a small model for it, and an empty folder for its runs.

    ``section`` are the keys of ``backbone.<name>``, ``keys`` further ones of every job, dotted:
    ``{"train.learning_rate": 1e-3}``.
    """

    name: str
    model: str
    folder: Path
    section: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    """What the last run printed."""

    @property
    def capabilities(self) -> Capabilities:
        """What the backbone declares."""
        from ajet.job.job import Backbone
        from ajet.plugins import load_plugins

        return load_plugins().get(Backbone, self.name, "backbone.name").capabilities

    def run(self, more: Mapping[str, Any] = _NO_KEYS, *, resume: Path | None = None) -> RunResult:
        """Run a job of two steps, each with two groups of two, with ``more`` keys; or resume a run."""
        from ajet.job.config import Layers, read_job_file
        from ajet.job.prepare import prepare

        layers = Layers()
        if resume:
            layers.add(read_job_file(resume / "job.yaml"), "job.yaml", resume)
        else:
            layers.add(self._job(), "job.yaml", self.folder)
            for key, value in self.keys.items():
                layers.set(key, value, "subject", self.folder)
        for key, value in more.items():
            layers.set(key, value, "check", self.folder)
        told = _Said()
        job = prepare(layers, resume=resume).with_progress(told)
        result = job.backbone.run(job)
        self.said[:] = told.lines
        return result

    def _job(self) -> dict[str, Any]:
        (self.folder / "agent.py").write_text(AGENT)
        tasks = [{"id": f"t{i}", "query": f"say {i}"} for i in range(4)]
        (self.folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
        return {
            "task": {"reader": "tasks.jsonl"},
            "workflow": "agent.py:run",
            "judge": "agent.py:judge",
            "model": self.model,
            "rollout": {"group_size": MEMBERS, "timeout": 120},
            "train": {"steps": 2, "batch_size": GROUPS, "learning_rate": 1e-3, "save_every": 1},
            "backbone": {"name": self.name, self.name: dict(self.section)},
            "run": {"dir": str(self.folder / "runs")},
        }

    def optional(self) -> dict[str, dict[str, Any]]:
        """Capability -> keys of a job that needs it."""
        jobs: dict[str, dict[str, Any]] = {
            "train.kl": {"train.kl": 0.1},
            "train.reference": {"train.kl": 0.1, "train.reference": self.model},
            "train.entropy": {"train.entropy": 0.01},
            "train.correction": {"train.correction": "truncated"},
            "train.epochs": {"train.epochs": 2},
            "train.max_staleness": {"train.max_staleness": 1},
            "train.asynchronous": {"train.asynchronous": True},
            "train.dynamic_sampling": {"train.dynamic_sampling": 1.5},
            "train.schedule": {"train.schedule": "cosine"},
            "train.save_minutes": {"train.save_minutes": 1},
            "rollout.fork": {"rollout.fork.roots": 1},
            "rollout.oversample": {"rollout.oversample": 1.5},
            "rollout.steer": {"rollout.steer.whole": 0.5},
            "task.selector": {"task.selector": "difficulty"},
        }
        assert jobs.keys() == OPTIONAL_KEYS, "a new optional key needs a job here"
        two = {"targets.a.agents": ["*"], "targets.b.agents": ["other"]}
        return {
            **jobs,
            "lora": {"targets.a.lora.rank": 2},
            "several_targets": {**two, "targets.a.lora.rank": 2, "targets.b.lora.rank": 2},
            "deterministic": {"run.deterministic": True},
            "truncated_sampling": {"rollout.sampling.top_p": 0.9},
        }

    def honours(self, capability: str) -> bool:
        """Whether the backbone declares it."""
        can = self.capabilities
        return capability in can.keys if "." in capability else bool(getattr(can, capability))


def check_what_it_declares_is_honoured(subject: BackboneSubject) -> None:
    """A job with each declared key runs to its end; a backbone that does not train accepts all of them."""
    trains = subject.capabilities.trains
    for capability, keys in subject.optional().items():
        if trains and not subject.honours(capability):
            continue
        if capability == "several_targets" and trains and not subject.capabilities.lora:
            continue
        try:
            result = subject.run({"train.steps": 1, **keys})
        except ConfigError as error:
            raise AssertionError(f"{capability} is declared, but refused: {error}") from error
        assert result.steps == int(trains), f"{capability}: {result.steps} steps instead of 1"


def check_what_it_does_not_declare_is_refused(subject: BackboneSubject) -> None:
    """An undeclared key is refused before anything starts, with an error that names the key."""
    if not subject.capabilities.trains:
        return
    for capability, keys in subject.optional().items():
        if subject.honours(capability):
            continue
        try:
            subject.run({"train.steps": 1, **keys})
        except ConfigError as error:
            assert any(key.partition(".")[0] in str(error) for key in keys), f"{capability}: {error}"
        else:
            raise AssertionError(f"{capability} is not declared, but a job with {keys} ran")


def check_the_run_folder_tells_what_happened(subject: BackboneSubject) -> None:
    """It contains the job, the versions, one line of metrics per step, and each episode once, with its group."""
    result = subject.run({"task.validation": "tasks.jsonl", "eval.episodes": 2})
    for name in ("job.yaml", "versions.json"):
        assert (result.run_dir / name).is_file(), f"the run folder has no {name}"
    episodes = _lines(result.run_dir / "episodes.jsonl")
    ids = [line["id"] for line in episodes]
    assert ids and len(ids) == len(set(ids)), "an episode is in the journal twice"
    if not subject.capabilities.trains:
        assert result.steps == 0 and result.checkpoint is None, "it does not train, but reports that it did"
        return
    metrics = [line for line in _lines(result.run_dir / "metrics.jsonl") if line["type"] == "train"]
    assert [line["step"] for line in metrics] == [1, 2] and result.steps == 2, (
        "there is not one line per step"
    )
    for line in metrics:
        mine = [e for e in episodes if e["phase"] == "train" and e["step"] == line["step"]]
        assert len(mine) == GROUPS * MEMBERS, f"step {line['step']}: {len(mine)} episodes"
        assert sorted({e["member"] for e in mine}) == [*range(MEMBERS)], "members are not numbered from 0"
        mean = sum(e["reward"] for e in mine) / len(mine)
        assert abs(line["reward"] - mean) < 1e-3, "the step's reward is not the mean of its episodes'"
        assert line["tokens_sampled"] > 0
    assert result.before.get("episodes") == result.after.get("episodes") == 2, (
        "no validation before and after"
    )


def check_a_checkpoint_is_a_model(subject: BackboneSubject) -> None:
    """It is in the run folder, complete under its name, with its step; and another run can start from it."""
    if not subject.capabilities.trains:
        return
    result = subject.run()
    assert result.checkpoint is not None and result.checkpoint.is_dir(), (
        "there is no checkpoint of the last step"
    )
    state = json.loads((result.checkpoint / "ajet.json").read_text())
    assert state["step"] == 2, f"the last checkpoint is that of step {state['step']}"
    further = subject.run({"model": str(result.checkpoint), "train.steps": 1})
    assert further.steps == 1


def check_a_killed_run_goes_on_after_its_last_checkpoint(subject: BackboneSubject) -> None:
    """Each step of the history, and each episode of it, counts once."""
    if not subject.capabilities.trains:
        return
    result = subject.run({"train.keep_last": 3})
    last = result.checkpoint
    assert last is not None
    shutil.rmtree(last)  # as after a kill in the second step
    resumed = subject.run({"train.steps": 3}, resume=result.run_dir)
    assert resumed.run_dir == result.run_dir, "it resumed in another folder"
    metrics = [line for line in _lines(result.run_dir / "metrics.jsonl") if line["type"] == "train"]
    assert [line["step"] for line in metrics] == [1, 2, 3], "there is not one live line per step"
    episodes = [line for line in _lines(result.run_dir / "episodes.jsonl") if line["phase"] == "train"]
    ids = [line["id"] for line in episodes]
    assert len(ids) == len(set(ids)) == 3 * GROUPS * MEMBERS, "an episode counts twice, or is missing"


def check_deterministic_runs_are_equal(subject: BackboneSubject) -> None:
    """Two runs of one job have the same journal and the same losses, if the backbone declares that."""
    if not (subject.capabilities.trains and subject.capabilities.deterministic):
        return
    one, other = (subject.run({"run.deterministic": True}).run_dir for _ in range(2))
    for name in ("episodes.jsonl", "metrics.jsonl"):
        pair = [
            sorted(json.dumps(_timeless(line), sort_keys=True) for line in _lines(d / name))
            for d in (one, other)
        ]
        assert pair[0] == pair[1], f"two deterministic runs differ in {name}"


def _lines(path: Path) -> list[dict[str, Any]]:
    from ajet.rollout.recorder import live_lines

    assert path.is_file(), f"the run folder has no {path.name}"
    return live_lines(path)


def _timeless(value: Any) -> Any:
    """What a line holds, without what depends on the clock or the machine."""
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if not _CLOCKED.search(key)}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


_CLOCKED = re.compile("^started$|seconds|per_second|^memory")


BACKBONE_CHECKS: tuple[Callable[[BackboneSubject], None], ...] = (
    check_what_it_declares_is_honoured,
    check_what_it_does_not_declare_is_refused,
    check_the_run_folder_tells_what_happened,
    check_a_checkpoint_is_a_model,
    check_a_killed_run_goes_on_after_its_last_checkpoint,
    check_deterministic_runs_are_equal,
)
