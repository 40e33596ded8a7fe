"""AgentJet beside TRL, each with vLLM on one card, in one call of at most nine minutes: episodes of one call, and of eight.

    .venv-gpu/bin/python bench/beside_trl.py --peer .venv-gpu-trl/bin/python   # on a CUDA device
    python bench/beside_trl.py --reduced                                       # a small model on this CPU, without vLLM

Both train all weights of a model of the shape of Qwen3-0.6B by GRPO, in bfloat16 over float32 weights, without a KL penalty. The
weights are random, so answers hardly ever end before their limit. AgentJet runs before TRL and after it; how much its two runs
differ is the noise. The median step counts, without the first one, which compiles.

The last line is one JSON object, whose ``checks`` say whether both sample as many tokens, and AgentJet enough a second (`LEAST`). Of
each run, ``peak_gib`` is the most memory: on a card all that the run's processes hold there, on the CPU the resident set of its only
process. ``update_mfu`` is the share of ``tflops``, the speed of a large matrix product in this call, that an ``update`` reaches with
the operations that it needs at least (`operations`), so what a program computes twice does not count. AgentJet's update ends with new
weights for vLLM, which with TRL are ``sync``. What did not run for want of time is missing. On this CPU nothing is required of the
speed. Exit code 1: a check has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gpu
import grpo_work
import local
import torch
from prove.part import Options, Peak, make_models

from ajet.utils.process_group import signal_group

LEAST = {"single": 1.0, "agents": 1.5}
"""AgentJet's tokens a second in TRL's, at least."""
UNEQUAL = 0.02
"""How much the numbers of sampled tokens of a step may differ, or the two do not do the same."""
AGENT = """
from openai import AsyncOpenAI

client = AsyncOpenAI(api_key="unset")


async def run(task):
    chat, between = [], [task.query] + [task.metadata["between"]] * (task.metadata["calls"] - 1)
    for text in between:
        chat.append({"role": "user", "content": text})
        answer = (await client.chat.completions.create(model="any", messages=chat)).choices[0].message.content
        chat.append({"role": "assistant", "content": answer or ""})
    return "".join(message["content"] for message in chat if message["role"] == "assistant")


def judge(task, output):  # as arbitrary as TRL's: the model knows nothing
    return sum(output.response.encode()) % 97 / 97
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a step does. Tokens are at least so many."""

    tasks: int
    members: int
    prompt: int
    answer: int
    steps: int
    calls: int = 1
    between: int = 0
    """Tokens before each further call."""


LOADS = {
    "single": Load(tasks=16, members=8, prompt=512, answer=256, steps=6),
    "agents": Load(tasks=8, members=8, prompt=512, answer=64, steps=3, calls=8, between=300),
}
REDUCED = {
    "single": Load(tasks=4, members=4, prompt=32, answer=16, steps=2),
    "agents": Load(tasks=2, members=4, prompt=32, answer=8, steps=2, calls=3, between=24),
}


class OutOfTimeError(Exception):
    """The program has had its time."""


def main() -> None:
    """Run both loads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peer", default=str(local.PEER), help="Python of the environment with TRL")
    parser.add_argument("--reduced", action="store_true", help="a small model on the CPU, without vLLM")
    parser.add_argument("--limit", type=int, default=540, help="end after so many seconds with what there is")
    options = parser.parse_args()
    if not os.access(options.peer, os.X_OK):
        sys.exit(
            f"{options.peer}: not the Python of an environment with TRL. `make .venv-trl/.installed` makes one."
        )
    if not options.reduced and not torch.cuda.is_available():
        sys.exit("bench/beside_trl.py: torch finds no CUDA device. --reduced tries the program on this CPU.")
    signal.signal(signal.SIGALRM, _stop)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it has started ends, too
    signal.alarm(0 if options.reduced else options.limit)
    checks: list[dict[str, Any]] = []
    dtype = torch.float32 if options.reduced else torch.bfloat16  # that of the updates
    size = 1024 if options.reduced else 8192
    peak = gpu.matmul_flops(torch.device("cpu" if options.reduced else "cuda"), size, dtype)
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = _model(Path(folder), options.reduced)
            for name, load in (REDUCED if options.reduced else LOADS).items():
                checks.append(_check(name, load, model, options.peer, peak, options.reduced))
                print(json.dumps(checks[-1]), flush=True)
    except OutOfTimeError:
        print(f"stopped after {options.limit} s", flush=True)
    signal.alarm(0)
    device = "cpu" if options.reduced else torch.cuda.get_device_name()
    figures = {"reduced": options.reduced, "device": device, "tflops": round(peak / 1e12, 3)}
    print(json.dumps({**figures, "checks": checks}))
    sys.exit(not all(check["passed"] for check in checks))


