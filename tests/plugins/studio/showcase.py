"""Run folders for the tests of the page: agents that really ran, answered by a script that becomes better step by step."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import openai
import yaml

import ajet
from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.chat.renderer import Chat
from ajet.interfaces.progress import Silent
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.recorder import RunRecorder
from ajet.runs.run_dir import keep_tokenizer
from ajet.testing import ScriptedEngine
from ajet.types import Task
from tests.conftest import Bench
from tests.patience import PATIENCE

TASKS = {
    "apples": ("Ann picks 12 baskets of 7 apples. How many apples is that?", "12 * 7", "84"),
    "bridge": (
        "A bridge of 96 metres rests on pillars every 8 metres. How many gaps are there?",
        "96 / 8",
        "12",
    ),
    "coins": ("Ben has 35 coins and finds 17 more. How many coins does he have?", "35 + 17", "52"),
    "days": ("A ship sails for 9 weeks. How many days is that?", "9 * 7", "63"),
}
MEMBERS = 4
CLIENT = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}  # fmt: skip


async def agent(task: ajet.Task) -> str:
    """A solver with a tool, and a critic who reads its answer. Every third episode trims what the solver said."""
    messages: list[Any] = [
        {"role": "system", "content": "Use the calculator, then answer with one number."},
        {"role": "user", "content": task.query},
    ]
    with ajet.label(agent="solver"):
        made = await CLIENT.chat.completions.create(model="m", messages=messages, tools=[TOOL])  # type: ignore[list-item]
        asked = made.choices[0].message
        messages.append(asked.model_dump(exclude_none=True))
        for call in asked.tool_calls or []:
            given = json.loads(call.function.arguments)["expression"]  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(eval(given, {}))})
        made = await CLIENT.chat.completions.create(model="m", messages=messages, tools=[TOOL])  # type: ignore[list-item]
        answer = made.choices[0].message.content or ""
        messages += [
            {"role": "assistant", "content": answer.replace("  ", " ")},
            {"role": "user", "content": "Say it again, as a whole sentence."},
        ]
        made = await CLIENT.chat.completions.create(model="m", messages=messages, tools=[TOOL])  # type: ignore[list-item]
    with ajet.label(agent="critic"):
        question = f"Is this right? {task.query} {made.choices[0].message.content}"
        await CLIENT.chat.completions.create(model="m", messages=[{"role": "user", "content": question}])
    if "lost" in answer:
        raise ValueError("the answer has no number")
    return answer.strip()


def judge(task: ajet.Task, output: ajet.WorkflowOutput) -> ajet.JudgeOutput:
    """Right or wrong, with a reason."""
    wanted = TASKS[task.id][2]
    right = re.findall(r"\d+", str(output.response))[-1:] == [wanted]
    reason = "The last number is right." if right else f"The last number should be {wanted}."
    return ajet.JudgeOutput(reward=float(right), is_success=right, feedback=reason)


class Learner:
    """What the model says, better with each step."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.skill = 0.0

    def __call__(self, request: Any, prompt: str) -> str:
        """The answer to a prompt."""
        task = next(found for found in TASKS.values() if found[0] in prompt)
        if "Is this right?" in prompt:
            return "Yes, it is." if self.draw.random() < 0.8 else "I am not sure: please check."
        if "Say it again" in prompt:
            return f"The answer is {task[2]}."
        if "<tool_response>" not in prompt:
            expression = task[1] if self.draw.random() < 0.4 + self.skill / 2 else "1 + 1"
            call = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
            return f"<think>\nThe problem needs one operation.\n</think>\n\n<tool_call>\n{call}\n</tool_call>"
        if self.draw.random() < 0.05 - self.skill / 20:
            return "The number is lost."
        answer = task[2] if self.draw.random() < self.skill else str(self.draw.randint(2, 99))
        return f"The answer  is {answer}." if self.draw.random() < 0.3 else f"The answer is {answer}."


