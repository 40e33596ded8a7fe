"""Run folders as the core's loop leaves them: scripted answers, a trainer that only counts, and everything else real."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest

import ajet
from ajet.capture.targets import Target
from ajet.interfaces.algorithm import Algorithm
from ajet.learning.algorithms import GRPO
from ajet.learning.batch import RolloutBatch
from ajet.learning.demonstrations import read_demonstrations
from ajet.learning.loop import BatchSource, Loop, train
from ajet.learning.rollouts import RolloutSource
from ajet.learning.settings import TrainSettings
from ajet.learning.steering import Steering
from ajet.learning.task_selector import Shuffled
from ajet.rollout.batch_record import Account, packed
from ajet.rollout.recorder import RunRecorder
from ajet.testing import ScriptedEngine
from ajet.types import Batch, Metrics, Task
from ajet_audit.files import Folder
from ajet_audit.steps import Audit

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
TASKS = [Task(f"t{i}", f"question {i}") for i in range(12)]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    },
}


async def ask(messages: Sequence[Any], **options: Any) -> Any:
    """One call; the assistant's message."""
    made = await CLIENT.chat.completions.create(model="m", messages=list(messages), **options)
    return made.choices[0].message


async def everything(task: Task) -> str:
    """A tool loop, a broken history, a prefill, two answers to one prompt, and a second agent."""
    messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": task.query}]
    with ajet.label(agent="solver"):
        called = await ask(messages, tools=[TOOL])
        messages.append(called)
        for call in called.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "7"})
        messages.append(await ask(messages, tools=[TOOL]))
        messages[1:1] = [{"role": "user", "content": "a hint"}]
        messages.append({"role": "user", "content": "sure?"})
        answer = await ask(messages, tools=[TOOL])
        await ask([*messages, {"role": "assistant", "content": "So it"}], tools=[TOOL])
        await CLIENT.chat.completions.create(model="m", messages=messages[:2], n=2)
    with ajet.label(agent="critic"):
        await ask([{"role": "user", "content": answer.content or ""}])
    return answer.content or ""


def says(request: Any, prompt: str) -> str:
    """Calls a tool that is offered, once; other answers depend on the prompt."""
    if "</tools>" in prompt and "<tool_response>" not in prompt:
        return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {len(prompt) % 7}}}}}\n</tool_call>'
    return f"it is {len(prompt)}"


def judged(task: Task, output: Any, episode: Any) -> ajet.JudgeOutput:
    """Members differ, and so do the critic's own rewards."""
    return ajet.JudgeOutput(reward=float(episode.member % 2), rewards={"critic": 0.5 * episode.member})


