"""The real conductor, runners, recorder and queue on a real Ray cluster, with answering actors in the place of vLLM's servers and
this process in the place of verl's trainer."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
import yaml
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from ajet.job.job import Job
from ajet.job.layers import job_layers
from ajet.job.prepare import prepare
from ajet_local.starter.calculator import Calculator
from ajet_verl.alignment import RunPaths, compose
from ajet_verl.cluster import NAMESPACE, end_ray, start_ray
from ajet_verl.dataset import PlannedGroup, TaskDataset
from ajet_verl.lengths import architecture
from ajet_verl.manager import EpisodeManager
from ajet_verl.plugin import Verl
from ajet_verl.recorder import Recorder, from_text, to_text
from ajet_verl.rows import PARTITION
from ajet_verl.spec import JobSpec

CONTEXT = 4096
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's processes cannot import this file


class Answers:
    """Answers calls like one vLLM server under load: a drawn number of tokens, each of which takes ``seconds``."""

    def __init__(self, tokens: Sequence[int], mean: float, seconds: float, seed: int) -> None:
        self._tokens, self._mean, self._seconds = list(tokens), mean, seconds
        self._draw = np.random.default_rng(seed)
        self._calls = self._sampled = 0

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """The next answer, which ends with the last of the stop tokens."""
        drawn = int(self._draw.gamma(4.0, self._mean / 4)) + 2
        length = min(drawn, sampling_params["max_tokens"])
        await asyncio.sleep(length * self._seconds)
        start = self._calls % len(self._tokens)
        ids = [self._tokens[(start + i) % len(self._tokens)] for i in range(length - 1)]
        ids.append(sampling_params["stop_token_ids"][-1])
        self._calls += 1
        self._sampled += length
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * length, extra_fields={"global_steps": 0})

    def counts(self) -> tuple[int, int]:
        """Calls that were answered, and their sampled tokens."""
        return self._calls, self._sampled


@dataclass
class RolloutCluster:
    """What a test or a benchmark uses of it."""

    job: Job
    config: Any
    run_dir: Path
    recorder: Any
    client: Any
    servers: Sequence[Any]
    balancer: Any
    manager: EpisodeManager
    groups: Any
    started: list[str] = field(default_factory=list)

    def start(self, count: int) -> list[str]:
        """Start the next groups of the plan, as verl's trainer does; returns their keys in the queue."""
        first = len(self.started)
        uids = [f"u{first + i}" for i in range(count)]
        self.started += uids
        planned = [self.groups[first + i]["planned_group"] for i in range(count)]
        for uid, group in zip(uids, planned, strict=True):
            plan: PlannedGroup = from_text(group)
            tag = {"is_prompt": True, "status": "pending", "global_steps": plan.step}
            tq.kv_put(key=uid, partition_id=PARTITION, tag=tag)
        self.manager.generate_sequences({"uid": uids, "planned_group": planned})
        return uids

    def wait(self, uids: Sequence[str], seconds: float, poll: float = 0.25) -> dict[str, dict[str, Any]]:
        """The queue's keys and tags once these groups have ended. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while True:
            keys = self.queue()
            if all(keys.get(uid, {}).get("status") in ("finished", "failure") for uid in uids):
                return keys
            if time.monotonic() > deadline:
                left = [uid for uid in uids if keys.get(uid, {}).get("status") == "running"]
                raise TimeoutError(f"{len(left)} groups have not ended: {left[:5]}, {self.messages()}")
            time.sleep(poll)

    def restart(self) -> Any:
        """As a resumed run: another recorder in the same run folder and another conductor, for the checkpoint that the conductor
        has written into `checkpoint`. Rows stay in the queue. Returns the new recorder."""
        self.manager.close()
        name = "recorder of the resumed run"
        ray.get(self.recorder.close.remote())
        self.recorder = _recorder(self.job, self.run_dir, name)
        self.config.ajet.recorder = name
        self.config.trainer.resume_from_path = str(self.checkpoint)
        self.manager = EpisodeManager.create(self.config, self.client)
        return self.recorder

    @property
    def checkpoint(self) -> Path:
        """A folder in the place of verl's checkpoint."""
        folder = self.run_dir / "checkpoint"
        folder.mkdir(exist_ok=True)
        return folder

    def queue(self) -> dict[str, dict[str, Any]]:
        """The queue's keys and tags."""
        found: dict[str, dict[str, Any]] = (tq.kv_list() or {}).get(PARTITION, {})
        return found

    def clear(self, keys: Sequence[str]) -> None:
        """Remove keys from the queue, as verl's trainer does after a step."""
        tq.kv_clear(keys=list(keys), partition_id=PARTITION)

    def messages(self) -> list[str]:
        """What the recorder was told for the user since the last call."""
        return [
            event.text for event in ray.get(self.recorder.events.remote()) if event.kind in ("say", "fail")
        ]

    def journal(self) -> list[dict[str, Any]]:
        """The journal's lines."""
        path = self.run_dir / "episodes.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


@contextmanager
def rollout_cluster(
    folder: Path,
    sections: Mapping[str, Any],
    *,
    servers: int = 1,
    mean: float = 20,
    seconds: float = 0.001,
) -> Iterator[RolloutCluster]:
    """A cluster for the job of ``sections``, whose files are in ``folder``. Answers have ``mean`` tokens, each of which takes
    ``seconds``."""
    model = make_model(folder / "model")
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"model": str(model), **sections}))
    job = prepare(job_layers(path))
    assert isinstance(job.backbone, Verl)
    run_dir = folder / "run"
    run_dir.mkdir(exist_ok=True)
    start_ray(
        address="local",  # else Ray joins a cluster that it finds on this machine
        num_cpus=8,
        namespace=NAMESPACE,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=500_000_000,
    )
    try:
        recorder = _recorder(job, run_dir, "recorder")
        node = {
            "spec": to_text(JobSpec.of(job)),
            "reference": None,
            "run_dir": str(run_dir),
            "recorder": "recorder",
            "runners": job.backbone.runners,
        }
        paths = RunPaths(str(model), str(run_dir), None, node, architecture(str(model)))
        config = compose(job, job.backbone, paths)
        tq.init(config.transfer_queue)
        tokens = Calculator().tokenizer(0)[0].encode("the sum of 12 and 30 is 42 so it is right")
        actors = {
            f"server{n}": ray.remote(Answers)
            .options(num_cpus=0, max_concurrency=100_000)
            .remote(tokens, mean, seconds, n)
            for n in range(servers)
        }
        balancer = ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0).remote(servers=actors)
        client = FullyAsyncLLMServerClient(config, balancer)
        manager = EpisodeManager.create(config, client)
        groups = TaskDataset("train", config)
        cluster = RolloutCluster(
            job, config, run_dir, recorder, client, list(actors.values()), balancer, manager, groups
        )
        yield cluster
        cluster.manager.close()
    finally:
        tq.close()
        end_ray()


def _recorder(job: Job, run_dir: Path, name: str) -> Any:
    actor = ray.remote(Recorder).options(num_cpus=0, name=name)
    return actor.remote(str(run_dir), job.tasks, job.validation, 1, False)


def make_model(folder: Path) -> Path:
    """The folder of a small model without weights, which nothing here needs."""
    recipe = Calculator()
    tokenizer, _ = recipe.tokenizer(0)
    shape = recipe.architecture(tokenizer)
    shape.max_position_embeddings, shape.architectures = CONTEXT, ["Qwen3ForCausalLM"]
    shape.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
