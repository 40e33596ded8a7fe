"""Steps of a job with the model of Qwen3-0.6B's shape on the backbone (and with the engine, and so many steps) that is named: speed,
parts of a step, memory beside the plan.

Rewards are random: the job learns nothing, but every part of it runs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import ajet
from ajet_local.memory import resident
from prove.part import Options, Peak, main

STEPS = 20
PROMPT, ANSWER = 512, 256
"""Tokens of an episode: about so many of the prompt, exactly so many sampled."""


def run(options: Options) -> dict[str, Any]:
    """Train, and compare with the plan. Raises AjetError if the job fails."""
    backbone, engine, steps = [*options.extra, "", ""][:3]
    settings = _settings(options, backbone)
    if engine:
        settings["backbone.local.engine"] = engine
    with Peak(options.device) as peak:
        done = ajet.run(
            workflow=str(Path(__file__).with_name("agent.py")) + ":ask",
            judge=str(Path(__file__).with_name("agent.py")) + ":judge",
            tasks=str(tasks_of(options, 20 if options.reduced else PROMPT // 4)),
            model=str(options.large),
            backbone=backbone,
            run_dir=str(options.folder / "runs"),
            steps=3 if options.reduced else int(steps or STEPS),
            set=settings,
        )
    warm = done.metrics[1:]  # the first step also compiles and fills caches
    names = ("seconds_rollout", "seconds_update", "tokens_sampled", "logprob_diff_mean")
    figures: dict[str, Any] = {name: statistics.median(step[name] for step in warm) for name in names}
    figures["tokens_per_second"] = figures["tokens_sampled"] / figures["seconds_rollout"]
    figures |= {"peak_gib": peak.bytes / 2**30, "own_peak_gib": peak.own / 2**30}
    figures = {name: round(value, 4) for name, value in figures.items()} | {"steps": len(done.metrics)}
    return figures | _planned(options, backbone, settings)


def _settings(options: Options, backbone: str) -> dict[str, Any]:
    groups, members = (2, 2) if options.reduced else (16, 8)
    settings: dict[str, Any] = {
        "train.batch_size": groups,
        "rollout.group_size": members,
        "rollout.concurrency": groups * members,
        "rollout.sampling.max_tokens": 16 if options.reduced else ANSWER,
        "rollout.context_length": 1024,
        "train.save_every": 1000,
    }
    if options.reduced and backbone == "local":  # as on a GPU: a limit, and a cache within it
        settings |= {"backbone.local.memory_limit": resident() + (8 << 30), "backbone.local.cache_mib": 64}
    return settings


def tasks_of(options: Options, length: int) -> Path:
    """A file of tasks with prompts of ``length`` words, each about four tokens long."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    file = options.folder / "tasks.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for number in range(64):
            query = " ".join(words[(number * 7 + n * n) % len(words)] for n in range(length))
            out.write(json.dumps({"id": f"task{number}", "query": query}) + "\n")
    return file


def _planned(options: Options, backbone: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What `ajet plan` says of the job on this GPU, or on a common one; empty if it knows no such GPU."""
    command = [
        sys.executable,
        "-m",
        "ajet",
        "plan",
        "--json",
        "--model",
        str(options.large),
        "--backbone",
        backbone,
    ]
    command += ["--prompt-tokens", str(PROMPT), "--answer-tokens", str(ANSWER)]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    if options.reduced:
        command += ["--gpus", "H100"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2:
        return {"plan": done.stderr.strip()}
    plan = json.loads(done.stdout)
    speed = plan["speed"]
    return {
        "plan_peak_gib": round(max(phase["total"] for phase in plan["memory"]) / 2**30, 4),
        "plan_sampling_seconds": [round(speed["sampling_seconds"][end], 2) for end in ("low", "high")],
        "plan_training_seconds": [round(speed["training_seconds"][end], 2) for end in ("low", "high")],
    }


if __name__ == "__main__":
    main(run, __doc__)
