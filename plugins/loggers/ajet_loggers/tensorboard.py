"""A run as TensorBoard event files in its run folder."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, PrivateAttr

from ajet import Logger
from ajet.interfaces.events import CheckpointSaved, EpisodeEnd, Image, RunStart
from ajet.interfaces.helpers import open_image
from ajet.interfaces.logger import Metrics
from ajet_loggers.episodes import COLUMNS, EpisodeSample, Row


class TensorBoard(Logger):
    """Writes event files to ``tensorboard/`` in the run folder. View them with ``tensorboard --logdir RUN``.

    Every run has this logger. It logs episodes only if the job names it.
    """

    name = "tensorboard"

    episodes: int = Field(4, ge=0, description="Episodes of each step and phase that are logged as text.")
    _sample: EpisodeSample = PrivateAttr()
    _writer: Any = PrivateAttr(None)
    _pictured: set[tuple[str, int]] = PrivateAttr(default_factory=set)

    @classmethod
    def unnamed(cls) -> Self:
        """See `Logger.unnamed`: without episodes, as building their timelines takes time in every run."""
        return cls(episodes=0)

    @property
    def wants_episodes(self) -> bool:
        """See `Logger.wants_episodes`."""
        return self.episodes > 0

    def run_start(self, event: RunStart) -> None:
        """Open a file. In a resumed run, TensorBoard leaves out what was logged after the checkpoint."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._sample = EpisodeSample(self.episodes)
        self._writer = EventFileWriter(str(event.run_dir / "tensorboard"))
        if event.resumed_after is not None:
            self._write(event.resumed_after + 1, session_log=SessionLog(status=SessionLog.START))
        job = yaml.safe_dump(dict(event.config), sort_keys=False, allow_unicode=True)
        self._text("job", event.resumed_after or 0, _code(job))

    def episode_end(self, event: EpisodeEnd) -> None:
        """Keep the episode, if it is one of the sample."""
        if self._writer is not None and self.episodes:
            self._sample.add(event)
            self._write_images(event)

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Write every metric as a scalar, and the episodes that were sampled for the step."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            return
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(step, summary=Summary(value=values))
        self._write_episodes(step)

    def checkpoint_saved(self, event: CheckpointSaved) -> None:
        """Write where the checkpoint is."""
        if self._writer is not None:
            self._text("checkpoint", event.step, str(event.path))

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._write_episodes()
            self._writer.close()
            self._writer = None

    def _write_episodes(self, until: int | None = None) -> None:
        for phase, step, rows in self._sample.take(until):
            self._text(f"episodes/{phase}", step, "\n\n---\n\n".join(map(_written, rows)))

    def _write_images(self, event: EpisodeEnd) -> None:
        """Write the images of the first episode of a step and phase, under its id."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if not event.images or (event.phase, event.step) in self._pictured:
            return
        self._pictured.add((event.phase, event.step))
        values = []
        for number, image in enumerate(event.images.values()):
            shown = png(image)
            picture = Summary.Image(
                height=shown.height, width=shown.width, colorspace=3, encoded_image_string=shown.data
            )
            values.append(Summary.Value(tag=f"images/{event.phase}/{number}", image=picture))
        self._write(event.step, summary=Summary(value=values))

    def _text(self, tag: str, step: int, text: str) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._write(step, summary=text_pb(tag, text))

    def _write(self, step: int, **event: Any) -> None:
        import time

        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(step=step, wall_time=time.time(), **event))


def _written(row: Row) -> str:
    """An episode in Markdown: what it is worth in one line, then its texts, in which nothing is markup."""
    *figures, messages, response = row
    line = ", ".join(f"{name} {_one_line(value)}" for name, value in zip(COLUMNS, figures, strict=False))
    return f"{line}\n\n{_code(messages)}\n\nresponse\n\n{_code(response)}"


def _one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _code(text: str) -> str:
    """A block of code in Markdown: each line is indented."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


@dataclass(frozen=True, slots=True)
class Png:
    """A PNG file and its size in pixels."""

    data: bytes
    width: int
    height: int


def png(image: Image) -> Png:
    """An image as a PNG file in RGB."""
    opened = open_image(image)
    out = io.BytesIO()
    opened.save(out, "PNG")
    return Png(out.getvalue(), opened.width, opened.height)
