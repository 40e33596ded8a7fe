"""Measures online training: simulated users teach an agent, some of them maliciously for a while.

    SEED=0 .venv/bin/python bench/online.py

`ajet online job.yaml` serves the starter, which mostly adds where it should subtract. Simulated users ask for small sums and
differences, and like answers that end with the right number; one rating in ten is wrong. No judge of the job knows what they
like: the job's validation tasks, the regression set, are sums only, which the starter can do from the beginning. Phases:

1. Users who do not rate measure acceptance, here and of a frozen control (`ajet serve`); also the regression set.
2. Users rate for ``--minutes``; then acceptance of both is measured again.
3. Poison: all ratings are inverted until two updates have learned from them. Then users rate truthfully for ``--recovery``
   minutes, and acceptance is measured again.
4. Without training, 16 clients at once ask `ajet online explore` and `ajet serve` in turns for replies of 64 tokens: ratios of
   latencies. The model is one of the starter's size with random weights, which do not end a reply early. A reply waits for the
   store while the engine takes its next step, so short replies pay relatively more: `latency_p50_ratio_short`.
5. A service whose model answers after 0.1 s, as a hosted one, is used by 8 users at once, with and without shadow runs of every
   request: ratios of latencies.

Takes about 16 minutes on two idle cores. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from ajet_online import Runner, SamplingRate
from ajet_online.store import TraceStore
from ajet_online.versions import Version, Versions

KEY = "bench-key-0123456789"
USERS, THINKING = 8, (0.2, 0.6)
"""How many users rate at once, and the bounds of the seconds between their requests."""
WRONG, DIFFERENCES = 0.1, 0.7
"""Shares of wrong ratings, and of requests for a difference."""
ASKED, REGRESSION = 400, 200
"""Requests of a measurement."""
CLIENTS, BURST, BURSTS = 16, 5, 9
"""Of the comparison of latencies: each client sends so many requests in a burst."""
HOSTED_SECONDS = 0.1
"""After which the hosted model of phase 5 answers."""
LONG = 64
"""Tokens of the replies that are timed."""
JOB: dict[str, Any] = {
    "model": "starter",
    "judge": "judge.py:judge",
    "task": {"validation": {"type": "jsonl", "path": "sums.jsonl"}},
    "rollout": {"sampling": {"max_tokens": 16}},
    "train": {"batch_size": 64, "learning_rate": 1e-4, "warmup_steps": 4},
    "eval": {"sampling": {"max_tokens": 16, "temperature": 0}},
    "backbone": {"name": "local", "local": {"threads": 1}},
    "plugins": {"online": {"rollback": {"ratings": 64}}},
}
JUDGE = """
import re
def judge(task, output):
    return float(re.findall(r"-?\\d+", output.response or "")[-1:] == [task.metadata["answer"]])
"""


@dataclass(frozen=True)
class Question:
    text: str
    answer: str

    def likes(self, reply: str) -> bool:
        """The hidden preference of the users."""
        return re.findall(r"-?\d+", reply)[-1:] == [self.answer]


def question(draw: random.Random, differences: float = DIFFERENCES) -> Question:
    if draw.random() < differences:
        a = draw.randint(1, 9)
        b = draw.randint(0, a)
        return Question(f"What is {a} - {b}?", str(a - b))
    a = draw.randint(1, 8)
    b = draw.randint(1, 9 - a)
    return Question(f"What is {a} + {b}?", str(a + b))


class Client:
    """One connection to a server."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=120, trust_env=False
        )

    def ask(self, asked: Question, tokens: int = 16) -> tuple[str, str]:
        """The id and the text of a reply of at most so many tokens."""
        messages = [{"role": "user", "content": asked.text}]
        found = self._http.post(
            "/v1/chat/completions", json={"model": "m", "messages": messages, "max_tokens": tokens}
        )
        found.raise_for_status()
        reply = found.json()
        return reply["id"], reply["choices"][0]["message"]["content"]

    def rate(self, name: str, reward: float) -> None:
        body = {"msg_ids": [name], "reward": reward, "task_id": name, "run_id": "0"}
        self._http.post("/feedback", json=body).raise_for_status()


