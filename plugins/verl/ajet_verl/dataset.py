"""The data set of verl's data loader: the groups of AgentJet's plan, so tasks and their order are as on the local
backbone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from torch.utils.data import Dataset

from ajet import Task
from ajet.interfaces.reader import tasks_of_step
from ajet_verl.recorder import read_spec, recorder_of, to_text

STEPS = 1_000_000
"""Length of the plan: more steps than any run needs, even if later groups replace failed ones."""


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group to run: its task and its position in the plan."""

    step: int
    """From 1."""
    index: int
    """Position in the step, from 0."""
    position: int
    """Position in the whole plan, from 0."""
    task: Task


class TaskDataset(Dataset[dict[str, Any]]):
    """Item i is the i-th group of the plan, a `PlannedGroup` as text. ``data_files`` is ``train`` or ``validation``."""

    def __init__(self, data_files: str, config: Any, **_: Any) -> None:
        job = read_spec(config).open().config
        tasks, validation = ray.get(recorder_of(config).tasks.remote())
        self._tasks: list[Task] = tasks if data_files == "train" else validation
        self._train = data_files == "train"
        self._batch_size, self._seed = job.train.batch_size, job.run.seed
        self._step: tuple[int, list[Task]] | None = None

    def __len__(self) -> int:
        return STEPS * self._batch_size if self._train else 1  # validation does not use verl's loader

    def __getitem__(self, position: int) -> dict[str, Any]:
        step, index = divmod(position, self._batch_size)
        if self._step is None or self._step[0] != step:
            self._step = step, tasks_of_step(self._tasks, step, self._batch_size, self._seed)
        group = PlannedGroup(step + 1, index, position, self._step[1][index])
        return {"raw_prompt": "", "planned_group": to_text(group)}
