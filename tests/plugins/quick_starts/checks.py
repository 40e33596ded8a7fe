"""What every quick start is held to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ajet

from ..programs import agents_of, lines, script


def solves(bench: Any, run: Callable[[], Awaitable[str]], **options: Any) -> Any:
    """An agent with a calculator solves ``12 + 30`` in two calls, the second continuing the first by its stored
    ids; the session is returned. Its calls have the name that `ajet.label` gives."""
    with bench.session(**options) as session, ajet.label(agent="solver"):
        answer = asyncio.run(run())  # type: ignore[arg-type]
    assert "The result is" in answer and "42" in answer
    assert agents_of(session) == ["solver", "solver"]
    assert [call.parent for call in session.record.calls] == [None, 0], "continued by its stored ids"
    assert len(lines(session.record)) == 1, "one conversation, one timeline"
    assert "calculator" in str(session.record.exchanges[0].chat()), "the tool was called"
    assert not session.counters["rendered_anew"] and not session.refusals
    return session


def solves_alike(
    prepared: Callable[..., Any],
    whole: Callable[[], Awaitable[str]],
    streamed: Callable[[], Awaitable[str]],
    **options: Any,
) -> None:
    """As `solves`, with the same tokens whether answers come whole or streamed."""
    bench = prepared(script)
    first, second = solves(bench, whole, **options), solves(bench, streamed, **options)
    assert lines(first.record) == lines(second.record)