def _stop(*_: object) -> None:
    raise OutOfTimeError


def _model(folder: Path, reduced: bool) -> Path:
    if not reduced:
        options = Options(folder, reduced=False)
        make_models(options)
        return options.large
    tokenizer = grpo_work.make_tokenizer()
    model = grpo_work.make_model(tokenizer, seed=0)
    grpo_work.never_stop(model, tokenizer.all_special_ids)
    model.save_pretrained(folder / "small")
    tokenizer.save_pretrained(folder / "small")
    return folder / "small"


def _check(name: str, load: Load, model: Path, peer: str, peak: float, reduced: bool) -> dict[str, Any]:
    started = time.perf_counter()
    figures: dict[str, Any] = {"load": asdict(load)}
    passed = False
    try:
        with tempfile.TemporaryDirectory(dir=model.parent) as folder:
            work = _work(Path(folder), load, model, reduced)
            figures["ajet"] = first = _own(Path(folder), load, reduced)
            figures["trl"] = theirs = _theirs(peer, work, load, reduced)
            figures["ajet again"] = again = _own(Path(folder), load, reduced)
            needed = operations(work, load)
            for run in (first, theirs, again):
                run["update_mfu"] = round(needed / run["update"] / peak, 4)
        ours = median((first["tokens_per_second"], again["tokens_per_second"]))
        figures["ratio"] = round(ours / theirs["tokens_per_second"], 3)
        alike = all(abs(own["tokens"] / theirs["tokens"] - 1) < UNEQUAL for own in (first, again))
        passed = alike and (reduced or figures["ratio"] >= LEAST[name])
    except (subprocess.CalledProcessError, SystemExit) as error:  # one of them has said why it ended
        figures["failed"] = str(error)
    seconds = round(time.perf_counter() - started, 1)
    return {"name": name, "passed": passed, "seconds": seconds, "figures": figures}


