"""The contract of every `ajet.WorkflowPlugin`, as checks to run against a real one.

A check is a function that takes a `WorkflowSubject` and raises AssertionError, with a sentence, if the workflow violates the
contract. A script answers the LLM calls, so no model is needed.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ajet.api.jobs import run
from ajet.interfaces.workflow import EpisodeEndpoint, Tuner, WorkflowPlugin
from ajet.types import Task

__all__ = ["WORKFLOW_CHECKS", "WorkflowSubject"]

_KEY = "ajet-" + "0" * 32
_TASKS = (Task("first", "What is 40 + 2?"), Task("second", "What is 7 + 8?"))


@dataclass(frozen=True, slots=True)
class WorkflowSubject:
    """A workflow and its properties.

    ``tasks`` are tasks that it can run; their queries differ, and its agent sends them to the model. ``answer`` is what the model says
    to each call, after which an episode must end. ``seconds`` limits an episode, ``leave`` the time of a cancellation.
    """

    workflow: WorkflowPlugin
    tasks: Sequence[Task] = _TASKS
    answer: str = "42"
    seconds: float = 60.0
    leave: float = 2.0


def check_its_configuration_is_plain_data(subject: WorkflowSubject) -> None:
    """It can be sent to other processes: a pickled copy is equal, also after it was open."""

    async def opened() -> None:
        async with subject.workflow.open():
            pass

    asyncio.run(opened())
    try:
        copy = pickle.loads(pickle.dumps(subject.workflow))
    except Exception as error:
        raise AssertionError(f"it cannot be pickled: {error}") from error
    assert copy == subject.workflow, "a pickled copy differs"
    assert type(subject.workflow).__doc__, "it has no docstring; `ajet plugins show` prints it"


def check_calls_belong_to_their_episode(subject: WorkflowSubject) -> None:
    """Several episodes at once: each succeeds, and its LLM calls are recorded with it and with no other."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.yaml"
        script.write_text(json.dumps([{"say": subject.answer}]))  # JSON is YAML
        done = run(
            workflow=subject.workflow,
            tasks=list(subject.tasks),
            judge=lambda task, output: 1.0,
            backbone="debug",
            run_dir=folder,
            set={
                "backbone.debug.answers": {"type": "script", "path": str(script)},
                "backbone.debug.tasks": len(subject.tasks),
                "backbone.debug.group_size": 2,
                "rollout.timeout": subject.seconds,
            },
            progress=False,
        )
        episodes = done.episodes()
        queries = {task.id: task.query for task in subject.tasks}
        for episode in episodes:
            assert episode.failure is None, f"an episode failed: {episode.failure}: {episode.error}"
            said = json.dumps([*episode.messages], default=str)
            for task, query in queries.items():
                is_own = task == episode.task
                assert (json.dumps(query)[1:-1] in said) == is_own, (
                    f"the calls of task {episode.task!r} {'lack its query' if is_own else f'have the query of {task!r}'}"
                )
    assert len(episodes) == 2 * len(subject.tasks), f"{len(episodes)} episodes were recorded"


def check_cancelling_ends_it(subject: WorkflowSubject) -> None:
    """An episode that is cancelled while it waits for its model ends soon."""

    async def cancelled() -> None:
        asked = asyncio.Event()

        async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            writer.close()

        server = await asyncio.start_server(never, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        handles = {"as_base_url": lambda tuner, **names: EpisodeEndpoint(url, _KEY)}
        async with subject.workflow.open() as live:
            episode = asyncio.ensure_future(live.execute(subject.tasks[0], Tuner(url, _KEY, handles)))
            waiting = asyncio.ensure_future(asked.wait())
            await asyncio.wait(
                {episode, waiting}, timeout=subject.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            assert asked.is_set(), (
                f"it asked no model at tuner.as_base_url(): {episode.exception() if episode.done() else 'nothing came'}"
            )
            episode.cancel()
            await asyncio.wait({episode}, timeout=subject.leave)
            assert episode.done(), f"it still runs {subject.leave:g} s after it was cancelled"
            with suppress(asyncio.CancelledError, Exception):
                await episode

    asyncio.run(cancelled())


WORKFLOW_CHECKS: Sequence[Callable[[WorkflowSubject], None]] = (
    check_its_configuration_is_plain_data,
    check_calls_belong_to_their_episode,
    check_cancelling_ends_it,
)
