"""Runs of the OpenAI Agents SDK."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ajet.utils.patching import replaced
from ajet_online.runner.started import current_watcher
from ajet_online.runner.watching import Repeatable, watched

RUNS = ("run", "run_sync", "run_streamed")


@contextmanager
def runs_watched(agents: ModuleType) -> Iterator[None]:
    """Repeat runs of agents."""
    if not hasattr(agents, "FunctionTool"):
        yield  # another package of this name
        return

    def wrapped(name: str) -> Any:
        steps = "stream_events" if name == "run_streamed" else ""
        return classmethod(watched(vars(agents.Runner)[name].__func__, _run, current_watcher, steps))

    with replaced(agents.Runner, **{name: wrapped(name) for name in RUNS}):
        yield


def _run(
    runner: Any,
    starting_agent: Any,
    input: Any,
    context: Any = None,
    *,
    session: Any = None,
    hooks: Any = None,
    **options: Any,
) -> Repeatable | None:
    """A run that begins with texts or items; not one that resumes after an interruption. Its hooks are left out: they may tell the
    user."""
    if not isinstance(input, str | list):
        return None

    def begin(response: Any) -> Callable[[Any], Any]:
        # With a session, what it had is a part of the input by now. The session itself gets nothing.
        first = response.input if session is not None else None
        earlier: list[Any] = []

        async def call(said: Any) -> Any:
            if earlier:
                said = [*earlier[-1].to_input_list(), {"role": "user", "content": said}]
            elif first is not None:
                said = copy.deepcopy(first)
            result = await runner.run(starting_agent, said, context=context, **options)
            earlier.append(result)
            return result

        return call

    return Repeatable(starting_agent.name, copy.deepcopy(input), begin)
