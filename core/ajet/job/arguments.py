"""The keys of a job that have an argument of their own: ``seed=3`` in Python and ``--seed 3`` on the command line set ``run.seed``.

Both edges and their errors take an argument's key and help from this table. It imports nothing, so that ``ajet --help`` is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Argument:
    """One row."""

    name: str
    key: str
    """Dotted; empty where it follows from the job which key it is."""
    help: str
    metavar: str | None = None
    """What the help of the command line writes for the value."""

    @property
    def source(self) -> str:
        """Where a value comes from that the argument gave, as Python writes it."""
        return f"{self.name}="


def _by_name(*arguments: Argument) -> dict[str, Argument]:
    return {argument.name: argument for argument in arguments}


ARGUMENTS: Mapping[str, Argument] = _by_name(
    Argument(
        "workflow",
        "workflow",
        "The agent: pkg.module:Name, path/to/file.py:Name or cmd:COMMAND; in a job also {type: NAME, …}.",
    ),
    Argument("tasks", "task.reader", "Tasks, one JSON object per line (.jsonl, .jsonl.gz)."),
    Argument("validation", "task.validation", "Validation tasks, in the same format."),
    Argument("judge", "judge", "A judge by name, or a function pkg.module:name."),
    Argument("model", "model", "Folder, Hugging Face id, or a recipe: `starter`, or recipe.py:Name."),
    Argument(
        "backbone",
        "backbone",
        "The backbone: debug (no training), local, or another that `ajet plugins` lists.",
    ),
    Argument("steps", "train.steps", "Training steps; 0 only validates."),
    Argument("learning_rate", "train.learning_rate", "AdamW learning rate."),
    Argument("episodes", "eval.episodes", "Maximum number of validation tasks."),
    Argument("repeats", "eval.repeats", "Episodes of each validation task."),
    Argument("seed", "run.seed", "Random seed for task order, sampling and recipes."),
    Argument("deterministic", "run.deterministic", "Bit-equal runs, by fixed scheduling of batches."),
    Argument("memory_limit", "", "Maximum memory of the local backbone, such as 2GiB.", "SIZE"),
    Argument("run_dir", "run.dir", "Folder of run folders, relative to the working directory."),
    Argument("name", "run.name", "Name of the run, which ends the name of its folder."),
    Argument("tags", "run.tags", "Tags of the run, by which lists of runs are filtered.", "TAG"),
)
TUNING: Mapping[str, Argument] = _by_name(
    Argument("reflection", "backbone.prompts.reflection", "The model that proposes texts."),
    Argument("answers", "backbone.prompts.answers", "The model that answers in place of the job's."),
    Argument(
        "reflections", "backbone.prompts.reflections", "Maximum calls of the model that proposes texts."
    ),
    Argument("episodes", "backbone.prompts.episodes", "Maximum number of episodes."),
    Argument("cost", "backbone.prompts.cost", "Maximum cost, in the currency of the prices in the job."),
)
"""Of `tune_prompt`, besides."""
SET = "set="
"""Where a value comes from that names its key itself."""


def giving(key: str) -> Argument | None:
    """The argument that sets a key, or what a key is part of."""
    rows = (*TUNING.values(), *ARGUMENTS.values())
    return next((row for row in rows if row.key and f"{key}.".startswith(f"{row.key}.")), None)
