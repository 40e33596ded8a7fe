"""`ajet.tune_prompt`: what `ajet tune-prompt` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ajet import Run
from ajet.api.calling import anywhere, awaitable
from ajet.api.jobs import AnyChatModel, AnyJudge, AnyPath, AnyTasks, prepared
from ajet.interfaces.prompts import read_prompts
from ajet.job.arguments import ARGUMENTS, TUNING
from ajet.job.config import Layers
from ajet.runs.jobs import Given, job_of
from ajet.runs.restarts import run_job


class TunedPrompts(Run):
    """A search for better texts: its run folder, and what it found. ``before`` and ``after`` are the figures of the first
    and of the best texts."""

    @property
    def file(self) -> Path:
        """The file of the best texts, for `ajet.run(set={"prompts": …})` or the variable ``AJET_PROMPTS``."""
        return self.dir / "prompts.yaml"

    @cached_property
    def texts(self) -> dict[str, str]:
        """The best texts by name."""
        return read_prompts(self.file)


@anywhere
def tune_prompt(
    job: AnyPath | None = None,
    *,
    workflow: object | None = None,
    tasks: AnyTasks | None = None,
    validation: AnyTasks | None = None,
    judge: AnyJudge | None = None,
    model: AnyPath | None = None,
    reflection: AnyChatModel | None = None,
    answers: AnyChatModel | None = None,
    reflections: int | None = None,
    episodes: int | None = None,
    cost: float | None = None,
    seed: int | None = None,
    run_dir: AnyPath | None = None,
    resume: AnyPath | None = None,
    services: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> TunedPrompts:
    """Search better texts for the places where a workflow calls `ajet.prompt`, as `ajet tune-prompt` does.

    ``reflection`` is the chat model that proposes texts, ``answers`` one that answers the agent in place of the job's model.
    ``reflections``, ``episodes`` and ``cost`` limit the search. A search that was killed goes on with ``resume``, its run
    folder, and repeats no reply that was paid for. All else is as in `ajet.run`. Raises AjetError.
    """
    given = locals()
    with prepared(tune_layers(given), given) as (ready, _):
        return TunedPrompts(run_job(ready).run_dir)


atune_prompt = awaitable(tune_prompt)


def tune_layers(given: Given) -> Layers:
    """The job whose texts to tune, or the search to go on with. Raises ConfigError."""
    layers = job_of(given, table={**ARGUMENTS, **TUNING})
    layers.set("backbone", "prompts", "tune-prompt", Path.cwd())
    return layers
