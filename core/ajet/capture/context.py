"""What a user may say about calls, as contextvars: labels, and calls that are not answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Label:
    agent: str | None = None
    target: str | None = None


current_label: ContextVar[Label] = ContextVar("ajet_label", default=Label())  # noqa: B039 - frozen
passing_through: ContextVar[bool] = ContextVar("ajet_passthrough", default=False)

answering_episode: ContextVar[str] = ContextVar("ajet_answering", default="")
"""The id of the episode one of whose calls a chat model answers."""

replaying: ContextVar[bool] = ContextVar("ajet_replaying", default=False)
"""Whether a recording answers all LLM calls, so that no endpoint is asked and no API key is needed."""


@contextmanager
def without_endpoints() -> Iterator[None]:
    """Inside the block a recording answers all LLM calls."""
    token = replaying.set(True)
    try:
        yield
    finally:
        replaying.reset(token)


@contextmanager
def label(*, agent: str | None = None, target: str | None = None) -> Iterator[None]:
    """Name the agent (or the target) of the LLM calls made inside the block."""
    outer = current_label.get()
    current_label.set(Label(agent or outer.agent, target or outer.target))
    try:
        yield
    finally:
        current_label.set(outer)  # no token: an abandoned coroutine is closed in another context


@contextmanager
def passthrough() -> Iterator[None]:
    """LLM calls made inside the block go to their own endpoint: not answered, recorded or trained."""
    outer = passing_through.get()
    passing_through.set(True)
    try:
        yield
    finally:
        passing_through.set(outer)
