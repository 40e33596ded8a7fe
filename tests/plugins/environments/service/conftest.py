"""A service whose environment counts, and can be told to fail in every way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import httpx2
import pytest

from ajet.environments import ServedEnvironment, State, serving
from tests.patience import PATIENCE

IDLE_SECONDS = 3.0


class Counting(ServedEnvironment):
    """Counts to the number in its task's id; does what ``params["does"]`` says on the way."""

    env_type = "counting"
    meeting: ClassVar[threading.Barrier]
    """Where those wait for each other that meet."""

    def __init__(self, task_id: str, params: Mapping[str, Any]) -> None:
        super().__init__(task_id, params)
        self.count = 0
        self._do("init")

    @classmethod
    def task_ids(cls, split: str, params: Mapping[str, Any]) -> list[int]:
        return {"train": [1, 2, 3], "empty": []}[split]

    def start(self) -> str:
        self._do("start")
        return f"Count to {self.task_id}."

    def step(self, message: Mapping[str, Any]) -> State:
        self._do("step")
        self.count += 1
        done = self.count >= int(self.task_id)
        said = {"role": "user", "content": f"{message['content']}: {self.count}"}
        return State((said,), reward=1.0, is_terminated=done, info={"count": self.count})

    def evaluate(self) -> float:
        self._do("evaluate")
        return self.count / int(self.task_id)

    def info(self, params: Mapping[str, Any]) -> Any:
        return {"count": self.count, **params}

    def close(self) -> None:
        self._do("close")

    def _do(self, method: str) -> None:
        what = (self.params.get("does") or {}).get(method)
        if what == "raise":
            raise ValueError(f"{method} broke")
        if what == "meet":
            self.meeting.wait(PATIENCE)
        if isinstance(what, int | float):
            time.sleep(what)


class AsyncCounting(Counting):
    env_type = "async_counting"

    async def start(self) -> str:  # type: ignore[override]
        return super().start()

    async def step(self, message: Mapping[str, Any]) -> State:  # type: ignore[override]
        return super().step(message)


@pytest.fixture
def url() -> Iterator[str]:
    """A service that waits longer than any test."""
    with serving(Counting, AsyncCounting) as url:
        yield url


@pytest.fixture
def impatient() -> Iterator[str]:
    """A service that releases what nobody asked for in the last seconds, more of them than a busy machine takes."""
    with serving(Counting, AsyncCounting, idle_seconds=IDLE_SECONDS) as url:
        yield url


def health(url: str) -> dict[str, Any]:
    """What the service says of itself."""
    found: dict[str, Any] = httpx2.get(f"{url}/health").json()
    return found


def settled(url: str, created: int, seconds: float = PATIENCE) -> dict[str, Any]:
    """Its counts once so many instances were created and none is open, or after some seconds."""
    deadline = time.monotonic() + seconds
    while True:
        found = health(url)
        if (found["created"] >= created and not found["open"]) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
