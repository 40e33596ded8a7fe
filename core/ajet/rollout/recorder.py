"""The only writer of a run folder: metrics, journal, checkpoints.

Files are append-only. Work that a resumed run repeats is marked superseded, never deleted.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from ajet.rollout.batch_record import BATCHES, Account, batch_file, packed, write_batch
from ajet.rollout.checkpoints import (
    CHECKPOINTS,
    add_validation,
    best_checkpoint,
    validation_reward,
    write_checkpoint,
)
from ajet.rollout.episode import Episode
from ajet.rollout.image_folder import IMAGES, ImageFolder
from ajet.rollout.journal import JournalLine
from ajet.types import AjetError, Batch, Metrics
from ajet.utils.files import plain, sync, writing

Line = TypeVar("Line")
Made = TypeVar("Made")
BLOCK = 1 << 16
"""Bytes that are read at once to find the end of a file's last line."""
JOURNAL, METRICS, PASS_RATES = "episodes.jsonl", "metrics.jsonl", "pass_rates.jsonl"
FEEDBACK = "feedback.jsonl"  # written by people, beside the journal
_FIELDS = {"episode": ("step", "id"), "superseded": ("from_step",)}
"""The required keys of a line by its type; lines of other types are metrics, which need a step."""


class RunRecorder:
    """Appends to one run folder. Appending an episode id twice changes nothing. Raises AjetError, which names the file
    and the remedy, if a file cannot be written, and at once if a line of it is damaged. ``on_episode`` is called with
    each episode that `episode` has appended, its phase and step. With ``batches``, `batch` keeps what was trained."""

    def __init__(
        self,
        run_dir: Path,
        on_episode: Callable[[Episode, str, int], None] = lambda episode, phase, step: None,
        *,
        batches: bool = False,
    ) -> None:
        self.dir = run_dir
        self._keep_batches = batches
        self._on_episode = on_episode
        with writing(run_dir):
            (run_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        # It is read again when the run has ended, too late to find a damaged line.
        live_lines(run_dir / METRICS)
        self._live = _live_places(run_dir / JOURNAL)
        """The byte at which the line of each episode begins."""
        self._others: dict[str, int] | None = None
        """The same of those that their step did not use, before this process; None until one of them is asked for."""
        self._images = ImageFolder(run_dir / IMAGES)
        self._journal = _Lines(run_dir / JOURNAL)
        self._metrics = _Lines(run_dir / METRICS)
        has_pass_rates = (run_dir / PASS_RATES).exists()
        self._pass_rates = _Lines(run_dir / PASS_RATES) if has_pass_rates else None

    def episode(self, episode: Episode, *, phase: str, step: int) -> None:
        """Append an episode, unless its id is already in the journal."""
        if episode.plan.id not in self._live:
            self.line(JournalLine.of(episode, phase), step)
            self._on_episode(episode, phase, step)

    def line(self, line: JournalLine, step: int) -> bool:
        """Append an episode's line, unless its id is already in the journal; whether it was new."""
        if line.id in self._live:
            return False
        self._live[line.id] = -1  # it does not come again if it cannot be written
        self._images.add(line.images)
        self._live[line.id] = self._journal.write(line.at(step))
        return True

    def recorded(self, id: str) -> dict[str, Any]:
        """The journal's line of an episode that was appended, by this process or an earlier one."""
        with (self.dir / JOURNAL).open("rb") as file:
            file.seek(self._live[id] if id in self._live else self._place_of_other(id))
            line: dict[str, Any] = json.loads(file.readline())
            return line

    def _place_of_other(self, id: str) -> int:
        if self._others is None:
            lines = _placed(self.dir / JOURNAL)
            self._others = {line["id"]: place.byte for place, line in lines if "id" in line}
        return self._others[id]

    def metrics(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of a step or a validation."""
        self._metrics.append({"type": phase, "step": step, **metrics})

    def pass_rates(self, step: int, groups: Sequence[tuple[str, float, int]]) -> None:
        """Append what the groups of a step show of their tasks: (task, pass rate, episodes)."""
        self._pass_rates = self._pass_rates or _Lines(self.dir / PASS_RATES)
        self._pass_rates.append({"type": "pass_rates", "step": step, "groups": groups})

    def batch(self, step: int, batch: Batch, account: Account) -> None:
        """Write what a step trains, unless batches are not kept. May be called in another thread."""
        if self._keep_batches:
            self.packed_batch(step, packed(step, batch, account))

    def packed_batch(self, step: int, data: bytes) -> None:
        """Write what a step trains, as `packed` returns it."""
        write_batch(batch_file(self.dir, step), data)

    def supersede(self, step: int, keep: Mapping[str, Any]) -> None:
        """Mark all episodes of ``step`` and later steps as superseded, except the ids in ``keep``."""
        self._journal.append({"type": "superseded", "from_step": step, "keep": sorted(keep)})
        for lines in filter(None, (self._metrics, self._pass_rates)):
            lines.append({"type": "superseded", "from_step": step})
        self._live = _live_places(self.dir / JOURNAL)

    def unused(self, step: int, used: Collection[str]) -> None:
        """Mark the journal's episodes of ``step`` as superseded, except those in its batch."""
        self._mark(step, used, unused=True)

    def repeat_validation(self, step: int) -> None:
        """Mark what the journal has of a step's validation as superseded: it did not come to its end, and is run again."""
        self._mark(step, [id for id in self._live if id.startswith(f"{step}.")], validation=True)
        self._live = _live_places(self.dir / JOURNAL)

    def _mark(self, step: int, keep: Collection[str], **why: bool) -> None:
        steps = {"from_step": step, "to_step": step}
        self._journal.append({"type": "superseded", **steps, "keep": sorted(keep), **why})

    def checkpoint(
        self,
        step: int,
        save: Callable[[Path], None],
        state: Metrics,
        keep_last: int,
        *,
        keep_best: bool = False,
    ) -> Path:
        """See `write_checkpoint`. Everything recorded up to this step reaches the disk before the checkpoint. May be
        called in another thread while episodes are appended."""
        for lines in filter(None, (self._journal, self._metrics, self._pass_rates)):
            lines.sync()
        if (self.dir / BATCHES).exists():
            sync(self.dir / BATCHES)
        return write_checkpoint(self.dir, step, save, state, keep_last, keep_best=keep_best)

    def validated(self, step: int, reward: float) -> None:
        """Add the validation reward to the checkpoint of a step, if it was written before its validation."""
        add_validation(self.dir, step, reward)

    def beats_all(self, reward: float | None) -> bool:
        """Whether a validation reward is higher than that of every checkpoint."""
        best = best_checkpoint(self.dir)
        return reward is not None and (best is None or reward > validation_reward(best))

    def close(self) -> None:
        """Close the files."""
        for lines in filter(None, (self._journal, self._metrics, self._pass_rates)):
            lines.close()


class _Lines:
    """A file of JSON lines, open for appending; a last line that a kill left unfinished is cut off first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            if path.exists():
                with path.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    whole = _end_of_lines(file, size)
                if whole < size:
                    os.truncate(path, whole)
            # JSON text may contain lone surrogates
            self._file = path.open("a", encoding="utf-8", errors="surrogatepass")

    def append(self, line: Mapping[str, Any]) -> None:
        self.write(json.dumps(line, ensure_ascii=False))

    def write(self, line: str) -> int:
        """Append a line; returns the byte at which it begins."""
        with writing(self.path):
            place = self._file.tell()
            self._file.write(line + "\n")
            self._file.flush()
        return place

    def sync(self) -> None:
        with writing(self.path):
            sync(self.path)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # `append` has reported what could not be written
            self._file.close()


def _end_of_lines(file: BinaryIO, end: int) -> int:
    """The byte behind the last complete line before ``end``."""
    while end:
        start = max(end - BLOCK, 0)
        file.seek(start)
        if (newline := file.read(end - start).rfind(b"\n")) >= 0:
            return start + newline + 1
        end = start
    return 0


def live_lines(path: Path) -> list[dict[str, Any]]:
    """Lines that no later mark superseded. A last line that a kill cut off is skipped."""
    return live(path, lambda place, line: line)


def live(
    path: Path, of: Callable[[Place, dict[str, Any]], Made | None], *, with_unused: bool = False
) -> list[Made]:
    """What ``of`` makes of each live line and its place; nothing else is kept in memory. Where it makes None, the line is left out.
    ``with_unused`` also of those that their step did not use."""

    def made() -> Iterator[Mark | tuple[int, str | None, Made]]:
        for place, line in _placed(path):
            if mark := superseded(line):
                if not (with_unused and line.get("unused")):
                    yield mark
            elif (one := of(place, line)) is not None:
                yield line["step"], line.get("id"), one

    lines = surviving(
        made(),
        lambda x: x if isinstance(x, Mark) else None,
        lambda x: (0, None) if isinstance(x, Mark) else x[:2],
    )
    return [x[2] for x in lines if not isinstance(x, Mark)]


def _live_places(path: Path) -> dict[str, int]:
    """The bytes at which live lines of the journal begin, by episode."""
    return dict(live(path, lambda place, line: (line["id"], place.byte)))


class Place(NamedTuple):
    """Where a line of a file begins, and its number, from 1."""

    byte: int
    line: int


class Mark(NamedTuple):
    """That lines of some steps are superseded, except some episodes."""

    first: int
    last: float
    keep: Collection[str]


def superseded(line: Mapping[str, Any]) -> Mark | None:
    """The mark in a line."""
    if line["type"] != "superseded":
        return None
    return Mark(line["from_step"], line.get("to_step", math.inf), set(line.get("keep", ())))


def surviving(
    lines: Iterable[Line],
    mark: Callable[[Line], Mark | None],
    step_and_id: Callable[[Line], tuple[int, str | None]],
) -> list[Line]:
    """Lines that no later mark superseded; ``step_and_id`` returns a line's step and id."""
    left: list[Line] = []
    for line in lines:
        marked = mark(line)
        if marked is None:
            left.append(line)
        else:
            first, last, keep = marked
            left = [x for x in left if not first <= step_and_id(x)[0] <= last or step_and_id(x)[1] in keep]
    return left


def _placed(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The lines of a file, and their places."""
    if not plain(path).exists():
        return
    with path.open("rb") as file:
        end = 0
        for number, raw in enumerate(file, 1):
            place, end = Place(end, number), end + len(raw)
            if not raw.endswith(b"\n"):
                return
            try:
                line = json.loads(raw)
            except ValueError as error:
                raise _damaged(path, number, f"is not JSON ({error})") from None
            if not isinstance(line, dict):
                raise _damaged(path, number, "is not a JSON object")
            for name in ("type", *_FIELDS.get(str(line.get("type")), ("step",))):
                if name not in line:
                    raise _damaged(path, number, f'has no "{name}"')
                if "step" in name and not isinstance(line[name], int):
                    raise _damaged(path, number, f'has the "{name}" {line[name]!r}')
            yield place, line


def _damaged(path: Path, number: int, fault: str) -> AjetError:
    return AjetError(
        f"{path}:{number}: {fault}, so the file was damaged or edited. Restore that line from a copy or delete it."
    )
