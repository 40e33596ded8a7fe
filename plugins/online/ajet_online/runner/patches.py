"""What is intercepted while a runner is started: calls of tools and of agents, in frameworks that are imported, also later, and LLM
calls. The patches of tools and LLM calls only look at a context variable, and call the original outside shadow runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType

from ajet.interfaces.helpers import when_imported
from ajet.utils.patching import Patch
from ajet_online.runner.frameworks.agentscope import agentscope_agents_watched, agentscope_tools_guarded
from ajet_online.runner.frameworks.autogen import assistants_watched, autogen_tools_guarded
from ajet_online.runner.frameworks.langchain import graphs_watched, langchain_tools_guarded
from ajet_online.runner.frameworks.openai_agents import openai_agents_tools_guarded, runs_watched
from ajet_online.runner.shadow import threads_in_shadow_runs

_PATCHES = (
    ("langchain_core.tools.base", langchain_tools_guarded),
    ("langgraph.pregel", graphs_watched),
    ("agentscope.tool", agentscope_tools_guarded),
    ("agentscope.agent", agentscope_agents_watched),
    ("agents", openai_agents_tools_guarded),
    ("agents", runs_watched),
    ("autogen_core.tools", autogen_tools_guarded),
    ("autogen_agentchat.agents", assistants_watched),
)
_lock = threading.Lock()
_blocks = 0
_undo = ExitStack()
_problems: list[str] = []


def _new_lock() -> None:
    """A thread of the parent may have held the lock while it forked."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


@contextmanager
def intercepted() -> Iterator[None]:
    """A block in which these are intercepted. Runners and shadow runs each have one, so an abandoned shadow run stays
    guarded after its runner has stopped."""
    global _blocks
    with _lock:
        if not _blocks:
            _install()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks:
                _undo.close()


def problems() -> list[str]:
    """Why something that is imported is not intercepted. Then there must be no shadow runs."""
    return list(_problems)


def _install() -> None:
    # These imports take a moment, which programs without a runner do not spend.
    from ajet_online.runner.forwarding import calls_forwarded, calls_of_other_clients_forwarded

    _problems.clear()
    _undo.enter_context(threads_in_shadow_runs())
    _undo.enter_context(calls_of_other_clients_forwarded())
    for module, patch in (("httpx2", calls_forwarded), ("httpx", calls_forwarded), *_PATCHES):
        _undo.callback(when_imported(module, _noting_problems(patch)))


def _noting_problems(patch: Patch) -> Patch:
    @contextmanager
    @wraps(patch)
    def noting(module: ModuleType) -> Iterator[None]:
        with ExitStack() as undo:
            try:
                undo.enter_context(patch(module))
            except Exception as error:
                _problems.append(f"{module.__name__} has changed: {error!r}")
                raise
            yield

    return noting
