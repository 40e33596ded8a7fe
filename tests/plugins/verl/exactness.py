"""One fixed batch through verl's trainer, queue and workers: what they receive, and the gradients that come of it.

Run by test_exactness.py in a process of its own, as a driver of Ray. Everything is verl's own but vLLM, which has nothing to do
here: the rows are put into the queue as the conductor puts them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.prepare import prepare
from ajet.learning.batch import TokenSelection
from ajet.rollout.episode import Episode, Plan
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import Generation, Task, WorkflowOutput
from ajet_verl.spec import JobSpec

GROUP = 3
TIMELINES = (1, 3, 9)
"""Of the members of each group."""
WAYS = ("rows", "trees")
"""How verl's workers compute the batch."""


def episodes(experts: tuple[int, int] | None = None, targets: Sequence[str] = ("policy",)) -> list[Episode]:
    """Two groups of members with 1, 3 and 9 timelines, of which the first has two calls; ratios on both sides of the clip. The
    prompts of a group begin with the same tokens. ``experts``: each call was routed, to the experts that are its number, by
    so many layers to so many of them. The timelines of a member are of ``targets`` in turn."""
    return [_episode(group, member, experts, targets) for group in range(2) for member in range(GROUP)]


def _episode(group: int, member: int, experts: tuple[int, int] | None, targets: Sequence[str]) -> Episode:
    shared = np.random.default_rng(group).integers(20, 200, 6)
    draw = np.random.default_rng([group, member])
    record = EpisodeRecord()
    number = 0
    for line in range(TIMELINES[member]):
        target = targets[line % len(targets)]
        tree = record.tree(target)
        end = tree.extend(tree.root, as_ids(shared))
        for _ in range(2 if line == 0 else 1):
            prompt = tree.extend(end, as_ids(draw.integers(20, 200, draw.integers(2, 9))))
            ids = as_ids(draw.integers(20, 200, draw.integers(1, 12)))
            sampled = np.log(draw.uniform(1e-4, 2e-2, len(ids))).astype(np.float32)
            sampled[::3] -= 14  # whatever the model makes of random tokens, some ratios are above the cap
            end = tree.extend(prompt, ids)
            routed = np.full((end.length - 1, *experts), number, np.int16) if experts else None
            generation = Generation(ids, sampled, np.zeros(len(ids), np.int32), "stop", routed)
            record.add(Call(number, "a", target, target, prompt, end, generation, 1.0, True))
            number += 1
    record.close()
    plan = Plan(f"1.{group}/t{group}/{member}", "", Task(f"t{group}"), member, group)
    reward = float(draw.uniform())
    return Episode(plan, 0, WorkflowOutput(), record, Counter(), reward=reward)


def job_of(path: Path) -> Job:
    """The job of the test's file."""
    layers = Layers()
    layers.add(yaml.safe_load(path.read_text()), "test", path.parent)
    return prepare(layers)


@dataclass(frozen=True)
class Recording:
    """A loss that writes down what it receives, and the gradients of each optimizer step in its process."""

    loss: Any
    folder: str

    def __call__(self, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        import torch.distributed
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        folder = Path(self.folder)
        rank = torch.distributed.get_rank()
        if not (folder / f"hooked-{rank}").exists():
            (folder / f"hooked-{rank}").touch()
            register_optimizer_step_pre_hook(lambda optimizer, *_: keep_gradients(optimizer, folder))
        names = ("input_ids", "responses", "response_mask", "advantages", "weights", "rollout_log_probs")
        rows = [
            {name: data[name][i].clone() for name in names} for i in range(len(data["input_ids"].unbind()))
        ]
        torch.save(rows, folder / f"received-{rank}-{len(list(folder.glob(f'received-{rank}-*')))}.pt")
        return self.loss(model_output=model_output, data=data, dp_group=dp_group)


def keep_gradients(optimizer: Any, folder: Path) -> None:
    """Write the gradients of all trained parameters, whole, in their order."""
    found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    whole = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in found]  # of all ranks: a collective
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    if rank == 0:
        torch.save(
            [g.clone() for g in whole], folder / f"gradients-{len(list(folder.glob('gradients-*')))}.pt"
        )


def main(job_file: str, folder: str) -> None:
    """Train one step of the fixed batch with verl in each of `WAYS`; leaves what `Recording` writes, and ``metrics.pt``, in a
    folder of that name."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    from ajet_verl import lora
    from ajet_verl.alignment import RunPaths, compose
    from ajet_verl.cluster import NAMESPACE, end_ray, start_ray
    from ajet_verl.credit import Credit, Learned
    from ajet_verl.plugin import Verl
    from ajet_verl.recorder import Recorder, to_text
    from ajet_verl.rows import group_rows
    from ajet_verl.trainer import Reference

    job = job_of(Path(job_file))
    assert isinstance(job.backbone, Verl)
    start_ray(
        num_cpus=8, num_gpus=2, namespace=NAMESPACE, include_dashboard=False, object_store_memory=200_000_000
    )
    recorder = ray.remote(Recorder).options(name="recorder").remote(folder, job.tasks, [], 1, False)
    ray.get(recorder.tasks.remote())
    node = {"spec": to_text(JobSpec.of(job)), "run_dir": folder, "recorder": "recorder", "runners": 1}
    node["reference"] = job.config.train.reference
    adapters = lora.folder(job.model, job)
    config = compose(job, job.backbone, RunPaths(lora.base(job.model), folder, None, node, adapters=adapters))
    OmegaConf.resolve(config)
    config.transfer_queue.enable = True
    config.actor_rollout_ref.rollout.nnodes = 1  # verl asks for it where the servers would be elsewhere
    tq.init(config.transfer_queue)

    class Trainer(Credit, Reference, get_trainer_cls("sync")):  # type: ignore[misc]
        _enable_hybrid_replicas = False  # verl's own switch: workers without inference servers

        def on_init_end(self) -> None:
            """There are no servers to bring weights to."""

    trainer = Trainer(config)
    trainer.init()
    trainer.actor_rollout_wg.set_loss_fn(Recording(trainer.loss, folder))
    select = TokenSelection(seed=str(job.config.run.seed))
    trainer.global_steps, trainer.curr_step_profile = 1, False
    choices = {"rows": replace(trainer.trees, flops=None), "trees": replace(trainer.trees, wanted=True)}
    for way in WAYS:
        trainer.trees, trainer.learned = choices[way], Learned()
        for group in range(2):
            planned = episodes(targets=list(job.config.targets) or ["policy"])
            found = [select.learnable(e) for e in planned if e.plan.group == group]
            members = [replace(member, group=group) for member in found if member]
            keys, fields, tags = group_rows(f"{way}{group}", members, 1.0)
            tags = [{**tag, "global_steps": 1} for tag in tags]
            values = list_of_dict_to_tensordict(fields)
            tq.kv_batch_put(keys=keys, partition_id="train", fields=values, tags=tags)
            done = {"is_prompt": True, "status": "finished", "global_steps": 1}
            tq.kv_batch_put(keys=[f"{way}{group}"], partition_id="train", tags=[done])
        batch = trainer._step_once({}, {}, 2)
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        own = Path(folder) / way
        own.mkdir()
        torch.save({"rows": len(batch), "metrics": trainer.learned.metrics()}, own / "metrics.pt")
        for file in [*Path(folder).glob("received-*"), *Path(folder).glob("gradients-*")]:
            file.rename(own / file.name)
    tq.close()
    end_ray()


if __name__ == "__main__":
    main(*sys.argv[1:])
