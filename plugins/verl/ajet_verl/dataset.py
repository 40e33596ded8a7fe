"""What verl's data loader goes over: places of our own plan, so that tasks and their order are the local backbone's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from torch.utils.data import Dataset

from ajet.interfaces.reader import tasks_of_step
from ajet.types import Task
from ajet_verl.spec import read_spec, recorder_of, to_text

STEPS = 1_000_000
"""Of the plan: more than any run has, also if groups that fail are replaced by later ones."""


@dataclass(frozen=True, slots=True)
class Place:
    """A group to run: its task, at a place (from 0) of a step (from 1) of the plan."""

    step: int
    place: int
    position: int
    """Of the group in the whole plan, from 0."""
    task: Task


class TaskDataset(Dataset[dict[str, Any]]):
    """Item i is the i-th group of the plan, a `Place` as text. ``data_files`` is ``train`` or ``validation``."""

    def __init__(self, data_files: str, config: Any, **_: Any) -> None:
        job = read_spec(config).open().config
        tasks, validation = ray.get(recorder_of(config).tasks.remote())
        self._tasks: list[Task] = tasks if data_files == "train" else validation
        self._train = data_files == "train"
        self._batch_size, self._seed = job.train.batch_size, job.run.seed
        self._step: tuple[int, list[Task]] | None = None

    def __len__(self) -> int:
        return STEPS * self._batch_size if self._train else 1  # validation goes by our own plan

    def __getitem__(self, position: int) -> dict[str, Any]:
        step, place = divmod(position, self._batch_size)
        if self._step is None or self._step[0] != step:
            self._step = step, tasks_of_step(self._tasks, step, self._batch_size, self._seed)
        return {"raw_prompt": "", "place": to_text(Place(step + 1, place, position, self._step[1][place]))}
