"""How many calls a second one runner of the backbone verl answers, and what each adds to the journal and to verl's queue; then, for
each of ``--sizes``, many episodes at once on the rollout side, with actors that answer as slowly as vLLM.

    .venv-verl/bin/python bench/verl_scale.py                 # with the environment variables that `make test-verl` sets
    .venv-verl/bin/python bench/verl_scale.py --sizes 64,1000,4000

The runner is one process with its episodes and its gateway, without Ray and without a model: each answer is ready. The agents are
another process, which calls the gateway over HTTP, as sandboxes do. `calls_per_second` is what the runner answers with one core, as its
Python is one thread at a time: calls by its CPU time, with rendering, journal lines and rows. Bytes are of all that a call adds, its
prompt's new tokens too. `recorder_mb_per_second` is what the journal's only writer writes with one core, without Ray;
`resume_mb_per_second`, what a resumed run reads of it.

With sizes, Ray, the conductor, runners, recorder, verl's load balancer and verl's queue are the real ones; this process is in the place
of verl's trainer. An agent calls the model four times through the OpenAI SDK; each token takes 20 ms, and an answer has 150 on
average. Each number of concurrent episodes runs on a new cluster: one wave to warm up, then at least 512 episodes that are
measured. Figures are CPU time, so other programs on the machine disturb them little. `cpu_ms_per_call` is that of all
processes except the answering ones; `ratio` divides it by that of the first size. An error ends the program if an episode is
lost. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gateway
import psutil
import ray
import transfer_queue as tq

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "plugins" / "verl"))
from ajet import Task
from ajet.job.layers import job_layers
from ajet.job.prepare import prepare
from ajet.learning.rollouts import plan_group
from ajet.rollout.journal import JournalLine
from ajet.rollout.recorder import JOURNAL, RunRecorder
from ajet.runs.runtime import open_runtime, training_policy
from ajet_local.starter.calculator import Calculator
from ajet_verl.dataset import PlannedGroup
from ajet_verl.rows import PARTITION, READ, TOKENS, GroupRows
from ajet_verl.runner import Unit, Units

if TYPE_CHECKING:
    from rollout_cluster import RolloutCluster

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

OUTSIDE = """
import asyncio, json, httpx


async def episode(reader, writer):
    given = json.loads(await reader.readline())
    messages, headers = [], {"authorization": f"Bearer {given['key']}"}
    async with httpx.AsyncClient(headers=headers, timeout=600) as client:
        for turn in range(given["calls"]):
            messages.append({"role": "user", "content": f"{given['query']} {turn} {given['between'] if turn else ''}"})
            answer = await client.post(f"{given['url']}/chat/completions", json={"model": "m", "messages": messages})
            answer.raise_for_status()
            messages.append(answer.json()["choices"][0]["message"])
    writer.write(b"done\\n")
    await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(episode, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
"""
"""The process of the agents outside: makes the calls of an episode for each connection."""
THROUGH_GATEWAY = """
import asyncio
import json

from ajet import WorkflowOutput


async def run(task, tuner):
    url, key = tuner.as_base_url()
    reader, writer = await asyncio.open_connection("127.0.0.1", task.metadata["port"])
    writer.write(json.dumps({**task.metadata, "url": url, "key": key, "query": task.query}).encode() + b"\\n")
    try:
        assert await reader.readline()
    finally:
        writer.close()
    return WorkflowOutput(response="")


def judge(task, output):
    return id(output) % 7 / 7
"""

WORDS = "the sum is "


@dataclass(frozen=True, slots=True)
class Agent:
    """What an episode does: its calls, the tokens of an answer, and about how many come before each further call."""

    calls: int
    answer: int
    between: int
    groups: int
    """Groups of `MEMBERS` that are measured."""


AGENTS = {
    "short": Agent(calls=4, answer=150, between=10, groups=24),
    "tools": Agent(calls=8, answer=500, between=3000, groups=3),
}


def main() -> None:
    """Measure one runner, then each size in a process of its own, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--sizes", default="", help="numbers of concurrent episodes, for example 64,1000,4000"
    )
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.size:
        print(json.dumps(measure(options.size)))
        return
    alone: dict[str, Any] = {}
    for name, agent in AGENTS.items():
        alone[name] = runner_alone(agent)
        print(json.dumps({name: alone[name]}), flush=True)
    found: dict[str, Any] = {}
    for size in filter(None, options.sizes.split(",")):
        command = [sys.executable, __file__, "--size", size]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures = json.loads(ran.stdout.strip().splitlines()[-1])
        first = next(iter(found.values()), figures)
        figures["ratio"] = round(figures["cpu_ms_per_call"] / first["cpu_ms_per_call"], 2)
        found[size] = figures
        print(json.dumps({size: figures}), flush=True)
    print(json.dumps({"verl_runner": alone, **({"verl_scale": found} if found else {})}))
    if any(figures["lost"] for figures in found.values()):
        sys.exit("episodes were lost")


