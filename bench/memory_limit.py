"""Whether `memory_limit` holds: jobs with short and with long prompts on a CPU, each under several limits.

    python bench/memory_limit.py --limits 4GiB 5GiB 7GiB --steps 20
    make bench-memory-limit SAVE=memory_limit

The short job has the shape of a calculator agent: worked examples that all prompts share, two calls an episode. The long one has
prompts of 400 to 700 tokens that share little, and answers of up to 64. All text is made here. The last line is one JSON object: for
each job and limit the peak of resident memory of the process and its children, in GiB, or the line with which the job was refused. Exit
code 1 if a peak is above its limit, or a job fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ajet_local.demand import parse_size

GiB = 1 << 30
AGENT = '''
from openai import AsyncOpenAI

client = AsyncOpenAI(api_key="unset")
EXAMPLES = [
    {"role": "system", "content": "You solve problems with a calculator. Write CALC(expression)."},
    {"role": "user", "content": "A jar holds 310 beans and gets 25 more. How many beans are in it?"},
    {"role": "assistant", "content": "CALC(310+25)"},
    {"role": "user", "content": "335\\nNow write only the answer."},
    {"role": "assistant", "content": "335"},
    {"role": "user", "content": "Of 90 seats, 41 are taken. How many are free?"},
    {"role": "assistant", "content": "CALC(90-41)"},
    {"role": "user", "content": "49\\nNow write only the answer."},
    {"role": "assistant", "content": "49"},
]


async def said(chat, most):
    answer = await client.chat.completions.create(model="any", messages=chat, max_tokens=most)
    return answer.choices[0].message.content or ""


async def short(task):
    chat = [*EXAMPLES, {"role": "user", "content": task.query}]
    first = await said(chat, 24)
    chat += [{"role": "assistant", "content": first}, {"role": "user", "content": "42\\nNow write only the answer."}]
    return await said(chat, 24)


async def long(task):
    return await said([{"role": "user", "content": task.query}], 64)


def judge(task, output):
    """Noise: it lets every group have credit, and this measures memory, not learning."""
    return float(len(output.response or "") % 2)
'''
NOUNS = [
    "price",
    "route",
    "seat",
    "parcel",
    "invoice",
    "garden",
    "window",
    "ticket",
    "kernel",
    "signal",
    "camera",
    "border",
]
VERBS = ["find", "count", "send", "close", "rename", "order", "split", "measure", "archive", "compare"]


def question(kind: str, rng: random.Random) -> str:
    """A task's text: a word problem of 15 to 40 tokens, or a list of functions and a request, of 400 to 700 in all."""
    noun, verb = rng.choice(NOUNS), rng.choice(VERBS)
    if kind == "short":
        more = f" from the {rng.choice(NOUNS)} of day {rng.randint(1, 99)}" * rng.randint(0, 2)
        return f"There are {rng.randint(100, 999)} {noun}s{more}, and {rng.randint(10, 99)} are added. How many {noun}s are there?"
    functions = [
        f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}(code: int, {rng.choice(NOUNS)}: str = '{rng.randint(100, 9999)}') "
        f"{rng.choice(VERBS)}s every {rng.choice(NOUNS)} of a {rng.choice(NOUNS)}."
        for _ in range(rng.randint(12, 20))
    ]
    return "\n".join(
        [*functions, f"Write the call that would {verb} the {noun} with code {rng.randint(10, 9999)}."]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kinds", nargs="+", default=["short", "long"], choices=["short", "long"])
    parser.add_argument("--limits", nargs="+", default=["4GiB", "5GiB", "7GiB"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for kind in options.kinds:
        for limit in options.limits:
            found[f"{kind} {limit}"] = result = measured(kind, limit, options)
            print(f"{kind} prompts, limit {limit}: {json.dumps(result)}", flush=True)
    kept = all(r["kept"] for r in found.values())
    print(json.dumps({"model": options.model, "steps": options.steps, "kept": kept, "jobs": found}))
    sys.exit(0 if kept else 1)


def measured(kind: str, limit: str, options: argparse.Namespace) -> dict[str, Any]:
    """One job: its peak in GiB, its seconds, what the plan said, and whether it kept to the limit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = random.Random(0)
        tasks = (
            {"id": f"{kind}-{i}", "query": question(kind, rng)}
            for i in range(options.batch_size * options.steps)
        )
        (folder / "agent.py").write_text(AGENT)
        (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
        job = {
            "workflow": f"agent.py:{kind}",
            "judge": "agent.py:judge",
            "model": options.model,
            "task": {"reader": "tasks.jsonl"},
            "rollout": {"group_size": 8, "concurrency": 64},
            "train": {
                "steps": options.steps,
                "batch_size": options.batch_size,
                "learning_rate": 1e-6,
                "save_every": 1000,
            },
            "backbone": {"local": {"threads": 1, "memory_limit": limit}},
            "run": {"dir": "runs"},
        }
        (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        begun = time.monotonic()
        with (folder / "out.txt").open("w") as out:
            command = [sys.executable, "-m", "ajet", "run", "job.yaml"]
            process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
            peak = 0
            while process.poll() is None:
                peak = max(peak, resident(process.pid))
                time.sleep(0.05)
        lines = (folder / "out.txt").read_text().splitlines()
    plan = next((line.strip() for line in lines if "memory: " in line), "")
    refused = next((line.strip() for line in lines if "the job needs about" in line), "")
    result = {"peak_gib": round(peak / GiB, 2), "seconds": round(time.monotonic() - begun), "plan": plan}
    if refused:
        return result | {"refused": refused, "kept": peak <= parse_size(limit)}
    if process.returncode:
        print("\n".join(lines[-20:]), flush=True)
    return result | {"kept": process.returncode == 0 and peak <= parse_size(limit)}


def resident(root: int) -> int:
    """Bytes of resident memory of a process and all its children, now."""
    parents, sizes = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            sizes[int(folder.name)] = int((folder / "statm").read_text().split()[1]) * os.sysconf(
                "SC_PAGE_SIZE"
            )
        except (OSError, IndexError):  # it has ended
            continue
    tree = {root}
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(sizes.get(process, 0) for process in tree)


if __name__ == "__main__":
    main()