def _work(folder: Path, load: Load, model: Path, reduced: bool) -> grpo_work.Work:
    """The folder that both read."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rng = random.Random(0)
    between = _text(tokenizer, load.between, rng)
    (folder / "model").symlink_to(model)
    work = grpo_work.Work(
        str(folder),
        max_tokens=load.answer,
        learning_rate=1e-6,
        groups=load.tasks,
        members=load.members,
        dtype="float32" if reduced else "bfloat16",
        rows=8 if load.calls == 1 else 2,  # about as many tokens: eight long rows are more than 80 GB
        calls=load.calls,
        between=between,
        vllm={} if reduced else {"utilization": 0.4, "context": 4096},
    )
    extra = {"answer": "", "between": between, "calls": load.calls}
    work.write_tasks(
        [{"id": str(n), "query": _text(tokenizer, load.prompt, rng), **extra} for n in range(8 * load.tasks)]
    )
    return work


def _text(tokenizer: Any, tokens: int, rng: random.Random) -> str:
    """Random words of at least so many tokens."""
    text = ""
    while len(tokenizer.encode(text, add_special_tokens=False)) < tokens:
        text += "".join(rng.choices(string.ascii_lowercase, k=4)) + " "
    return text


def _own(folder: Path, load: Load, reduced: bool) -> dict[str, float]:
    """The median step of a run of AgentJet, as a user starts it."""
    (folder / "agent.py").write_text(AGENT)
    job = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "agent.py:run",
        "judge": "agent.py:judge",
        "model": "./model",
        "rollout": {"group_size": load.members, "sampling": {"max_tokens": load.answer}, "concurrency": 128},
        "train": {"steps": load.steps, "batch_size": load.tasks, "learning_rate": 1e-6, "save_every": 1000},
        "backbone": {"local": {"device": "cpu"} if reduced else {"engine": "vllm", "dtype": "bfloat16"}},
    }
    (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
    runs = folder / f"runs-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "ajet", "run", "job.yaml", "--set", f"run.dir={runs}"]
    started = time.perf_counter()
    with _on_card(reduced) as card:
        process = subprocess.Popen(command, cwd=folder, stdout=sys.stderr, start_new_session=True)
        try:
            _, status, used = os.wait4(process.pid, 0)
        finally:
            signal_group(process.pid, signal.SIGKILL)  # vLLM is a process of its own
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    seconds = time.perf_counter() - started
    (metrics,) = runs.glob("*/metrics.jsonl")
    steps = [line for line in map(json.loads, metrics.open()) if line["type"] == "train"][1:]
    found = _median(
        {
            "sample": step["seconds_rollout"],
            "update": step["seconds_update"],
            "tokens": step["tokens_sampled"],
            "wall": step["seconds_rollout"] + step["seconds_update"],
            "logprob_diff_mean": step["logprob_diff_mean"],
        }
        for step in steps
    )
    return found | {
        "seconds": round(seconds, 1),
        "peak_gib": _gib(card.bytes if card else used.ru_maxrss << 10),
    }


def _theirs(peer: str, work: grpo_work.Work, load: Load, reduced: bool) -> dict[str, float]:
    """The median step of TRL."""
    started = time.perf_counter()
    with _on_card(reduced) as card, local.running(peer, work, seed=0) as trl:
        steps = [trl.step() for _ in range(load.steps)][1:]
    found = _median(
        {
            "sample": step["sampling"],
            "update": step["wall"] - step["sampling"] - step["sync"],
            "sync": step["sync"],
            "tokens": step["tokens"],
            "wall": step["wall"],
        }
        for step in steps
    )
    seconds = round(time.perf_counter() - started, 1)
    return found | {"seconds": seconds, "peak_gib": _gib(card.bytes if card else steps[-1]["resident"])}


def _on_card(reduced: bool) -> Any:
    """Watches the memory of the card, on which nothing else runs; None on the CPU."""
    return nullcontext() if reduced else Peak(torch.device("cuda"))


def _gib(size: float) -> float:
    return round(size / 2**30, 3)


def operations(work: grpo_work.Work, load: Load) -> float:
    """Floating-point operations that an update of a step needs, forward and backward, without recomputed activations: a group's prompt
    once, logits of sampled tokens alone, attention of each token to those before it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(f"{work.folder}/model")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings().weight
    embedded = {id(model.get_input_embeddings().weight), id(head)}
    layers = sum(p.numel() for p in model.parameters() if id(p) not in embedded)
    tokenizer = AutoTokenizer.from_pretrained(f"{work.folder}/model")
    query = json.loads(Path(work.folder, "tasks.jsonl").read_text().splitlines()[0])["query"]
    prompt, between = (len(grpo_work.prompt_ids(tokenizer, text)) for text in (query, work.between))
    sampled = load.calls * load.answer
    after = sampled + (load.calls - 1) * between
    tokens = prompt + load.members * after
    pairs = prompt * (prompt + 1) / 2 + load.members * after * (prompt + (after + 1) / 2)
    pair = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    products = layers * tokens + head.numel() * load.members * sampled + pair * pairs
    return 3 * load.tasks * 2 * products


def _median(steps: Any) -> dict[str, float]:
    rows: list[Mapping[str, float]] = list(steps)
    found = {name: round(median(row[name] for row in rows), 4) for name in rows[0]}
    return found | {"tokens_per_second": round(median(row["tokens"] / row["wall"] for row in rows), 1)}


if __name__ == "__main__":
    main()
