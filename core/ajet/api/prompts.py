"""`tune_prompt`: what `ajet tune-prompt` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ajet.api.calling import anywhere, awaitable
from ajet.api.jobs import AnyJudge, AnyPath, AnyTasks, prepared
from ajet.api.results import Run
from ajet.interfaces.engine import ChatModelPlugin
from ajet.interfaces.prompts import read_prompts
from ajet.runs.jobs import tune_layers
from ajet.runs.restarts import run_job

AnyChatModel = Mapping[str, Any] | ChatModelPlugin
"""``{"type": "openai", "base_url": …, "model": …}``, or a chat model."""


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


def _tune_prompt(
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
    folder, and repeats no reply that was paid for. All else is as in `run`. Needs the plugin ajet-plugin-prompts. Raises
    AjetError.
    """
    given = locals()
    with prepared(tune_layers(given), given) as (ready, _):
        return TunedPrompts(run_job(ready).run_dir)


tune_prompt = anywhere(_tune_prompt)
atune_prompt = awaitable(_tune_prompt)
