"""Tasks from the library reasoning-gym: a hundred families of puzzles with verifiable answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from ajet import ConfigError, Task
from ajet.interfaces.helpers import nearest
from ajet.interfaces.reader import SelectingReader
from ajet_readers.extras import needs

MOST = 1_000_000
"""Maximum tasks per seed. The library draws task i of seed s from s + i, so neighbouring seeds would share all but one
of their tasks. Our seeds are therefore multiplied by this number."""


class ReasoningGym(SelectingReader):
    """Generated puzzles of one family of reasoning-gym (countdown, knights_knaves, …).

    The answer is one correct answer. If a puzzle has several, score with the library's ``score_answer``, which takes
    the task's ``metadata["entry"]``. Train and validate on different seeds.
    """

    name = "reasoning_gym"

    dataset: str = Field(description="The family's name.")
    size: int = Field(500, ge=1, le=MOST, description="Number of tasks.")
    seed: int = Field(0, ge=0, le=4000, description="Random seed; different seeds have no task in common.")
    options: dict[str, Any] = Field({}, description="Settings of the family: sizes, difficulty, …")

    def source(self) -> Iterator[Task]:
        """The family's entries. Raises ConfigError for an unknown family, or options that it does not accept."""
        library = needs("reasoning_gym", "reasoning_gym")
        families = needs("reasoning_gym.factory", "reasoning_gym").DATASETS
        if self.dataset not in families:
            raise ConfigError(
                f"dataset {self.dataset!r}: reasoning-gym has no such family{nearest(self.dataset, families)}."
            )
        try:
            made = library.create_dataset(
                self.dataset, size=self.size, seed=self.seed * MOST, **_tuples(self.options)
            )
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(
                f"dataset {self.dataset}: does not accept the options {self.options} ({error})."
            ) from None
        for index in range(self.size):
            entry = _plain(made[index])
            yield Task(
                id=f"{self.dataset}-{self.seed}-{index}",
                query=entry["question"],
                metadata={"answer": entry["answer"], "entry": entry},
            )


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    """YAML has only lists, and some families require tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def _plain(entry: Any) -> dict[str, Any]:
    """An entry as JSON values: tasks are written to journals and sent to other processes."""
    plain: dict[str, Any] = json.loads(json.dumps(entry, default=_as_json))
    return plain


def _as_json(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