def runner_alone(agent: Agent) -> dict[str, Any]:
    """The figures of one runner whose agents are another process."""
    with tempfile.TemporaryDirectory() as name, agents_outside() as port:
        folder = Path(name)
        (folder / "flow.py").write_text(THROUGH_GATEWAY)
        (folder / "tasks.jsonl").write_text(json.dumps({"id": "t", "query": "What is 1 + 2?"}) + "\n")
        tokenizer = Calculator().tokenizer(0)[0]
        repeated = agent.between // len(tokenizer.encode(WORDS, add_special_tokens=False))
        given = {"port": port, "calls": agent.calls, "between": WORDS * repeated}
        task = Task("t", "What is 1 + 2?", metadata=given)
        (folder / "job.yaml").write_text(
            json.dumps(
                {
                    "task": {"reader": "tasks.jsonl"},
                    "model": "starter",
                    "workflow": "flow.py:run",
                    "judge": "flow.py:judge",
                    "backbone": {"name": "verl"},
                }
            )
        )
        job = prepare(job_layers(folder / "job.yaml"))
        written = Written(RunRecorder(folder / "run"))
        engine = gateway.AtOnce(tokenizer, agent.answer)

        async def groups(units: Units, count: int, step: int) -> None:
            seed = job.config.run.seed
            planned = [PlannedGroup(step, n, n * MEMBERS, task) for n in range(count)]
            plans = [tuple(plan_group(task, step, n, MEMBERS, seed)) for n in range(count)]
            units_of_step = [
                Unit(f"u{step}-{n}", plans[n], training_policy(job), "train", planned[n])
                for n in range(count)
            ]
            ended = await asyncio.gather(*(units.run(unit, count * MEMBERS) for unit in units_of_step))
            failures = [m.error for unit in ended if unit for m in unit.members if m.failure]
            if failures:
                sys.exit(f"{len(failures)} episodes failed: {failures[0]}")

        async def whole() -> float:
            async with open_runtime(job, engine=engine) as runtime:
                units = Units(
                    runtime,
                    row_limit=float("inf"),
                    excused=lambda: 0.0,
                    let_go=lambda episode: None,
                    hold=written.hold,
                    put=written.put,
                )
                await groups(units, 1, 1)  # fills caches
                written.begin()
                began = time.process_time()
                await groups(units, agent.groups, 2)
                return time.process_time() - began - written.seconds

        seconds = asyncio.run(whole())
        began = time.process_time()
        RunRecorder(folder / "run")  # as a resumed run, which reads the whole journal
        reading = time.process_time() - began
        size = (folder / "run" / JOURNAL).stat().st_size
        calls = agent.groups * MEMBERS * agent.calls
        return {
            **asdict(agent),
            "calls_per_second": round(calls / seconds),
            "cpu_ms_per_call": round(1000 * seconds / calls, 2),
            "new_tokens_per_call": round(written.tokens / calls),
            "journal_bytes_per_call": round(written.lines / calls),
            "queue_bytes_per_call": round(written.rows / calls),
            "recorder_cpu_ms_per_call": round(1000 * written.seconds / calls, 3),
            "recorder_mb_per_second": round(written.lines / written.seconds / 1e6),
            "resume_mb_per_second": round(size / reading / 1e6),
        }


class Written:
    """What a runner sends to the recorder and to verl's queue: counts it, and writes the journal."""

    def __init__(self, recorder: RunRecorder) -> None:
        self._recorder = recorder
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self.tokens = self.lines = self.rows = 0
        self.seconds = 0.0
        """CPU seconds of the recorder."""

    async def hold(self, unit: str, lines: Sequence[JournalLine]) -> None:
        """The lines of a group, as `ajet_verl.recorder.Recorder.write` writes them."""
        journal = self._recorder.dir / JOURNAL
        before, began = journal.stat().st_size, time.thread_time()
        for line in lines:
            self._recorder.line(line, 1)
        self.seconds += time.thread_time() - began
        self.lines += journal.stat().st_size - before

    async def put(self, rows: GroupRows, step: int) -> None:
        """The rows of a group."""
        self.tokens += sum(len(fields["input_ids"]) for fields in rows.fields)
        self.rows += sum(bytes_of(value) for fields in rows.fields for value in fields.values())


@contextmanager
def agents_outside() -> Iterator[int]:
    """The port of a process that runs the agents of episodes."""
    with subprocess.Popen([sys.executable, "-c", OUTSIDE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def measure(size: int) -> dict[str, Any]:
    """The figures of ``size`` concurrent episodes."""
    from rollout_cluster import rollout_cluster

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
    from ajet_verl.credit import POLL_SECONDS

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
    from ajet_verl.credit import credited

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
            total += bytes_of(value)
    return total


def bytes_of(value: Any) -> int:
    """Bytes of a tensor or a text."""
    return value.nbytes if hasattr(value, "nbytes") else len(str(getattr(value, "data", value)))


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