def write_run(
    run_dir: Path, tokenizer: Any, *, seed: int, skill: float, learning_rate: float, steps: int = 8
) -> Path:
    """Run the agent for some steps, each a little better by ``skill``, and record them as a training run does."""
    learner = Learner(seed)
    engine = ScriptedEngine(tokenizer, learner)
    recorder = RunRecorder(run_dir)
    tasks = [{"id": id, "query": query, "answer": answer} for id, (query, _, answer) in TASKS.items()]
    (run_dir / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    job = {
        "workflow": "agent.py:agent",
        "model": "starter",
        "judge": "agent.py:judge",
        "task": {"reader": {"type": "jsonl", "path": str(run_dir / "tasks.jsonl")}},
        "rollout": {"group_size": MEMBERS},
        "train": {
            "steps": steps,
            "algorithm": {"type": "grpo"},
            "filters": [],
            "learning_rate": learning_rate,
        },
        "backbone": {"name": "local"},
        "run": {"seed": seed},
    }
    (run_dir / "job.yaml").write_text(yaml.safe_dump(job))
    keep_tokenizer(run_dir, tokenizer, Silent())
    portal = Portal()
    portal.submit(engine.start()).result(PATIENCE)
    with Capture(portal, strict=True) as capture:
        bench = Bench(engine, portal, capture, Chat(tokenizer, engine.model_type))
        for step in range(steps + 1):
            learner.skill, engine.version = min(0.97, 0.2 + skill * step), step
            if step % 4 == 0:
                _record(recorder, "validation", step, _episodes(bench, f"validation@{step}", 1))
            if step < steps:
                _record(recorder, "train", step + 1, _episodes(bench, f"{step + 1}", MEMBERS))
    portal.close()
    recorder.close()
    return run_dir


def judge_again(run_dir: Path, task: str) -> None:
    """Write what a later judge says who takes no answer to one task, as `ajet rejudge` writes it."""
    rows = [json.loads(line) for line in (run_dir / "episodes.jsonl").read_text().splitlines()]
    groups: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for row in rows:
        row["later"] = 0.0 if row["task"] == task else row["reward"]
        groups.setdefault((row["step"], row["task"]), []).append((row["reward"], row["later"]))
    with (run_dir / "rejudged.jsonl").open("w") as file:
        for row in rows:
            line = {"type": "episode", **{name: row[name] for name in ("id", "phase", "step", "task")}}
            if row["failure"]:
                line |= {
                    "recorded": {"failure": row["failure"]},
                    "unknown": "it failed before there was anything to judge",
                }
            else:
                means = [fmean(side) for side in zip(*groups[row["step"], row["task"]], strict=True)]
                line |= {"recorded": {"reward": row["reward"]}, "judged": {"reward": row["later"]}}
                line |= {"changed": row["later"] != row["reward"]}
                if row["phase"] == "train":
                    line |= {"push": [row["reward"] - means[0], row["later"] - means[1]]}
            file.write(json.dumps(line) + "\n")


def _episodes(bench: Bench, prefix: str, members: int) -> list[Episode]:
    plans = [
        Plan(
            f"{prefix}.{group}/{id}/{member}",
            f"{prefix}.{group}/{member}",
            Task(id, query, metadata={"answer": answer}),
            member,
            group,
        )
        for group, (id, (query, _, answer)) in enumerate(TASKS.items())
        for member in range(members)
    ]
    rollout = bench.rollout(agent, judge, group_size=members, concurrency=1)
    return asyncio.run(rollout.run(plans, lambda episode: None))


def _record(recorder: RunRecorder, phase: str, step: int, episodes: list[Episode]) -> None:
    for episode in episodes:
        recorder.episode(episode, phase=phase, step=step)
    judged = [episode.reward for episode in episodes if episode.reward is not None]
    metrics = {
        "episodes": len(episodes),
        "episodes_failed": sum(bool(episode.failure) for episode in episodes),
        "reward": fmean(judged),
        "accuracy": sum(judged) / len(episodes),
        "breaks": sum(len(episode.breaks) for episode in episodes),
        "calls_per_episode": fmean(len(episode.record.calls) for episode in episodes),
        "tokens_sampled": sum(
            len(call.generation.token_ids) for episode in episodes for call in episode.record.calls
        ),
    }
    recorder.metrics(phase, step, metrics)
