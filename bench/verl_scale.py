"""Runs many episodes at once on the rollout side of the backbone verl, with actors that answer as slowly as vLLM.

    .venv-verl/bin/python bench/verl_scale.py                 # with the environment variables that `make test-verl` sets
    .venv-verl/bin/python bench/verl_scale.py --sizes 64,4000

Ray, the conductor, runners, recorder, verl's load balancer and verl's queue are the real ones; this process is in the place of
verl's trainer. An agent calls the model four times through the OpenAI SDK; each token takes 20 ms, and an answer has 150 on
average. Each number of concurrent episodes runs on a new cluster: one wave to warm up, then at least 512 episodes that are
measured. Figures are CPU time, so other programs on the machine disturb them little. `cpu_ms_per_call` is that of all
processes except the answering ones; `ratio` divides it by that of the first size. An error ends the program if an episode is
lost. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
import transfer_queue as tq

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "plugins" / "verl"))
from rollout_cluster import RolloutCluster, rollout_cluster

from ajet_verl.credit import POLL_SECONDS, credited
from ajet_verl.rows import PARTITION, READ, TOKENS

SIZES = (64, 1000, 4000)
MEMBERS, CALLS = 8, 4
ANSWER, SECONDS_A_TOKEN = 150, 0.020
MEASURED = 512
"""Least number of measured episodes."""
LIMIT = 1800.0
"""Seconds after which groups that have not ended count as lost."""
ANSWERING = "Answers"
"""The class of the actors in the place of vLLM's servers."""
FLOW = f"""
from ajet import WorkflowOutput


async def run(task, tuner):
    client = tuner.as_openai_client()
    messages = [{{"role": "user", "content": task.query}}]
    for turn in range({CALLS}):
        answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=600)
        text = answer.choices[0].message.content
        messages += [{{"role": "assistant", "content": text}}, {{"role": "user", "content": f"go on, {{turn}}"}}]
    return WorkflowOutput(response=text)


def judge(task, output):
    return len(output.response) % 7 / 7
"""


