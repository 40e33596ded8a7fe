"""The whole process in one command: a real language model is fetched, evaluated, trained and evaluated again.

    python demo.py --seed 0

Runs the installed `ajet` program as a user would. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import ajet

HERE = Path(__file__).resolve().parent
MODEL = "smollm2"
KINDS = {"known": "sentence patterns of training, other numbers", "new": "sentence patterns never trained on"}
"""How the ids of held-out problems begin, and what they are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="random seed of the problems and the sampling")
    parser.add_argument("--steps", type=int, help="steps of training; default: those of job.yaml")
    options = parser.parse_args()
    seed = options.seed
    root = Path.cwd() / "runs" / f"word-problems-seed{seed}"
    command = [sys.executable, "-m", "ajet", "run", str(HERE / "job.yaml"), "--seed", str(seed)]
    for key, value in (("task.reader.seed", seed), ("task.validation.seed", seed), ("run.dir", root)):
        command += ["--set", f"{key}={value}"]
    if options.steps:
        command += ["--steps", str(options.steps)]
    code = subprocess.run(command, check=False).returncode
    if code:
        sys.exit(code)
    run = ajet.load_run(max(root.iterdir(), key=lambda folder: folder.stat().st_mtime))
    steps = [line for line in run.metrics if "seconds_update" in line]
    sampled, greedy = (Held(run, phase) for phase in ("validation", "greedy"))
    result = {
        "model": MODEL,
        "accuracy_before": round(sampled.before(), 4),
        "accuracy_after": round(sampled.after(), 4),
        "standard_errors": round(sampled.standard_errors(), 1),
        "greedy_before": round(greedy.before(), 4),
        "greedy_after": round(greedy.after(), 4),
        "train_seconds": round(sum(step["seconds_rollout"] + step["seconds_update"] for step in steps), 1),
        "run_dir": str(run.dir),
    }
    print(summary(run, sampled, greedy, result))
    print(json.dumps(result))


class Held:
    """The held-out episodes of one kind of decoding before and after training."""

    def __init__(self, run: ajet.Run, phase: str) -> None:
        found = run.episodes(phase=phase)
        first, last = min(e.step for e in found), max(e.step for e in found)
        self.first = {e.task: e for e in found if e.step == first}
        self.last = {e.task: e for e in found if e.step == last}

    def before(self, kind: str = "") -> float:
        """Share of the problems, of those whose ids begin with ``kind``, that were solved."""
        return mean(reward(e) for e in self.first.values() if e.task.startswith(kind))

    def after(self, kind: str = "") -> float:
        """As `before`, after training."""
        return mean(reward(e) for e in self.last.values() if e.task.startswith(kind))

    def standard_errors(self) -> float:
        """The gain in standard errors of the difference of two shares."""
        count, shares = len(self.first), (self.before(), self.after())
        error = sum(share * (1 - share) / count for share in shares) ** 0.5
        return (shares[1] - shares[0]) / error if error else 0.0


def reward(episode: ajet.Episode) -> float:
    """An episode's reward; 0 if it failed."""
    return 0.0 if episode.failure else episode.reward


def summary(run: ajet.Run, sampled: Held, greedy: Held, result: dict[str, Any]) -> str:
    """The figures as a table, one problem before and after, and where to look next."""
    rows = [("sampled", sampled, ""), ("greedy", greedy, "")]
    rows += [(f"greedy, {what}", greedy, kind) for kind, what in KINDS.items()]
    table = "\n".join(
        f"  {name:54}{held.before(kind):7.1%}  {held.after(kind):7.1%}" for name, held, kind in rows
    )
    return f"""
SmolLM2-135M-Instruct on {len(greedy.first)} word problems that it was not trained on, share solved:

  {"":54} before    after
{table}
  {"training":54}{result["train_seconds"]:15.0f} s

{chats(greedy)}

Where to look next
  ajet show {run.dir}   the summary of the run, every episode: chat, tokens, logprobs, advantage
  {run.checkpoint}    the model, in Hugging Face layout
  examples/word_problems/agent.py    the agent, which does not import AgentJet
"""


def chats(greedy: Held) -> str:
    """A problem of a new pattern that is solved after training but was not before, else any problem, as a person reads it."""
    learned = [t for t, e in greedy.last.items() if reward(e) > reward(greedy.first[t])]
    task = min(learned or greedy.last, key=lambda t: (not t.startswith("new"), t))
    query, _ = said(greedy.first[task])
    both = (("before", greedy.first[task]), ("after", greedy.last[task]))
    lines = (f"  {when:7}{' · '.join(said(e)[1])}   {'right' if reward(e) else 'wrong'}" for when, e in both)
    return "\n".join([f'  "{query}"', *lines])


def said(episode: ajet.Episode) -> tuple[str, Iterable[str]]:
    """The problem of an episode, and what was said after it: the model's sum, the calculator's result, the model's answer."""
    chat = max(episode.messages, key=len)
    problem = max(
        i for i, m in enumerate(chat) if m["role"] == "user" and m["content"].rstrip().endswith("?")
    )
    return chat[problem]["content"], [m["content"].partition("\n")[0] for m in chat[problem + 1 :]]


if __name__ == "__main__":
    main()
