"""`select_model`: what `ajet eval --models` does."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ajet import ChatModelPlugin, Run
from ajet.api.calling import anywhere, awaitable
from ajet.api.jobs import AnyChatModel, AnyJudge, AnyPath, AnyTasks, prepared
from ajet.job.config import Layers
from ajet.runs.jobs import evaluate_layers
from ajet_selection.comparison import (
    Comparison,
    ModelFigures,
    RewardDifference,
    describe_comparison,
    read_comparison,
)
from ajet_selection.selection import (
    ModelCandidate,
    chat_candidate,
    checked,
    compare_models,
    named_candidates,
    read_models,
    resumed_candidates,
)

AnyModel = AnyPath | AnyChatModel
"""A folder, a Hugging Face id, a recipe, a name of the job's ``models``, or a chat model."""


class Selection:
    """Models that were compared on the same tasks, and the run folder of the comparison."""

    def __init__(self, dir: Path) -> None:
        self.dir = dir

    @property
    def best(self) -> str | None:
        """The name of the model with the highest mean reward; None if all failed."""
        return self.comparison.best

    @property
    def is_significant(self) -> bool:
        """Whether the best differs significantly from every other model that did not fail."""
        return self.comparison.is_significant

    @property
    def models(self) -> dict[str, ModelFigures]:
        """The figures of each model by its name, the best first: ``reward``, ``seconds``, ``tokens`` and ``cost`` of an
        episode, each with ``mean`` and ``standard_error``; ``error`` says why a model failed."""
        return {model.name: model for model in self.comparison.models}

    @property
    def differences(self) -> dict[str, RewardDifference]:
        """By how much the best is better than each other model: ``reward`` and ``p_value``."""
        return {difference.other: difference for difference in self.comparison.differences}

    @cached_property
    def comparison(self) -> Comparison:
        """All of this, as it is read from the run folder."""
        return read_comparison(self.dir)

    def run(self, name: str) -> Run:
        """The run folder of one model, with its episodes. Raises KeyError for an unknown name."""
        return Run(self.dir / self._folders[name])

    def table(self) -> str:
        """The text that `ajet eval --models` prints."""
        return describe_comparison(self.comparison)

    @cached_property
    def _folders(self) -> dict[str, str]:
        return {line["name"]: line["folder"] for line in read_models(self.dir)}

    def __repr__(self) -> str:
        outcome = f"best {self.best}" if self.is_significant else "no difference"
        return f"<{type(self).__name__} of {len(self.models)} models, {outcome}>"


@anywhere
def select_model(
    job: AnyPath | None = None,
    *,
    models: Sequence[AnyModel] | Mapping[str, AnyModel] = (),
    workflow: object | None = None,
    tasks: AnyTasks | None = None,
    judge: AnyJudge | None = None,
    greedy: bool = False,
    episodes: int | None = None,
    repeats: int | None = None,
    seed: int | None = None,
    memory_limit: str | None = None,
    run_dir: AnyPath | None = None,
    resume: AnyPath | None = None,
    services: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Selection:
    """Compare models on the same tasks, with the same judge and seeds, as `ajet eval --models` does.

    ``models`` are folders, Hugging Face ids, recipes, names of the job's ``models`` or chat models, or a mapping that gives
    them names. ``episodes`` is the most tasks to use, ``repeats`` the episodes of each. A model that fails is part of the
    result, with its error. ``resume`` is the run folder of a comparison to go on with: finished episodes are not run again.
    All else is as in `evaluate`. Raises AjetError.
    """
    given = locals()
    layers = evaluate_layers(given, several=True)
    with prepared(layers, given) as (ready, lines):
        if resume is not None and not models:
            candidates = resumed_candidates(layers, Path(resume).expanduser().resolve())
        else:
            candidates = checked(_candidates(layers, models), "models=")
        try:
            return Selection(compare_models(ready, candidates))
        except KeyboardInterrupt:
            folder = lines.run_dir
            where = f"; resume with: ajet eval --resume {shlex.quote(str(folder))}" if folder else ""
            raise KeyboardInterrupt(f"interrupted{where}") from None


def _candidates(layers: Layers, models: Sequence[AnyModel] | Mapping[str, AnyModel]) -> list[ModelCandidate]:
    named = models if isinstance(models, Mapping) else {_name(model): model for model in models}
    if len(named) < len(models):  # `checked` says which
        return [ModelCandidate(_name(model)) for model in models]
    return [_candidate(layers, name, model) for name, model in named.items()]


def _candidate(layers: Layers, name: str, model: AnyModel) -> ModelCandidate:
    if isinstance(model, ChatModelPlugin):
        spec = {"type": model.name, **model.model_dump(mode="json", exclude_unset=True)}
        return ModelCandidate(name, answers=model, spec=spec)
    if isinstance(model, Mapping):
        return chat_candidate(layers, name, model, f"models= {name}")
    (candidate,) = named_candidates(layers, [os.fspath(model)], "models=")
    return ModelCandidate(name, candidate.model, candidate.answers, candidate.spec)


def _name(model: AnyModel) -> str:
    """The name of a model to which the caller gives none."""
    if isinstance(model, ChatModelPlugin):
        return str(getattr(model, "model", model.name))
    if isinstance(model, Mapping):
        return str(model.get("model", model.get("type")))
    return os.fspath(model)


aselect_model = awaitable(select_model)