@dataclass
class Users:
    """Users who ask and rate until the block ends."""

    url: str
    seed: int
    inverted: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def rating(self) -> Iterator[None]:
        over = threading.Event()
        threads = [threading.Thread(target=self._user, args=(n, over)) for n in range(USERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _user(self, number: int, over: threading.Event) -> None:
        draw, client = random.Random(f"{self.seed}/{number}/{time.time_ns()}"), Client(self.url)
        while not over.wait(draw.uniform(*THINKING)):
            asked = question(draw)
            name, reply = client.ask(asked)
            likes = asked.likes(reply) != (draw.random() < WRONG)
            client.rate(name, float(likes != self.inverted.is_set()))


def accepted(url: str, seed: int, count: int = ASKED, differences: float = DIFFERENCES) -> float:
    """The share of replies that users like, measured without rating them. The requests are the same for a seed."""
    draw = random.Random(seed)
    asked = [question(draw, differences) for _ in range(count)]
    liked: list[bool] = []

    def work(part: Sequence[Question]) -> None:
        client = Client(url)
        for one in part:
            liked.append(one.likes(client.ask(one)[1]))

    threads = [threading.Thread(target=work, args=(asked[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(liked) == count
    return sum(liked) / count


def error_of(difference: tuple[float, float], count: int = ASKED) -> float:
    """The standard error of a difference of two shares."""
    return math.sqrt(sum(max(p * (1 - p), 1 / count) / count for p in difference))


@contextmanager
def program(*arguments: str, folder: Path, port: int) -> Iterator[str]:
    """`ajet …` with a server at this port, until the block ends: its URL."""
    url = f"http://127.0.0.1:{port}"
    log = (folder / f"{arguments[0]}-{port}.log").open("w")
    command = [sys.executable, "-m", "ajet", *arguments, "--port", str(port), "--key", KEY]
    process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 900  # the first run builds the starter
        while True:
            try:
                httpx.get(f"{url}/health", trust_env=False)
                break
            except httpx.HTTPError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{' '.join(command)} failed; see {log.name}") from None
                time.sleep(0.2)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for_updates(versions: Versions, count: int) -> None:
    """Until so many more versions have been trained."""
    before = len(versions.all())
    while len(versions.all()) < before + count:
        time.sleep(0.2)


def learned(folder: Path, seed: int, minutes: float, recovery: float) -> dict[str, Any]:
    """Phases 1 to 3."""
    found: dict[str, Any] = {}
    with (
        program("serve", "starter", folder=folder, port=free_port()) as control,
        program("online", "job.yaml", "--set", f"run.seed={seed}", folder=folder, port=free_port()) as url,
    ):
        store = TraceStore.open(str(folder / "traces.db"))
        versions = Versions(store)
        users = Users(url, seed)
        found["acceptance_before"] = accepted(url, seed)
        found["control_before"] = accepted(control, seed)
        found["regression_before"] = accepted(url, seed, REGRESSION, 0.0)
        with users.rating():
            time.sleep(60 * minutes)
        wait_until_idle(store)
        found["acceptance_after"] = accepted(url, seed)
        found["control_after"] = accepted(control, seed)
        found["regression_after"] = accepted(url, seed, REGRESSION, 0.0)
        found["updates"] = len(versions.all()) - 1
        with users.rating():
            users.inverted.set()
            wait_for_updates(versions, 2)
            users.inverted.clear()
            found["acceptance_poisoned"] = accepted(url, seed)
            time.sleep(60 * recovery)
        wait_until_idle(store)
        found["acceptance_recovered"] = accepted(url, seed)
        known = versions.all()
        found |= about(known)
        store.close()
    rise = found["acceptance_after"] - found["acceptance_before"]
    found["standard_errors"] = rise / error_of((found["acceptance_before"], found["acceptance_after"]))
    lost = found["acceptance_after"] - found["acceptance_recovered"]
    found["recovered_after_poison"] = lost < 2 * error_of(
        (found["acceptance_after"], found["acceptance_recovered"])
    )
    moved = abs(found["control_after"] - found["control_before"])
    found["control_standard_errors"] = moved / error_of((found["control_before"], found["control_after"]))
    return found


def wait_until_idle(store: TraceStore) -> None:
    """Until no update is possible with what is rated, and the explorer serves the last version."""
    versions = Versions(store)
    while store.waiting(by_run=True) >= JOB["train"]["batch_size"] and (
        (serving := versions.serving())
        and versions.count_ratings(serving.number) >= JOB["plugins"]["online"]["rollback"]["ratings"]
    ):
        time.sleep(0.5)
    time.sleep(10)


def about(known: Sequence[Version]) -> dict[str, Any]:
    """What the versions say of the run."""
    stages = [version.stage.name.lower() for version in known[1:]]
    staleness = [version.report["staleness"] for version in known[1:] if "staleness" in version.report]
    return {
        "staleness": statistics.fmean(staleness),
        "rejected": stages.count("rejected"),
        "withdrawn": stages.count("withdrawn"),
    }


def latencies(folder: Path, seed: int) -> dict[str, Any]:
    """Phase 4."""
    model = untrained(folder / "untrained")
    found = compared(folder, str(model), seed, LONG)
    short = compared(folder, "starter", seed, 16)
    return {**found, "latency_p50_ratio_short": short["latency_p50_ratio"]}


def untrained(folder: Path) -> Path:
    """The starter's architecture and tokenizer, with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from ajet.interfaces.progress import Silent
    from ajet.job.models import model_source

    source = model_source("starter", 0, Silent())
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def compared(folder: Path, model: str, seed: int, tokens: int) -> dict[str, Any]:
    """Bursts at `ajet serve` and `ajet online explore` in turns."""
    explore = ("online", "explore", model, "--store", f"latency-{tokens}.db")
    taken: dict[str, list[list[float]]] = {"serve": [], "explore": []}
    rates: list[float] = []
    with (
        program("serve", model, folder=folder, port=free_port()) as plain,
        program(*explore, folder=folder, port=free_port()) as recording,
    ):
        for number in range(-2, 2 * BURSTS):
            name, url = (("serve", plain), ("explore", recording))[number % 2]
            seconds, found = burst(url, seed, tokens)
            if number >= 0:
                taken[name].append(found)
                rates += [CLIENTS * BURST / seconds] if name == "explore" else []

    def ratio(percentile: int) -> float:
        """The median over pairs of bursts, so that a moment of other load counts once."""
        p = {
            name: [statistics.quantiles(burst, n=100)[percentile - 1] for burst in bursts]
            for name, bursts in taken.items()
        }
        return statistics.median(e / s for e, s in zip(p["explore"], p["serve"], strict=True))

    return {
        "latency_p50_ratio": ratio(50),
        "latency_p99_ratio": ratio(99),
        "calls_per_second": statistics.median(rates),
    }


def burst(url: str, seed: int, tokens: int) -> tuple[float, list[float]]:
    """Requests of all clients at once: seconds in all, and of each."""
    found: list[float] = []

    def work(number: int) -> None:
        draw, client = random.Random(f"{seed}/{number}"), Client(url)
        for _ in range(BURST):
            started = time.perf_counter()
            client.ask(question(draw), tokens)
            found.append(time.perf_counter() - started)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(CLIENTS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started, found


def shadowed() -> dict[str, Any]:
    """Phase 5."""
    with hosted() as url:
        runner = Runner(
            explorer=url,
            key=KEY,
            select=SamplingRate(1.0),
            reward=lambda run: 1.0,
            queue=64,
        )
        ask = runner.watch(lambda task: shadow_agent(task, url))
        found: dict[bool, list[list[float]]] = {False: [], True: []}
        for number in range(-2, 2 * BURSTS):
            is_on = bool(number % 2)
            if is_on:
                runner.start()
            taken = requests_of(ask)
            if is_on:
                runner.stop()
            if number >= 0:
                found[is_on].append(taken)

    def ratio(percentile: int) -> float:
        p = {
            on: [statistics.quantiles(burst, n=100)[percentile - 1] for burst in bursts]
            for on, bursts in found.items()
        }
        return statistics.median(on / off for on, off in zip(p[True], p[False], strict=True))

    counts = runner.counts
    assert counts.shadow_runs and not counts.failed and not counts.feedback_failed
    return {"shadow_p50_ratio": ratio(50), "shadow_p99_ratio": ratio(99), "shadow_dropped": counts.dropped}


CLIENT = httpx.Client(trust_env=False, timeout=60)


def shadow_agent(task: str, url: str) -> str:
    """The user's agent: one call."""
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"model": "own", "messages": [{"role": "user", "content": task}]}
    return CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=headers).text


def requests_of(ask: Callable[[str], str]) -> list[float]:
    """The seconds of 8 users' requests, 20 each."""
    taken: list[float] = []

    def use() -> None:
        for _ in range(20):
            started = time.perf_counter()
            ask("hi")
            taken.append(time.perf_counter() - started)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


@contextmanager
def hosted() -> Iterator[str]:
    """A server in a process of its own that answers any POST after a while: its URL."""
    port = free_port()
    code = f"import online; online.serve_hosted({port}, {HOSTED_SECONDS})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent)
    try:
        while True:
            try:
                httpx.post(f"http://127.0.0.1:{port}/", trust_env=False)
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def serve_hosted(port: int, seconds: float) -> None:
    """The program of `hosted`."""
    import asyncio

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        await asyncio.sleep(seconds if b"/chat/" in head.partition(b"\r\n")[0] else 0)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="how long users rate")
    parser.add_argument("--recovery", type=float, default=3, help="how long they rate after the poison")
    options = parser.parse_args(arguments)
    seed = int(os.environ.get("SEED", "0"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(yaml.safe_dump(JOB))
        (folder / "judge.py").write_text(JUDGE)
        sums = [
            {"query": f"What is {a} + {b}?", "answer": str(a + b)}
            for a in range(1, 9)
            for b in range(1, 10 - a)
        ]
        (folder / "sums.jsonl").write_text("".join(json.dumps(one) + "\n" for one in sums))
        found = {"seed": seed, **latencies(folder, seed), **shadowed()}
        print(json.dumps(found), file=sys.stderr, flush=True)
        found |= learned(folder, seed, options.minutes, options.recovery)
    print(json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in found.items()}))


if __name__ == "__main__":
    main()
