"""Episodes as trajectories in ATIF, the format of Harbor's agents, one file each in the run folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, PrivateAttr

from ajet import Logger
from ajet.interfaces.logger import Metrics

if TYPE_CHECKING:
    from ajet.interfaces.events import EpisodeEnd, RunStart

FOLDER = "atif"
"""The folder in the run folder."""
_NAMED = 80
"""Characters of an episode's id in the name of its file."""


class Atif(Logger):
    """Writes each finished episode into the folder ``atif`` of the run folder, as a trajectory in ATIF: its messages, tool calls and
    results, token ids, logprobs and reward.
    """

    name = "atif"

    prompt_token_ids: bool = Field(
        False,
        description="Also write the prompt of each call as token ids; files then grow with the square of a conversation's length.",
    )
    _config: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    def run_start(self, event: RunStart) -> None:
        """Note the job, which names the models."""
        self._config = event.config

    def episode_end(self, event: EpisodeEnd) -> None:
        """Write the episode's file."""
        from ajet_atif import text_of, trajectory_of

        trajectory = trajectory_of(event, self._config, "../images", prompt_ids=self.prompt_token_ids)
        folder = event.run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        (folder / _file_name(event.id)).write_text(text_of(trajectory) + "\n", encoding="utf-8")

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Metrics of steps are not written."""


def _file_name(episode: str) -> str:
    """A name that any file system takes, and that no other episode has."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", episode)[:_NAMED]
    return f"trajectory-{readable}-{hashlib.sha256(episode.encode(errors='replace')).hexdigest()[:8]}.json"