class Counting:
    """A trainer that trains nothing and counts the tokens that it was given."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine

    @property
    def version(self) -> int:
        return self.engine.version

    def update(self, batch: Batch) -> Metrics:
        given = [batch.samples[i] for mini in batch.mini_batches for i in mini]
        live = sum(int(s.mask.sum()) for s in given if batch.has_credit(s))
        return {
            "tokens_trained": live,
            "tokens_zero_advantage": sum(int(s.mask.sum()) for s in given) - live,
            "logprob_diff_mean": 0.0,
        }

    async def publish(self) -> int:
        self.engine.version += 1
        return self.engine.version

    def save(self, path: Path) -> None:
        path.mkdir()
        (path / "model.safetensors").write_bytes(bytes(range(99)))


class Slow:
    """Publishes when the batch that was begun last is complete, as a trainer does whose update takes longer than episodes."""

    def __init__(self, source: BatchSource, trainer: Counting) -> None:
        self._source, self._trainer = source, trainer
        self._last: asyncio.Future[Any] | None = None

    async def batch(self, step: int, version: int) -> RolloutBatch:
        self._last = asyncio.ensure_future(self._source.batch(step, version))
        return await self._last

    async def publish(self) -> int:
        if self._last:
            await asyncio.wait([self._last])
        return await self._trainer.publish()


class WithoutTokens(RunRecorder):
    """Records as the backbone verl does, whose trainer does not read token ids."""

    def batch(self, step: int, batch: Batch, account: Account) -> None:
        self.packed_batch(step, packed(step, batch, account, with_tokens=False))


@dataclass
class Runs:
    """Makes run folders."""

    bench: Any
    engine: ScriptedEngine
    says: list[Any]
    """What the model says; the last one counts."""
    folder: Path
    tokenizer: Path

    def run(
        self,
        workflow: Any = everything,
        judge: Any = judged,
        answers: Any = says,
        *,
        algorithm: Algorithm | None = None,
        filters: Sequence[Any] = (),
        target_keys: Mapping[str, Mapping[str, Any]] | None = None,
        rollout: Mapping[str, Any] | None = None,
        first_step: int = 1,
        tasks: int = len(TASKS),
        name: str = "run",
        backbone: str = "local",
        mode: str | None = None,
        **settings: Any,
    ) -> Path:
        """Train some steps; the settings are those of ``train``."""
        algorithm, where = algorithm or GRPO(), self.folder / name
        given = {"group_size": 2, **(rollout or {})}
        train_settings = TrainSettings(
            **{"steps": 2, "batch_size": 2, "save_every": 1, "keep_last": 9, **settings},
            algorithm={"type": algorithm.name, **algorithm.model_dump(exclude_defaults=True)},
            filters=[{"type": f.name, **f.model_dump(exclude_defaults=True)} for f in filters],
        )
        chosen = [
            Target(
                target, tuple(keys["agents"]), trained=target in (train_settings.targets or target_keys or ())
            )
            for target, keys in (target_keys or {}).items()
        ] or [Target("policy")]
        self.says.append(answers)
        engine = self.engine
        engine.version = first_step - 1
        whole = self.bench.rollout(workflow, judge, **given)
        answerer = replace(whole.runner.answerer, targets=chosen)
        whole = replace(whole, runner=replace(whole.runner, answerer=answerer))
        where.mkdir(exist_ok=True)
        job = {
            "train": train_settings.model_dump(mode="json"),
            "rollout": {"oversample": 1.0, **given},
            "targets": target_keys or {},
            "run": {"record_batches": True},
            "backbone": {"name": backbone, "mode": mode},
        }
        (where / "settings.json").write_text(json.dumps(job))
        shutil.copytree(self.tokenizer, where / "tokenizer", dirs_exist_ok=True)
        make = WithoutTokens if backbone == "verl" else RunRecorder
        with closing(make(where, batches=True)) as recorder:
            if first_step > 1:
                recorder.supersede(first_step, {})
            trainer: Any = Counting(engine)
            steer, steering = whole.settings.steer, None
            if steer:
                shown = read_demonstrations(steer.demonstrations) if steer.demonstrations else ()
                steering = Steering(
                    steer,
                    recorder,
                    batch_size=train_settings.batch_size,
                    group_size=whole.settings.roots,
                    seed=0,
                    demonstrations=shown,
                )
            source = RolloutSource(
                rollout=whole,
                selector=Shuffled(TASKS[:tasks], train_settings.batch_size, 0),
                algorithm=algorithm,
                settings=train_settings,
                seed=0,
                recorder=recorder,
                on_episode=lambda *_: None,
                filters=filters,
                adapters=[target for target, keys in (target_keys or {}).items() if keys.get("lora")],
                steering=steering,
            )
            slow = Slow(source, trainer)
            loop = Loop(
                trainer=trainer,
                source=slow,
                recorder=recorder,
                settings=train_settings,
                publish=slow.publish,
                validate=None,
                validate_every=0,
                on_step=lambda *_: None,
            )
            asyncio.run(train(loop, first_step))
        return where


@pytest.fixture(scope="session")
def saved_tokenizer(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def runs(bench: Callable[..., Any], tokenizer: Any, saved_tokenizer: Path, tmp_path: Path) -> Runs:
    told: list[Any] = []
    engine = ScriptedEngine(tokenizer, lambda request, prompt: told[-1](request, prompt))
    return Runs(bench(engine), engine, told, tmp_path, saved_tokenizer)


def audited(folder: Path) -> Audit:
    """The audit of a run folder."""
    return Audit(Folder(folder)).run()
