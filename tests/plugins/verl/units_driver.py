"""Run by test_lost_units.py: groups whose runner is killed, cancelled groups, and a conductor that resumes."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from rollout_cluster import RolloutCluster, rollout_cluster

from ajet_verl.rows import PARTITION

MEMBERS = 4
FLOW = """
import asyncio
import os
import signal
from pathlib import Path

from ajet import GroupJudge, JudgeOutput, WorkflowOutput
from ajet.capture.session import current_session

HERE = Path(__file__).parent


async def run(task, tuner):
    name = current_session.get().episode
    client = tuner.as_openai_client()

    async def ask(text):
        messages = [{"role": "user", "content": text}]
        answer = await client.chat.completions.create(model="m", messages=messages)
        return answer.choices[0].message.content or ""

    text = await ask(task.query)
    if task.id == "waits":
        (HERE / f"waits-{os.getpid()}").touch()
        await asyncio.sleep(3600)
    if task.id == "kills" and name.endswith("/1") and not (HERE / "killed").exists():
        while not (HERE / "kill").exists():
            await asyncio.sleep(0.05)
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if name.endswith("/2"):
        raise RuntimeError("the third member always fails")
    return WorkflowOutput(response=text)


class Whole(GroupJudge):
    name = "whole"

    async def score_group(self, task, episodes):
        assert len(episodes) == (1 if task.id.startswith("v") else 4)
        assert [e.member for e in episodes if e.failure] == [e.member for e in episodes if e.member == 2]
        return [JudgeOutput(reward=e.member / 4) for e in episodes]
"""
ORDER = ["one", "two", "kills", "three", "four", "five", "waits", "six", "seven", "eight"]


def main() -> None:
    """Print what the test asserts, as JSON."""
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(run(Path(name))))


def run(folder: Path) -> dict[str, Any]:
    """What was found in each part."""
    (folder / "flow.py").write_text(FLOW)
    for name, ids in (("tasks", ORDER), ("validation", ["v1", "v2", "v3"])):
        lines = [json.dumps({"id": task, "query": f"What is {i} + 2?"}) for i, task in enumerate(ids)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    sections = {
        "task": {"reader": "tasks.jsonl", "validation": "validation.jsonl"},
        "workflow": "flow.py:run",
        "judge": "flow.py:Whole",
        "rollout": {"group_size": MEMBERS, "concurrency": 10, "retries": 0, "timeout": "300s"},
        "train": {"batch_size": len(ORDER), "asynchronous": True, "max_staleness": 1},
        "backbone": {"name": "verl", "verl": {"runners": 2}},
    }
    with rollout_cluster(folder, sections) as cluster:
        uids = dict(zip(_order(cluster), cluster.start(len(ORDER)), strict=True))
        found = {"killed": killed(cluster, folder, uids)}
        found["cancelled"] = cancelled(cluster, folder, uids)
        found["resumed"] = resumed(cluster, uids)
        found["validation"] = cluster.manager.validate(2)
    return found


def _order(cluster: RolloutCluster) -> list[str]:
    from ajet_verl.recorder import from_text

    return [from_text(cluster.groups[i]["planned_group"]).task.id for i in range(len(ORDER))]


def killed(cluster: RolloutCluster, folder: Path, uids: dict[str, str]) -> dict[str, Any]:
    """A runner is killed in a group, of which the queue has a row that the second run does not make."""
    _until(lambda: cluster.queue()[uids["kills"]]["status"] == "running")
    stale = f"{uids['kills']}_3_7"
    tq.kv_put(key=stale, partition_id=PARTITION, tag={"status": "success"})
    (folder / "kill").touch()
    keys = cluster.wait([uid for task, uid in uids.items() if task != "waits"], 240)
    return {
        "stale": stale in keys,
        "rows": Counter(key.split("_")[0] for key in keys if "_" in key),
        "status": {task: keys[uid]["status"] for task, uid in uids.items()},
        "lines": len(cluster.journal()),
        "messages": cluster.messages(),
    }


def cancelled(cluster: RolloutCluster, folder: Path, uids: dict[str, str]) -> dict[str, Any]:
    """One group is cancelled while it runs, and one after it has ended."""
    conductor = cluster.manager._conductor
    _until(lambda: any(folder.glob("waits-*")))
    began = time.monotonic()
    ray.get(conductor.cancel.remote([uids["waits"], uids["eight"]]))
    ended = ray.get(conductor.ended.remote())
    keys = cluster.queue()
    return {
        "seconds": time.monotonic() - began,
        "left": [key for key in keys if key.split("_")[0] in (uids["waits"], uids["eight"])],
        "ended": sorted(task for task, uid in uids.items() if uid in ended),
        "rewards": [member.reward for member in ended[uids["one"]].members],
    }


def resumed(cluster: RolloutCluster, uids: dict[str, str]) -> dict[str, Any]:
    """A step learns from two groups, the conductor is replaced by one that has a checkpoint, and a step learns from the rest."""
    first = [uids["one"], uids["kills"]]
    metrics = [cluster.manager.learned(first, 1)]
    cluster.manager.keep(str(cluster.checkpoint))
    cluster.restart()
    rest = [uid for task, uid in uids.items() if task not in ("one", "kills", "waits", "eight")]
    metrics.append(cluster.manager.learned(rest, 2))
    ray.get(cluster.recorder.tasks.remote())  # after what it was sent before
    lines = cluster.journal()
    return {
        "episodes": [found["episodes"] for found in metrics],
        "lost": [found.get("runners_lost", 0) for found in metrics],
        "steps": Counter(str(line["step"]) for line in lines),
        "ids": len({line["id"] for line in lines}),
        "failed": Counter(line["failure"] for line in lines if line["failure"]),
    }


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


if __name__ == "__main__":
    main()
