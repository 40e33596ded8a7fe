"""A synchronous job in which everything goes wrong that may: it goes on, counts what failed, and ends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ajet_audit.files import Folder
from ajet_audit.steps import Audit
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, lines, run_folder, write_job

pytestmark = pytest.mark.models("calculator")

STEPS, TASKS, MEMBERS = 3, 2, 5

FLOW = """
import asyncio
import json
import os
import signal
from pathlib import Path

from ajet import GroupJudge, JudgeOutput, Logger, WorkflowOutput

HERE = Path(__file__).parent


def once(name):
    try:
        os.close(os.open(HERE / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def number():
    return next(n for n in range(10_000) if once(f"episode-{n}"))


async def run(task, tuner):
    n = number()
    client = tuner.as_openai_client()

    async def ask(text):
        answer = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], max_tokens=8
        )
        return answer.choices[0].message.content or ""

    if n == 1:
        await asyncio.sleep(3600)
    if n == 2:
        await ask("long " * 2000)
    first = await ask(task.query)
    if n % 5 == 4:
        raise RuntimeError("one in five")
    if n >= 15 and once("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    more = [await ask(f"{i}: {first}") for i in range(n % 3 * 4)]
    return WorkflowOutput(response=n)


class Whole(GroupJudge):
    name = "whole"

    async def score_group(self, task, episodes):
        assert len(episodes) == 5, "a group came incomplete"
        numbers = [e.output.response for e in episodes]
        ended = [n for n in numbers if n is not None]  # every other one is right, whichever failed
        rewards = [float(n is not None and (n >= 20 or ended.index(n) % 2 == 1)) for n in numbers]
        return [JudgeOutput(reward=reward) for reward in rewards]


class Kept(Logger):
    name = "kept"

    def _keep(self, run_dir, **line):
        with (run_dir / "kept.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\\n")

    def run_start(self, event):
        self._keep(event.run_dir, start=event.config["train"]["steps"], after=event.resumed_after)

    def episode_end(self, event):
        sampled = sum(int(line.mask.sum()) for line in event.timelines)
        self._keep(event.run_dir, id=event.id, query=event.task.query, reward=event.reward,
                   failure=event.failure, sampled=sampled)

    def log(self, run_dir, step, metrics):
        self._keep(run_dir, step=step)
"""


def test_failures_are_counted_and_a_killed_runners_episodes_run_elsewhere(machine: Machine) -> None:
    folder = machine.folder
    (folder / "flow.py").write_text(FLOW)
    (folder / "tasks.jsonl").write_text("".join(f'{{"query": "What is {i} + 2?"}}\n' for i in range(4)))
    job = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "flow.py:run",
        "judge": "flow.py:Whole",
        "model": "calculator",
        "rollout": {"group_size": MEMBERS, "timeout": "60s", "retries": 0, "concurrency": 6},
        "train": {
            "batch_size": TASKS,
            "mini_batches": 2,
            "steps": STEPS,
            "save_every": STEPS,
            "learning_rate": 1e-4,
        },
        "run": {"dir": "runs", "loggers": ["flow.py:Kept"]},
        "backbone": {
            "name": "verl",
            "verl": {"runners": 2, "trees": True, "actor_rollout_ref": {"rollout": {"max_model_len": 256}}},
        },
    }
    machine.ajet("run", str(write_job(folder, job)), seconds=4 * PATIENCE, TMPDIR=str(machine.ray))
    assert not [path for path in machine.ray.glob("*") if path.is_socket() or path.name.startswith("vllm-")]

    run = run_folder(folder)
    episodes = [line for line in lines(run / "episodes.jsonl") if line["type"] == "episode"]
    assert len({e["id"] for e in episodes}) == len(episodes) == STEPS * TASKS * MEMBERS
    failed = Counter(e["failure"] for e in episodes if e["failure"])
    assert failed["timeout"] >= 1 and failed["workflow:RuntimeError"] >= 1
    assert failed["context_overflow"] == 1
    assert failed.total() >= 7  # on a busy machine, others may take a minute too, and are late instead
    assert set(failed) == {"timeout", "context_overflow", "workflow:RuntimeError"}

    kept = lines(run / "kept.jsonl")
    assert kept[0] == {"start": STEPS, "after": None}
    assert [line["step"] for line in kept if "step" in line] == [1, 2, 3]
    told = {line["id"]: line for line in kept if "id" in line}
    assert told.keys() == {e["id"] for e in episodes}
    for e in episodes:
        line = told[e["id"]]
        assert (line["reward"], line["failure"]) == (e["reward"], e["failure"])
        assert "+ 2?" in line["query"] and (line["sampled"] > 0) == any("tokens" in c for c in e["calls"])

    steps = [line for line in lines(run / "metrics.jsonl") if line["type"] == "train"]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert sum(line.get("runners_lost", 0) for line in steps) == 1
    for line in steps:
        own = [e for e in episodes if e["step"] == line["step"]]
        judged = [e for e in own if e["failure"] is None]
        assert line["episodes"] == len(own) == TASKS * MEMBERS
        assert line["episodes_failed"] == len(own) - len(judged)
        assert abs(line["reward"] - sum(e["reward"] for e in judged) / len(judged)) < 1e-6
        sampled = sum(len(call["tokens"]["versions"]) > 0 for e in judged for call in e["calls"])
        assert sampled and line["tokens_trained"] + line["tokens_zero_advantage"] > 0
        assert line["optimizer_steps"] <= 2 and line["weight_version"] == line["step"]
        assert line["logprob_diff_max"] < 1e-3  # else vLLM's logprobs are not those of the rule
        assert line["logprob_diff_mean"] <= line["logprob_diff_max"]
        assert (line["logprob_diff_mean"] > 0) == (line["optimizer_steps"] > 0)
        assert ("tree_token_ratio" in line) == (line["optimizer_steps"] > 0)
    assert any(line.get("tree_token_ratio", 0) > 1.2 for line in steps)
    assert steps[-1]["optimizer_steps"] == steps[-1]["tokens_trained"] == 0  # all rewards are equal
    assert any(line["timelines_per_episode"] > 1 for line in steps)
    assert any(line["optimizer_steps"] == 2 for line in steps)
    assert (run / "checkpoints" / f"step_{STEPS:06d}").is_dir()
    assert Path(folder / "killed").exists()

    audit = Audit(Folder(run)).run()
    assert audit.faults == [] and audit.trained == sum(line["tokens_trained"] for line in steps)
    assert audit.excluded["failed"] and audit.notes, "verl's record has no token ids"