def main() -> None:
    """Measure each size in a process of its own, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of concurrent episodes")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.size:
        print(json.dumps(measure(options.size)))
        return
    found: dict[str, Any] = {}
    for size in options.sizes.split(","):
        command = [sys.executable, __file__, "--size", size]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures = json.loads(ran.stdout.strip().splitlines()[-1])
        first = next(iter(found.values()), figures)
        figures["ratio"] = round(figures["cpu_ms_per_call"] / first["cpu_ms_per_call"], 2)
        found[size] = figures
        print(json.dumps({size: figures}), flush=True)
    print(json.dumps({"verl_scale": found}))
    if any(figures["lost"] for figures in found.values()):
        sys.exit("episodes were lost")


def measure(size: int) -> dict[str, Any]:
    """The figures of ``size`` concurrent episodes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flow.py").write_text(FLOW)
        tasks = [json.dumps({"id": f"t{i}", "query": f"What is {i} + 2?"}) for i in range(64)]
        (folder / "tasks.jsonl").write_text("\n".join(tasks) + "\n")
        sections = {
            "task": {"reader": "tasks.jsonl"},
            "workflow": "flow.py:run",
            "judge": "flow.py:judge",
            "rollout": {"group_size": MEMBERS, "concurrency": size, "timeout": LIMIT},
            "train": {"batch_size": size // MEMBERS},
            "backbone": {"name": "verl", "verl": {"runners": 2}},
        }
        with rollout_cluster(folder, sections, servers=4, mean=ANSWER, seconds=SECONDS_A_TOKEN) as cluster:
            return measured(cluster, size)


def measured(cluster: RolloutCluster, size: int) -> dict[str, Any]:
    """Run the groups of a warm cluster, and then what the trainer does with their rows."""
    step(cluster, min(size, 256) // MEMBERS)
    groups = max(MEASURED, size) // MEMBERS
    memory = Memory()
    before, calls_before = cpu(), counts(cluster)
    began = time.monotonic()
    uids = cluster.start(groups)
    keys = cluster.wait(uids, LIMIT, poll=POLL_SECONDS)
    seconds = time.monotonic() - began
    after, calls_after = cpu(), counts(cluster)
    peak = memory.end()

    used = {kind: after[kind] - before.get(kind, 0.0) for kind in after if kind != ANSWERING}
    calls = calls_after[0] - calls_before[0]
    ended = ray.get(cluster.manager._conductor.ended.remote())
    members = [m for uid in uids if uid in ended for m in ended[uid].members]
    wanted = set(uids)
    rows = [key for key in keys if "_" in key and key.split("_")[0] in wanted]
    trainer = credit(cluster, rows, {key: keys[key] for key in rows})
    cluster.manager.learned(uids, 1)
    ray.get(cluster.recorder.tasks.remote())  # after the lines that it was sent
    lines = {line["id"] for line in cluster.journal()} & {m.id for m in members}
    planned = groups * MEMBERS
    complete = sum(m.failure is None and m.answered == CALLS for m in members)
    return {
        "episodes": planned,
        "lost": planned - min(complete, len(lines), len(rows)),
        "calls": calls,
        "seconds": round(seconds, 1),
        "cpu_ms_per_call": round(1000 * sum(used.values()) / calls, 2),
        "cpu_ms_per_episode": round(1000 * sum(used.values()) / planned, 1),
        "cpu_ms_per_call_by_process": {
            kind: round(1000 * used[kind] / calls, 3) for kind in sorted(used, key=lambda k: -used[k])
        },
        "peak_mib_of_a_process": dict(sorted(peak.items(), key=lambda item: -item[1])),
        "journal_kib_per_call": round(
            (cluster.run_dir / "episodes.jsonl").stat().st_size / calls_after[0] / 1024, 1
        ),
        "tokens_per_call": round((calls_after[1] - calls_before[1]) / calls),
        **trainer,
    }


def step(cluster: RolloutCluster, groups: int) -> None:
    """One step of so many groups, as a warm-up."""
    uids = cluster.start(groups)
    keys = cluster.wait(uids, LIMIT)
    cluster.manager.learned(uids, 1)
    tq.kv_clear(keys=list(keys), partition_id=PARTITION)


def credit(cluster: RolloutCluster, rows: Sequence[str], tags: dict[str, Any]) -> dict[str, Any]:
    """What verl's trainer does with the rows of a step before the workers: fetch, and compute the credit."""
    batch = tq.KVBatchMeta(keys=list(rows), tags=[tags[key] for key in rows], partition_id=PARTITION)
    job, found = cluster.job, {}
    for name, with_tokens in (("credit", False), ("credit_for_trees", True)):
        began = time.process_time()
        credited(batch, job, 1, 1, with_tokens=with_tokens)
        found[f"{name}_cpu_ms_per_row"] = round(1000 * (time.process_time() - began) / len(rows), 2)
    for name, fields in (("row", None), ("credit", READ), ("credit_for_trees", (*READ, *TOKENS))):
        selected = {"select_fields": list(fields)} if fields else {}
        data = tq.kv_batch_get(keys=batch.keys, partition_id=PARTITION, **selected)
        found[f"{name}_kib_per_row"] = round(size_of(data) / len(rows) / 1024, 1)
    return found


def size_of(data: Any) -> int:
    """Bytes of the tensors and texts of rows."""
    total = 0
    for name in data.keys():  # noqa: SIM118  a TensorDict
        values = data[name]
        for value in values.unbind() if hasattr(values, "unbind") else values:
            total += value.nbytes if hasattr(value, "nbytes") else len(str(getattr(value, "data", value)))
    return total


def counts(cluster: RolloutCluster) -> tuple[int, int]:
    """Calls that all servers have answered, and their tokens."""
    found = ray.get([server.counts.remote() for server in cluster.servers])
    return sum(calls for calls, _ in found), sum(tokens for _, tokens in found)


def processes() -> list[tuple[str, psutil.Process]]:
    """This process and all that it has started, each with its kind."""
    here = psutil.Process()
    found = [("trainer (this process)", here)]
    for process in here.children(recursive=True):
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        first = line[0] if line else ""
        if first.startswith("ray::"):
            found.append((first[5:].split(".")[0].split(" ")[0], process))
        else:
            found.append(("Ray", process))
    return found


def cpu() -> dict[str, float]:
    """CPU seconds so far, by the kind of process."""
    used: defaultdict[str, float] = defaultdict(float)
    for kind, process in processes():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        used[kind] += times.user + times.system
    return used


class Memory:
    """Samples the memory of all processes until `end`."""

    def __init__(self) -> None:
        self._peak: defaultdict[str, float] = defaultdict(float)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(2.0):
            for kind, process in processes():
                try:
                    size = process.memory_info().rss / 2**20
                except psutil.Error:
                    continue
                self._peak[kind] = max(self._peak[kind], size)

    def end(self) -> dict[str, int]:
        """MiB of the largest process of each kind; RSS, so shared pages are counted in each."""
        self._ended.set()
        self._thread.join()
        return {kind: round(size) for kind, size in self._peak.items()}


if __name__ == "__main__":
    main()
