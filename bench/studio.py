"""Measures `ajet studio` on a run with 100,000 episodes: the index, the first view, single episodes, memory.

    .venv/bin/python bench/studio.py                     # writes about 2.3 GB into a temporary folder
    .venv/bin/python bench/studio.py --episodes 5000     # a quick look

The journal is written by the recorder of a run. Its lines repeat some episodes of six calls, with other ids, tasks and
rewards, and one episode of a million tokens. `index_mb_s` is the size of the journal divided by the seconds from the first
question to the complete index; `first_view_s` what the page of a run asks for before it can show something, with the index
and without; `episode_s` and `million_tokens_s` one episode with its first window of tokens, the slowest of all that were
opened; `server_mb` the greatest memory of the server; `page_s`, `page_episode_s`, `page_million_s` and `dom_nodes` what chromium
shows. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import yaml
from playwright.sync_api import sync_playwright

from ajet.interfaces.progress import Silent
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.journal import JournalLine
from ajet.rollout.recorder import JOURNAL, RunRecorder
from ajet.runs.run_dir import keep_tokenizer
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import Generation, Task, WorkflowOutput
from ajet_local.starter.calculator import Calculator

GROUP, EPISODES_OF_STEP = 8, 1000
MILLION = "the-long-one"
COUNT_NODES = """() => {
    const walker = document.createTreeWalker(document, NodeFilter.SHOW_ALL);
    let count = 1;
    while (walker.nextNode()) count += 1;
    return count;
}"""
JOB = {
    "workflow": "agent.py:run",
    "model": "starter",
    "backbone": {"name": "local"},
    "train": {"steps": 100, "algorithm": {"type": "grpo"}, "filters": [], "max_timelines": None},
    "run": {"seed": 0},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "runs" / "20260101-120000"
        size = write_run(run_dir, options.episodes)
        print(json.dumps({"studio": measure(run_dir, options.episodes, size)}))


def measure(run_dir: Path, episodes: int, size: int) -> dict[str, Any]:
    """The figures of a run folder whose journal has ``size`` bytes."""
    with serving(run_dir.parent) as server:
        unindexed = timed(lambda: first_view(server, run_dir.name))
        started = time.perf_counter() - unindexed
        while server.get("run", run=run_dir.name)["indexed"] < 1:
            time.sleep(0.1)
        index = size / 1e6 / (time.perf_counter() - started)
        peak = server.peak_mb()
    with serving(run_dir.parent) as server:
        first = timed(lambda: first_view(server, run_dir.name))
        draw = random.Random(0)
        ids = [id_of(draw.randrange(episodes)) for _ in range(200)]
        slowest = max(timed(lambda id=id: open_episode(server, run_dir.name, id)) for id in ids)
        million = timed(lambda: open_episode(server, run_dir.name, id_of(episodes, MILLION)))
        extended = extend(server, run_dir, episodes)
        searched = timed(lambda: search(server, run_dir.name))
        again = timed(lambda: search(server, run_dir.name))
        peak = max(peak, server.peak_mb())
        browsed = browse(server, run_dir.name, episodes)
    return {
        "index_mb_s": round(index, 1),
        "first_view_s": round(first, 3),
        "first_view_unindexed_s": round(unindexed, 3),
        "episode_s": round(slowest, 3),
        "million_tokens_s": round(million, 3),
        "extended_s": round(extended, 3),
        "search_first_s": round(searched, 3),
        "search_s": round(again, 3),
        **browsed,
        "server_mb": round(peak),
        "journal_mb": round(size / 1e6),
        "episodes": episodes,
    }


# --------------------------------------------------------------------------- what a page asks for


def first_view(server: Server, run: str) -> None:
    """What the page of a run asks for before it can show something."""
    for path in ("/", "/page/index.html"):
        server.client.get(path).raise_for_status()
    server.get("runs")
    server.get("run", run=run)
    server.get("series", run=run, name="reward", phase="train")
    server.get("steps", run=run, phase="train", limit=50)
    server.get("episodes", run=run, limit=50)


def browse(server: Server, run: str, episodes: int) -> dict[str, Any]:
    """What a reader sees in chromium: the greatest number of DOM nodes of any view, and the seconds until the page of the run, an
    episode, and tokens in the middle of a million are shown."""
    draw = random.Random(1)
    long = {"run": run, "id": id_of(episodes, MILLION)}
    some = {"run": run, "id": id_of(draw.randrange(episodes))}
    timed_paths = {
        "page_s": ("/run", {"run": run}),
        "page_episode_s": ("/episode", some),
        "page_million_s": ("/episode", {**long, "tab": "tokens", "timeline": 0, "at": 500_000}),
    }
    others: list[tuple[str, dict[str, Any]]] = [
        ("/", {}),
        ("/run", {"run": run, "tab": "steps"}),
        ("/run", {"run": run, "tab": "episodes"}),
        ("/step", {"run": run, "phase": "train", "step": 50}),
        ("/episode", long),
        ("/episode", {**long, "tab": "tree"}),
        ("/search", {"run": run, "q": "apples"}),
    ]
    found: dict[str, Any] = {}
    most = 0
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = browser.new_page(viewport={"width": 1920, "height": 1080})
        page.goto(f"{server.client.base_url}/?token={server.token}")
        for name, (path, query) in [*timed_paths.items(), *(("", other) for other in others)]:
            started = time.perf_counter()
            page.goto(f"{server.client.base_url}{path}?{urlencode(query)}")
            page.wait_for_selector("main[aria-busy=false] h1", timeout=60_000)
            if name:
                found[name] = round(time.perf_counter() - started, 3)
            page.wait_for_load_state("load")
            for share in (0.0, 0.5, 1.0):
                page.evaluate("(share) => scrollTo(0, share * document.body.scrollHeight)", share)
                page.wait_for_timeout(200)
                most = max(most, page.evaluate(COUNT_NODES))
        browser.close()
    return {"dom_nodes": most, **found}


def open_episode(server: Server, run: str, id: str) -> None:
    """An episode's page, and the first window of its tokens."""
    found = server.get("episode", run=run, id=id)
    line = found["lanes"][0]["timelines"][0]
    shown = server.get(
        "tokens", run=run, id=id, timeline=line["index"], **{"from": line["tokens"] // 2, "count": 500}
    )
    assert len(shown["rows"]) == min(500, line["tokens"] - line["tokens"] // 2)


def extend(server: Server, run_dir: Path, episodes: int) -> float:
    """The seconds from the moment when a step's episodes are written until the list has them."""
    before = server.get("episodes", run=run_dir.name, limit=1)["total"]
    lines = [made.at(999) for made in lines_of(episodes + 1, EPISODES_OF_STEP)]
    with (run_dir / JOURNAL).open("a") as file:
        file.writelines(line + "\n" for line in lines)
    written = time.perf_counter()
    while server.get("episodes", run=run_dir.name, limit=1)["total"] < before + len(lines):
        time.sleep(0.01)
    return time.perf_counter() - written


def search(server: Server, run: str) -> None:
    """A search over all texts, until it is complete."""
    while server.get("search", run=run, q="calculator seven")["indexed"] < 1:
        time.sleep(0.1)


# --------------------------------------------------------------------------- the server


@dataclass
class Server:
    """The program `ajet studio`, running."""

    client: httpx.Client
    token: str
    pid: int

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of an answer."""
        found = self.client.get(f"/api/{path}", params=query)
        found.raise_for_status()
        return found.json()

    def peak_mb(self) -> float:
        """The greatest memory of the process so far, in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024 / 1e6


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A block in which the program serves a folder."""
    command = [sys.executable, "-m", "ajet", "studio", str(folder), "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        printed = re.search(r"(http://\S+)/\?token=(\S+)", process.stdout.readline())
        assert printed
        try:
            headers = {"authorization": f"Bearer {printed[2]}"}
            with httpx.Client(base_url=printed[1], headers=headers, timeout=600) as client:
                yield Server(client, printed[2], process.pid)
        finally:
            process.terminate()


def timed(work: Any) -> float:
    """The seconds that something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# --------------------------------------------------------------------------- a run


def write_run(run_dir: Path, episodes: int) -> int:
    """Write a run folder; returns the bytes of its journal."""
    run_dir.mkdir(parents=True)
    (run_dir / "job.yaml").write_text(yaml.safe_dump(JOB))
    keep_tokenizer(run_dir, tokenizer(), Silent())
    recorder = RunRecorder(run_dir)
    for number, line in enumerate(lines_of(0, episodes)):
        recorder.line(line, number // EPISODES_OF_STEP + 1)
        if number % 10_000 == 0:
            print(f"\r{number:,} episodes", end="", file=sys.stderr, flush=True)
    recorder.line(line_of(long_episode(), episodes, MILLION), episodes // EPISODES_OF_STEP + 1)
    draw = random.Random(0)
    for step in range(1, episodes // EPISODES_OF_STEP + 2):
        values = {f"figure/{n}": draw.random() for n in range(20)}
        recorder.metrics("train", step, {"reward": draw.random(), "episodes": EPISODES_OF_STEP, **values})
    recorder.close()
    print("", file=sys.stderr)
    return (run_dir / JOURNAL).stat().st_size


def lines_of(first: int, count: int) -> Iterator[JournalLine]:
    """The lines of so many episodes."""
    patterns = [JournalLine.of(episode_of(*shape_of(n), seed=n), "train") for n in range(64)]
    draw = random.Random(first)
    for number in range(first, first + count):
        yield varied(patterns[draw.randrange(len(patterns))], number, task_of(number), draw.random())


def line_of(episode: Episode, number: int, task: str) -> JournalLine:
    """The line of an episode with another id and task."""
    return varied(JournalLine.of(episode, "train"), number, task, 1.0)


def varied(line: JournalLine, number: int, task: str, reward: float) -> JournalLine:
    """A line with another id, task, member and reward."""
    id = id_of(number, task)
    head, tail = line.beginning[:400], line.beginning[400:]
    head = head.replace('"1.0/pattern/0"', json.dumps(id), 1).replace(
        '"task": "pattern"', f'"task": "{task}"', 1
    )
    head = head.replace('"member": 0', f'"member": {number % GROUP}', 1)
    head = head.replace('"reward": 0.25', f'"reward": {reward:.6f}', 1)
    return JournalLine(id, head + tail)


def task_of(number: int) -> str:
    """The task of an episode."""
    return f"task-{number // GROUP % 1250}"


def id_of(number: int, task: str = "") -> str:
    """The id of an episode."""
    group = number // GROUP
    return f"{number // EPISODES_OF_STEP + 1}.{group % (EPISODES_OF_STEP // GROUP)}/{task or task_of(number)}/{number % GROUP}"


def shape_of(seed: int) -> tuple[int, int, int]:
    """Calls, tokens of each answer, and tokens of each prompt's new part."""
    return 6, random.Random(seed).randint(60, 140), 150


def long_episode() -> Episode:
    """An episode of a million tokens in 250 calls."""
    return episode_of(250, 2000, 2000, seed=1)


_TEXT = (
    "calculator seven eleven the answer is plus minus times problem solve check again result tool error next"
)
_WORDS = _TEXT.split(" ")


def episode_of(calls: int, answer: int, new: int, *, seed: int) -> Episode:
    """An episode whose calls continue one conversation."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    vocabulary = len(tokenizer())
    record = EpisodeRecord()
    tree, chat = record.tree("policy/0"), record.chat("policy/0")
    node, message = tree.root, chat
    for number in range(calls):
        node = prompt = tree.extend(node, as_ids(rng.integers(0, vocabulary, new)))
        role = "tool" if number else "user"
        message = message.add({"role": role, "content": " ".join(draw.choices(_WORDS, k=max(1, new // 2)))})
        ids = as_ids(rng.integers(0, vocabulary, answer))
        node = tree.extend(prompt, ids)
        logprobs = -rng.random(answer, dtype=np.float32) * 3
        made = Generation(ids, logprobs, np.full(answer, seed, np.int32), "stop")
        call = Call(
            number=number, agent="solver", target="policy", key="policy/0", prompt=prompt, end=node, generation=made,
            temperature=1.0, trained=True, chat_end=message,
        )  # fmt: skip
        found = record.add(
            call, {"role": "assistant", "content": " ".join(draw.choices(_WORDS, k=answer // 2))}
        )
        assert found
        message = found
    record.close()
    plan = Plan("1.0/pattern/0", "", Task("pattern"), 0, 0)
    output = WorkflowOutput(response=" ".join(draw.choices(_WORDS, k=30)))
    episode = Episode(plan, 0, output, record, reward=0.25, is_success=False, seconds=12.5)
    episode.counters.update({"rendered_anew": 0, "drift": 0})
    return episode


@functools.cache
def tokenizer() -> Any:
    """The tokenizer of our calculator model."""
    return Calculator().tokenizer(0)[0]


if __name__ == "__main__":
    main()
