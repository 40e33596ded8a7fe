"""The only writer of a run folder: metrics, journal, checkpoints.

Files are append-only. Work that a resumed run repeats is marked superseded, never deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

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
            self._others = {line["id"]: at for at, line in _placed(self.dir / JOURNAL) if "id" in line}
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
        mark = {"type": "superseded", "from_step": step, "keep": sorted(used), "unused": True}
        self._journal.append(mark)

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
                data = path.read_bytes()
                if data and not data.endswith(b"\n"):
                    os.truncate(path, data.rfind(b"\n") + 1)
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


def live_lines(path: Path, *, with_unused: bool = False) -> list[dict[str, Any]]:
    """Journal lines that no later mark superseded. A last line that a kill cut off is skipped. ``with_unused`` also those that their
    step did not use."""
    lines = (line for _, line in _placed(path) if not (with_unused and line.get("unused")))
    return surviving(lines, superseded, lambda line: (line["step"], line.get("id")))


def _live_places(path: Path) -> dict[str, int]:
    """The bytes at which live lines of the journal begin, by episode."""
    live = surviving(_placed(path), lambda p: superseded(p[1]), lambda p: (p[1]["step"], p[1]["id"]))
    return {line["id"]: at for at, line in live}


def superseded(line: Mapping[str, Any]) -> tuple[int, Collection[str]] | None:
    """The mark in a line: everything from a step on is superseded, except some episodes."""
    return (line["from_step"], set(line.get("keep", ()))) if line["type"] == "superseded" else None


def surviving(
    lines: Iterable[Line],
    mark: Callable[[Line], tuple[int, Collection[str]] | None],
    step_and_id: Callable[[Line], tuple[int, str | None]],
) -> list[Line]:
    """Lines that no later mark superseded; ``step_and_id`` returns a line's step and id."""
    live: list[Line] = []
    for line in lines:
        marked = mark(line)
        if marked is None:
            live.append(line)
        else:
            first, keep = marked
            live = [x for x in live if step_and_id(x)[0] < first or step_and_id(x)[1] in keep]
    return live


def _placed(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a file, and the bytes at which they begin."""
    if not plain(path).exists():
        return
    with path.open("rb") as file:
        end = 0
        for number, raw in enumerate(file, 1):
            place, end = end, end + len(raw)
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
