"""The logger: a run and its episodes, as Studio shows them."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field, PrivateAttr, StringConstraints

from ajet import Logger
from ajet.interfaces.events import EpisodeEnd, RunStart
from ajet.interfaces.logger import Metrics
from ajet.interfaces.progress import current_progress
from ajet.interfaces.spans import episode_spans, model_of
from ajet_agentscope.studio.sending import Sender


class AgentScopeStudio(Logger):
    """Sends each finished episode to AgentScope Studio: its calls, tools, tokens and reward.

    A thread sends them, so the run never waits for Studio. Episodes that cannot be sent are counted and left out.
    """

    name = "agentscope_studio"

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^/]")] = Field(
        "http://localhost:3000", description="Address of AgentScope Studio."
    )
    project: str = Field("AgentJet", min_length=1, description="Project under which Studio lists the run.")
    waiting: int = Field(
        1000, ge=1, description="How many episodes may wait to be sent; further ones are left out."
    )
    _sender: Sender | None = PrivateAttr(None)

    def run_start(self, event: RunStart) -> None:
        """Register the run, and begin to send. A resumed run keeps its id."""
        run = {
            "id": run_id(event.run_dir),
            "project": self.project,
            "name": event.name,
            "timestamp": datetime.now(UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
            "pid": os.getpid(),
            "run_dir": str(event.run_dir),
        }
        encode = partial(_encode, model_of=partial(model_of, event.config), project=self.project)
        self._sender = Sender(self.url, run, encode, self.waiting, current_progress().say)

    def episode_end(self, event: EpisodeEnd) -> None:
        """Hand an episode to the thread that sends."""
        if self._sender is not None:
            self._sender.give(event)

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Metrics of steps are not sent: Studio has no place for them."""

    def close(self) -> None:
        """Send what still waits, for a few seconds at most, and say how many episodes were not sent."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None


def run_id(run_dir: Path) -> str:
    """The id of a run in Studio, which is also the conversation id of its spans: the same whenever this machine resumes
    the run folder."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"file://{socket.gethostname()}{run_dir}"))


def _encode(event: EpisodeEnd, model_of: Callable[[str], str], project: str) -> Iterator[bytes]:
    from ajet_agentscope.studio.spans import requests_of  # imports protobuf

    spans = episode_spans(event, conversation=run_id(event.run_dir), model_of=model_of)
    return requests_of(spans, service=project)
