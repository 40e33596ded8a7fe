"""Every hook of AgentJet. A plugin is a module (or object) with some of these functions, marked
``@ajet.hookimpl`` and named by an entry point of group ``ajet``:

    [project.entry-points.ajet]
    my_judges = "my_package"

`ajet_plugins` is called once, at start. A class has its kind from its base class, and its own ``name``.

Commands of the `ajet` program are entry points of another group, ``ajet.commands``: ``name = "my_package.commands:run"``,
where ``run`` is a function with typer's annotations or a `typer.Typer`. `ajet --help` imports that module: keep it light.
A function of the arguments in the group ``ajet.options`` is called if they begin with an option that `ajet` does not have, or `ajet
run` has one of another program; if it knows that option, it runs what is meant and raises SystemExit, or raises ConfigError, which
says what to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from ajet.capture.hook import Capture
    from ajet.interfaces.base import Plugin
    from ajet.interfaces.events import Attempt, CheckpointSaved, EpisodeEnd, RunEnd, RunStart, StepEnd
    from ajet.interfaces.judge import Judge
    from ajet.interfaces.source import EpisodeSource
    from ajet.interfaces.wire import Wire
    from ajet.interfaces.workflow import LoadedWorkflow
    from ajet.types import Finding

hookspec = pluggy.HookspecMarker("ajet")
hookimpl = pluggy.HookimplMarker("ajet")

# ------------------------------------------------------------------ classes, chosen by `type: name`


@hookspec
def ajet_plugins() -> Iterable[type[Plugin]]:  # type: ignore[empty-body]
    """Classes that a job chooses by name, each a subclass of `ajet.Reader`, `ajet.Judge` or another base class of a kind."""


# ------------------------------------------------------------------ functions


@hookspec
def ajet_handles() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Explicit model handles: ``{"as_openai_client": f}`` makes ``tuner.as_openai_client(...)`` call
    ``f(tuner, ...)``."""


@hookspec
def ajet_wires() -> Iterable[Wire]:  # type: ignore[empty-body]
    """HTTP formats of LLM requests beside the built-in ones, each an `ajet.interfaces.wire.Wire`. Of wires that fit a URL's path
    the one with the longest ``path`` answers."""


@hookspec(firstresult=True)
def ajet_workflows(workflow: Any) -> LoadedWorkflow | None:
    """A `ajet.LoadedWorkflow` made of the object that the job's key ``workflow`` names, such as a compiled graph, or None.
    The first answer wins; raise ConfigError for what is meant for the plugin and wrong."""


@hookspec(firstresult=True)
def ajet_as_judge(judge: Any) -> Judge | None:
    """A `ajet.Judge` made of the object that the job's key ``judge`` names, or None. Not asked for subclasses of `ajet.Judge`.
    The first answer wins; raise ConfigError for what is meant for the plugin and wrong."""


@hookspec(firstresult=True)
def ajet_episode_source(where: str) -> EpisodeSource | None:
    """The episodes at an address that is not a run folder, such as the URL or the file of a database, for `ajet studio`. None if the
    address is not for this plugin; raise AjetError if it is and cannot be opened. The first answer wins."""


@hookspec(firstresult=True)
def ajet_job_file(path: Path, values: Mapping[str, Any]) -> Any:
    """The job that a file of another program says, as `ajet.job.config.Layers`, or None. Asked for files with keys that no job
    has. The first answer wins; raise ConfigError for a file that has to be translated first."""


@hookspec
def ajet_doctor() -> Iterable[tuple[str, str, str] | Finding]:  # type: ignore[empty-body]
    """Lines for `ajet doctor`: (what, found, remedy). A remedy marks a conflict and makes the command exit 1;
    leave it empty where all is well. For an optional part that is not installed, give an `ajet.Finding` with
    ``optional=True``: its remedy is shown as information."""


@hookspec
def ajet_check(judge: Judge, run_dir: Path) -> Iterable[tuple[str, str]]:  # type: ignore[empty-body]
    """Rows for the page of `ajet check`: (what, found). Its episodes have ended and are in the run folder; ``judge`` is the job's. An
    exception is a row, too."""


@hookspec
def ajet_capture_install(capture: Capture) -> Callable[[], None]:  # type: ignore[empty-body]
    """Capture begins in this process: change a framework's package, if it must be, so that it says which
    agent calls (`ajet.interfaces.helpers` has `replaced` and `when_imported`), and return what undoes it. An exception is a warning."""


@hookspec(firstresult=True)
def ajet_resolve_agent(episode: str, request: Mapping[str, Any]) -> str | None:
    """The name of the agent that makes this call, or None. Runs in the caller's context (its
    contextvars are visible); the first answer wins; an exception is counted, never raised."""


@hookspec
def ajet_attempt(attempt: Attempt) -> AbstractAsyncContextManager[Any]:  # type: ignore[empty-body]
    """An asynchronous context manager around an attempt at an episode. It is entered in the context that the workflow
    inherits; an exception fails the attempt. It is left when the attempt has ended, however it did: ``attempt.failure``
    says how, and what it adds to ``attempt.metadata`` is added to the output's. Then an exception is counted, never raised."""


# ------------------------------------------------------------------ events of a training run (`ajet.interfaces.events`)


@hookspec
def ajet_run_start(event: RunStart) -> None:
    """A training run begins or is resumed: ``event.run_dir``, ``event.config`` (the resolved job),
    ``event.resumed_after``. Here and in the hooks below, an exception is reported once and never ends the run; return
    soon, because the run waits."""


@hookspec
def ajet_episode_end(event: EpisodeEnd) -> None:
    """An episode of training or validation has been recorded: ``event.task``, ``event.reward``, ``event.failure``,
    ``event.messages``, ``event.timelines`` and more."""


@hookspec
def ajet_step_end(event: StepEnd) -> None:
    """A training step has been recorded: ``event.step``, ``event.metrics``."""


@hookspec
def ajet_checkpoint_saved(event: CheckpointSaved) -> None:
    """A checkpoint is complete on the disk: ``event.step``, ``event.path``."""


@hookspec
def ajet_run_end(event: RunEnd) -> None:
    """A training run has ended, with an ``event.result`` or an ``event.error``."""
