"""Patches of the Agents SDK while a job runs: runs note whose turn it is, and traces are not uploaded."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any, NoReturn

from ajet import AjetError
from ajet.interfaces.helpers import replaced
from ajet_openai_agents import running

RUNS = ("run", "run_sync", "run_streamed")


@contextmanager
def agents_named(agents: ModuleType) -> Iterator[None]:
    """Make runs note the agent whose turn it is."""
    hooks = _labelling_hooks(agents.lifecycle.RunHooksBase)
    runs = {name: classmethod(_named(vars(agents.Runner)[name].__func__, hooks)) for name in RUNS}
    with replaced(agents.Runner, **runs):
        yield


@contextmanager
def websockets_refused(agents: ModuleType) -> Iterator[None]:
    """Refuse the websocket transport, which capture cannot record."""
    with replaced(agents.OpenAIResponsesWSModel, get_response=_refuse, stream_response=_refuse):
        yield


@contextmanager
def traces_kept_here(agents: ModuleType) -> Iterator[None]:
    """Disable the upload of traces: the default processor would send prompts and answers to OpenAI. The user's own
    processors stay."""
    from agents.tracing.processors import default_processor

    uploader = default_processor()
    processors = getattr(agents.tracing.get_trace_provider(), "_multi_processor", None)
    registered = getattr(processors, "_processors", ())
    agents.set_trace_processors([processor for processor in registered if processor is not uploader])
    try:
        yield
    finally:
        if uploader in registered:
            agents.add_trace_processor(uploader)


PATCHES = (agents_named, websockets_refused, traces_kept_here)


def _named(original: Callable[..., Any], hooks: Any) -> Callable[..., Any]:
    """A method of ``Runner`` that passes our hooks, which call the user's."""
    signature = inspect.signature(original)

    def prepared(args: Any, kwargs: Any) -> tuple[dict[str, str], inspect.BoundArguments]:
        bound = signature.bind(*args, **kwargs)
        run: dict[str, str] = {}
        bound.arguments["hooks"] = hooks(run, bound.arguments.get("hooks"))
        return run, bound

    @wraps(original)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        run, bound = prepared(args, kwargs)
        token = running.set(run)
        try:
            return await original(*bound.args, **bound.kwargs)
        finally:
            running.reset(token)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        run, bound = prepared(args, kwargs)
        token = running.set(run)
        try:
            return original(*bound.args, **bound.kwargs)  # a streamed run's task copies the context here
        finally:
            running.reset(token)

    return call_async if inspect.iscoroutinefunction(original) else call


def _labelling_hooks(base: type) -> Callable[[dict[str, str], Any], Any]:
    """A function that makes hooks: they note the agent of each model call and forward every event to the user's
    hooks."""

    def forwarding(name: str) -> Callable[..., Awaitable[None]]:
        async def event(self: Any, *args: Any, **kwargs: Any) -> None:
            if self.inner is not None:
                await getattr(self.inner, name)(*args, **kwargs)

        return event

    async def on_llm_start(self: Any, context: Any, agent: Any, *args: Any, **kwargs: Any) -> None:
        self.run["agent"] = agent.name
        if self.inner is not None:
            await self.inner.on_llm_start(context, agent, *args, **kwargs)

    events: dict[str, Any] = {name: forwarding(name) for name in dir(base) if name.startswith("on_")}
    cls = type("LabellingHooks", (base,), {**events, "on_llm_start": on_llm_start})

    def make(run: dict[str, str], inner: Any) -> Any:
        if inner is not None and not isinstance(inner, base):
            return inner  # the SDK rejects it with a good error
        hooks = cls()
        hooks.run, hooks.inner = run, inner
        return hooks

    return make


_NOT_HTTP = (
    "the Agents SDK's websocket transport is not HTTP, so its calls would not be recorded; use the default transport: "
    "set_default_openai_responses_transport('http')"
)


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise AjetError(_NOT_HTTP)
