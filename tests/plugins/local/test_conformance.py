"""The local engine keeps what every engine promises."""

import asyncio

import pytest

torch = pytest.importorskip("torch")

from ajet.testing.conformance import ENGINE_CHECKS, Subject, check_close  # noqa: E402


def subject(engine):
    """The engine works on something as long as its model is called."""
    calls = 0
    forward = engine.model.forward

    def counted(*args, **kwargs):
        nonlocal calls
        calls += 1
        return forward(*args, **kwargs)

    async def under_way():
        before = calls
        await asyncio.sleep(0.005)
        return calls - before

    engine.model.forward = counted
    return Subject(engine, under_way=under_way)


@pytest.mark.parametrize("check", [*ENGINE_CHECKS, check_close], ids=lambda check: check.__name__)
def test_the_local_engine(running, check):
    running(lambda engine: check(subject(engine)))
