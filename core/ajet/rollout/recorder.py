"""The run folder and its only writer: resolved job, versions, metrics, journal, checkpoints.

Files are append-only. Work that a resumed run repeats is marked superseded, never deleted.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ajet.rollout.episode import Episode
from ajet.rollout.journal import episode_to_json
from ajet.types import AjetError, Metrics

Line = TypeVar("Line")
JOURNAL, METRICS, CHECKPOINTS = "episodes.jsonl", "metrics.jsonl", "checkpoints"
CHECKPOINT_STATE = "ajet.json"
"""Beside what the trainer writes: the step, the weight version, the validation reward at that step."""


class Recorder(Protocol):
    """Where rollouts leave what is to be kept."""

    def episode(self, episode: Episode, *, phase: str, step: int) -> None:
        """Keep an episode, unless its id is there already."""
        ...

    def metrics(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a step or a validation."""
        ...


class RunRecorder:
    """Appends to one run folder. Appending an episode id twice changes nothing."""

    def __init__(self, run_dir: Path) -> None:
        self.dir = run_dir
        (run_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        self._live = {line["id"] for line in live_lines(run_dir / JOURNAL)}
        self._journal = _open_for_append(run_dir / JOURNAL)
        self._metrics = _open_for_append(run_dir / METRICS)

    def episode(self, episode: Episode, *, phase: str, step: int) -> None:
        """Append an episode, unless its id is there already."""
        if episode.plan.id not in self._live:
            self.line(episode_to_json(episode, phase=phase, step=step))

    def line(self, line: Mapping[str, Any]) -> None:
        """Append an episode's line (`episode_to_json`), unless its id is there already."""
        if line["id"] not in self._live:
            self._live.add(line["id"])
            _append(self._journal, line)

    def metrics(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of a step or a validation."""
        _append(self._metrics, {"type": phase, "step": step, **metrics})

    def supersede(self, step: int, keep: Mapping[str, Any]) -> None:
        """Mark all episodes of ``step`` and later ones as superseded, but for the ids in ``keep``."""
        mark = {"type": "superseded", "from_step": step, "keep": sorted(keep)}
        _append(self._journal, mark)
        _append(self._metrics, {"type": "superseded", "from_step": step})
        self._live = {line["id"] for line in live_lines(self.dir / JOURNAL)}

    def unused(self, step: int, used: Collection[str]) -> None:
        """Mark the journal's episodes of ``step`` as superseded, but for those that its batch is made of."""
        _append(self._journal, {"type": "superseded", "from_step": step, "keep": sorted(used)})

    def checkpoint(
        self,
        step: int,
        save: Callable[[Path], None],
        state: Metrics,
        keep_last: int,
        *,
        keep_best: bool = False,
    ) -> Path:
        """Write a checkpoint atomically: it is complete under its name or not there at all. Older ones than
        the last ``keep_last`` go, but for the best where ``keep_best``."""
        final = self.dir / CHECKPOINTS / f"step_{step:06d}"
        if final.exists():  # written by a run that was killed right after: equal by the resume rule
            return final
        partial = final.with_name(f".partial_{final.name}")
        shutil.rmtree(partial, ignore_errors=True)
        save(partial)
        (partial / CHECKPOINT_STATE).write_text(json.dumps({"step": step, **state}))
        os.replace(partial, final)
        best = best_checkpoint(self.dir) if keep_best else None
        for old in checkpoints(self.dir)[:-keep_last]:
            if old != best:
                shutil.rmtree(old)
        return final

    def validated(self, step: int, reward: float) -> None:
        """Add the validation reward to the checkpoint of a step, if one was written before it was validated."""
        state = self.dir / CHECKPOINTS / f"step_{step:06d}" / CHECKPOINT_STATE
        if state.exists():
            known = json.loads(state.read_text())
            partial = state.with_name(f".{state.name}")
            partial.write_text(json.dumps({**known, "validation_reward": reward}))
            os.replace(partial, state)

    def beats_all(self, reward: float | None) -> bool:
        """Whether a validation reward is higher than that of every checkpoint."""
        best = best_checkpoint(self.dir)
        return reward is not None and (best is None or reward > _validation_reward(best))

    def close(self) -> None:
        """Close the files."""
        self._journal.close()
        self._metrics.close()


def checkpoints(run_dir: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted((run_dir / CHECKPOINTS).glob("step_*"))


def best_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint of the highest validation reward, the earliest of equal ones; None if none was
    validated."""
    validated = [path for path in checkpoints(run_dir) if _validation_reward(path) > -math.inf]
    return max(validated, key=_validation_reward, default=None)


def _validation_reward(checkpoint: Path) -> float:
    """The validation reward at a checkpoint's step; -inf if there was no validation."""
    state = json.loads((checkpoint / CHECKPOINT_STATE).read_text())
    return float(state.get("validation_reward", -math.inf))


def live_lines(path: Path) -> list[dict[str, Any]]:
    """Journal lines that no later mark superseded. A last line cut by a kill is passed over."""
    return surviving(_read(path), superseded, lambda line: (line["step"], line.get("id")))


def superseded(line: Mapping[str, Any]) -> tuple[int, Collection[str]] | None:
    """The mark that a line is: everything from a step on is superseded, but for some episodes."""
    return (line["from_step"], set(line.get("keep", ()))) if line["type"] == "superseded" else None


def surviving(
    lines: Iterable[Line],
    mark: Callable[[Line], tuple[int, Collection[str]] | None],
    place: Callable[[Line], tuple[int, str | None]],
) -> list[Line]:
    """Lines that no later mark superseded; ``place`` gives a line's step and id."""
    live: list[Line] = []
    for line in lines:
        found = mark(line)
        if found is None:
            live.append(line)
        else:
            first, keep = found
            live = [x for x in live if place(x)[0] < first or place(x)[1] in keep]
    return live


def _read(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.endswith(b"\n"):
                return
            try:
                yield json.loads(raw)
            except ValueError as error:
                raise AjetError(
                    f"{path}:{number}: not JSON ({error}). The journal was edited; restore or remove that line."
                ) from None


def _open_for_append(path: Path) -> Any:
    """Open for appending, after cutting a last line that a kill left unfinished."""
    if path.exists():
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            os.truncate(path, data.rfind(b"\n") + 1)
    return path.open("a", encoding="utf-8", errors="surrogatepass")  # JSON text may hold half a pair


def _append(file: Any, line: Mapping[str, Any]) -> None:
    file.write(json.dumps(line, ensure_ascii=False) + "\n")
    file.flush()
