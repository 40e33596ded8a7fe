"""Compares plain groups with forks and `train.credit: tree`, at equal budgets of sampled tokens, on tasks of several turns.

    SEED=0 python bench/credit.py [TASK ...]

Three tasks are those of the examples. In the fourth, `bench/doors`, the first answer is long and decides what can be learned, a short
second one is luck, and the true advantage of both is known. `tokens_ratio` is how many times fewer sampled tokens the tree needs until
its mean reward (in `doors`: the share of right doors) has nine tenths of the gain of plain groups; `half_ratio` is the same for half of
the gain, and depends less on the noise of the last steps. Where the tree does not get to nine tenths, `is_bound` says that the ratio is
at most this. The correlations, in `doors`, are those of the trained advantages of calls with the true ones, at the untrained model,
each call with the weight that it is trained with. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DOORS = ROOT / "bench" / "doors"
WINDOW = 5
"""Steps over which rewards are averaged."""
TREE = {
    "rollout.fork.where": "uniform",
    "train.credit": "tree",
}


@dataclass(frozen=True)
class Task:
    """A job and what is set in it for both methods."""

    job: Path
    settings: Mapping[str, Any]
    measure: str = "reward"
    """The metric of a step that is to rise."""


UNJUDGED = {"eval.episodes": 1, "eval.greedy": False}
"""What is compared are the rewards of training."""
TASKS = {
    "doors": Task(DOORS / "job.yaml", {}, "accuracy"),
    **{
        name: Task(ROOT / f"examples/{name}/job.yaml", UNJUDGED)
        for name in ("frozenlake", "learn_to_ask", "search")
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tasks", nargs="*", help=f"default: {', '.join(TASKS)}")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "0")))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the tree's job, such as another `rollout.fork.where`",
    )
    options = parser.parse_args()
    tree = {**TREE, **dict(pair.split("=", 1) for pair in options.set)}
    found: dict[str, Any] = {"seed": options.seed, "tree": tree, "tasks": {}, "forks_diverged": 0}
    for name in options.tasks or TASKS:
        plain, forked = (run(TASKS[name], name, kind, options.seed) for kind in ({}, tree))
        found["tasks"][name] = compared(*(curve(found, TASKS[name].measure) for found in (plain, forked)))
        found["forks_diverged"] += sum(step.get("forks_diverged", 0) for step in steps(forked))
        print(json.dumps({name: found["tasks"][name]}), flush=True)
        if name == "doors":
            probes = {"grpo": {}, "tree": tree}
            for method, kind in probes.items():
                probe = Task(
                    TASKS[name].job, {"train.steps": 1, "train.batch_size": 32, "train.learning_rate": 1e-12}
                )
                found[f"correlation_{method}"] = correlation(run(probe, "doors-credit", kind, options.seed))
    print(json.dumps(found))


def run(task: Task, name: str, kind: Mapping[str, Any], seed: int) -> Path:
    """Train as a user would; returns the run folder."""
    root = Path.cwd() / "runs" / f"bench-credit-{name}-{'tree' if kind else 'grpo'}-seed{seed}"
    settings = {**task.settings, **kind, "task.reader.seed": seed, "run.dir": root}
    command = [sys.executable, "-m", "ajet", "run", str(task.job), "--seed", str(seed)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    print(f"== {name}, {'tree' if kind else 'grpo'}, seed {seed}", flush=True)
    subprocess.run(command, check=True)
    return max(root.iterdir(), key=lambda folder: folder.stat().st_mtime)


def steps(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics of the training steps."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["type"] == "train"]


Curve = Sequence[tuple[float, float]]
"""Sampled tokens so far, and the mean of what is measured over the independent episodes of the last `WINDOW` steps."""


def curve(run_dir: Path, measure: str) -> Curve:
    """The learning curve of a run."""
    lines = steps(run_dir)
    tokens = np.cumsum([line["tokens_sampled"] for line in lines])
    rewards = [line[measure] for line in lines]
    return [
        (float(tokens[i]), statistics.mean(rewards[max(i + 1 - WINDOW, 0) : i + 1]))
        for i in range(len(lines))
    ]


def compared(plain: Curve, forked: Curve) -> dict[str, Any]:
    """The figures of a task. Both methods begin with the same model, whose reward is the mean over both first steps."""
    before = (plain[0][1] + forked[0][1]) / 2
    gains = [found[-1][1] - before for found in (plain, forked)]

    def ratio(share: float) -> float:
        """Tokens of plain groups until this share of their gain, by those of the tree."""
        needed = [until(found, before + share * gains[0]) or found[-1][0] for found in (plain, forked)]
        return round(needed[0] / needed[1], 2)

    return {
        "tokens_ratio": ratio(0.9),
        "half_ratio": ratio(0.5),
        "is_bound": until(forked, before + 0.9 * gains[0]) is None,
        "before": round(before, 3),
        "gain_grpo": round(gains[0], 3),
        "gain_tree": round(gains[1], 3),
        "tokens_grpo": round(plain[-1][0]),
        "tokens_tree": round(forked[-1][0]),
    }


def until(found: Curve, reward: float) -> float | None:
    """The sampled tokens after which the mean reward has been reached."""
    return next((tokens for tokens, mean in found if mean >= reward), None)


def correlation(run_dir: Path) -> float:
    """Of the advantages that step 1 trained with the true ones, over all calls."""
    from ajet.reports.folder import read_run
    from ajet_audit.batches import read_step
    from ajet_audit.files import Folder

    sys.path.append(str(DOORS))
    from house import wanted

    run = read_run(run_dir)
    episodes = {entry.id: run.episode(entry) for entry in run.entries}
    model = Scored(run_dir / "checkpoints" / "step_000001")
    pairs = []
    for row in read_step(Folder(run_dir), 1).rows:
        episode = episodes[row.episode]
        calls = {call.number: place for place, call in enumerate(episode.record.calls)}
        for start, _, number, *_ in row.spans:
            call = episode.record.calls[calls[number]]
            word, reward = wanted(episode.plan.task.metadata["lucky"])[calls[number]]
            said = (call.answer.message["content"] or "") if call.answer else ""
            chance = model.probability(call.prompt.ids().tolist(), word)
            true = reward * ((said.split()[:1] == [word]) - chance)
            pairs.append((float(row.advantages[start]), true, float(row.weights[start])))
    estimated, exact, weights = np.array(pairs).T
    spread = np.cov(estimated, exact, aweights=weights)
    return round(float(spread[0, 1] / np.sqrt(spread[0, 0] * spread[1, 1])), 3)


class Scored:
    """A model that says how likely the first word of an answer is."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def probability(self, prompt: Sequence[int], word: str) -> float:
        """That the model's answer to a prompt begins with a word."""
        import torch

        answer = self._tokenizer.encode(word, add_special_tokens=False)
        with torch.no_grad():
            logits = self._model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1)[range(len(answer)), answer]
        return float(logprobs.sum().exp())


if __name__ == "__main__":
    main()
