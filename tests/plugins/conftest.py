"""Capture as a job has it: with the framework plugins' labels and patches, and a watch on the network."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ajet.capture.process.install import install
from ajet.plugins import load_plugins
from ajet.runs.runtime import frameworks_prepared
from ajet.testing import ScriptedEngine


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that connects to anything fails, whichever thread did it."""
    connected: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        connected.append(address)
        raise ConnectionRefusedError(f"a test must not connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    yield
    assert not connected


@pytest.fixture
def prepared(bench: Any, tokenizer: Any, no_sockets: None) -> Iterator[Callable[..., Any]]:
    """Make a `Bench` whose engine answers by a script, with all installed plugins at work and no network."""
    hook = load_plugins().manager.hook
    with ExitStack() as stack:

        def make(script: Any, **options: Any) -> Any:
            made = bench(ScriptedEngine(tokenizer, script, **options))
            made.capture._resolve_agent = lambda episode, request: hook.ajet_resolve_agent(
                episode=episode, request=request
            )
            stack.enter_context(frameworks_prepared(hook, made.capture))
            stack.enter_context(install(made.capture))
            return made

        yield make
