"""What a corrected judge says of a run's episodes, beside what the run was trained with.

`ajet rejudge` writes its verdicts into a file beside the journal. Of that file, only the verdict and the push of an episode are used:
its step, task and recorded reward are the journal's. Lines that cannot be read, and episodes that only one of both files has, are
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ajet_studio.answers import missing, thinned
from ajet_studio.lines import NotALine, SecondLine, parse_second
from ajet_studio.opened import REJUDGED, OpenRun
from ajet_studio.view_episodes import rows_of

MOST_BYTES = 64 << 20
"""Of the file; the rest of a longer one is not read."""
MOST_POINTS, MOST_PHASES = 2000, 6
MOST_STEPS = 500
"""Steps that are listed, the first ones."""
MOST_CHANGED = 200
"""Episodes that are listed, those whose push changed most."""
MOST_REASONS, LONGEST_REASON = 5, 300
NO_PUSH = 1e-9
"""A smaller push is none: it comes from rounding."""
Pair = tuple[Mapping[str, Any], SecondLine]
"""An episode as the journal has it, and its line of the file."""


def rejudged(run: OpenRun) -> dict[str, Any]:
    """What the later judge says: curves beside the recorded ones, the steps that change, and the episodes with another verdict. Raises
    RefusedView (404) if there is no file."""
    if not (run.dir / REJUDGED).is_file():
        raise missing(f"{run.name} has not been judged again: it has no {REJUDGED}")
    complete = run.index.update()
    lines = _SecondLines(run.dir / REJUDGED)
    by_step: dict[tuple[str, int], list[Pair]] = {}
    reasons: Counter[str] = Counter()
    gone = 0
    with run.index.reading() as db:
        columns = "id, line, phase, step, reward, failure, trained_tokens"
        left = {row["id"]: row for row in db.execute(f"SELECT {columns} FROM episodes")}
        for line in lines:
            row = left.pop(line.id, None)
            if row is None:
                gone += 1
            elif line.judged is None:
                reasons[line.unknown[:LONGEST_REASON] or "the file gives no verdict"] += 1
            else:
                by_step.setdefault((row["phase"], row["step"]), []).append((row, line))
        changed = sorted((pair for pairs in by_step.values() for pair in pairs if _changed(pair)), key=_moved)
        few = changed[:MOST_CHANGED]
        rows = [
            db.execute("SELECT * FROM episodes WHERE line = ?", (row["line"],)).fetchone() for row, _ in few
        ]
    steps = [_step(*key, pairs) for key, pairs in sorted(by_step.items())]
    differing = [step for step in steps if step["changed"] or step["wrong"]]
    return {
        "judged": sum(step["episodes"] for step in steps),
        "changed": len(changed),
        "failing": sum(_reward(line) is None for pairs in by_step.values() for _, line in pairs),
        "unknown": reasons.most_common(MOST_REASONS),
        "gone": gone,
        "later": len(left) if complete else 0,
        "broken": lines.broken,
        "cut": lines.cut,
        "curves": {
            phase: _curves(steps, phase)
            for phase in islice(dict.fromkeys(step["phase"] for step in steps), MOST_PHASES)
        },
        "marks": thinned([s["step"] for s in steps if s["phase"] == "train" and s["wrong"]], MOST_POINTS),
        "steps": differing[:MOST_STEPS],
        "more_steps": max(0, len(differing) - MOST_STEPS),
        "episodes": [
            {**shown, "judged": _reward(line), "why": line.judged and line.judged.failure, "push": line.push}
            for shown, (_, line) in zip(rows_of(run, rows), few, strict=True)
        ],
    }


class _SecondLines:
    """The file's lines of episodes. ``broken`` lines are left out, and a file that is too long is ``cut``."""

    def __init__(self, path: Path) -> None:
        self._path, self.broken, self.cut = path, 0, False

    def __iter__(self) -> Iterator[SecondLine]:
        left = MOST_BYTES
        with self._path.open("rb") as file:
            while left > 0 and (raw := file.readline(left)):
                left -= len(raw)
                try:
                    line = parse_second(raw)
                except NotALine:
                    self.broken += 1
                    continue
                if line.type == "episode":
                    yield line
            self.cut = bool(file.read(1))


def _changed(pair: Pair) -> bool:
    row, line = pair
    return line.changed or _recorded(row) != _reward(line)


def _recorded(row: Mapping[str, Any]) -> float | None:
    return None if row["failure"] else row["reward"]


def _reward(line: SecondLine) -> float | None:
    return line.judged.reward if line.judged else None


def _moved(pair: Pair) -> float:
    """Sorts the episodes: first those whose push changed most."""
    before, after = pair[1].push or (0.0, 0.0)
    return -abs(after - before)


def _sign(push: float) -> int:
    return 0 if abs(push) < NO_PUSH else 1 if push > 0 else -1


def _step(phase: str, step: int, pairs: Sequence[Pair]) -> dict[str, Any]:
    """The figures of a step: ``trained`` are the tokens of episodes that had a push, ``wrong`` those among them whose push now has
    another sign, or is none."""
    pushed = [(row, line.push) for row, line in pairs if line.push and _sign(line.push[0])]
    return {
        "phase": phase,
        "step": step,
        "episodes": len(pairs),
        "changed": sum(map(_changed, pairs)),
        "recorded": _mean([_recorded(row) for row, _ in pairs]),
        "judged": _mean([_reward(line) for _, line in pairs]),
        "trained": sum(row["trained_tokens"] for row, _ in pushed),
        "wrong": sum(row["trained_tokens"] for row, push in pushed if _sign(push[0]) != _sign(push[1])),
    }


def _mean(rewards: Sequence[float | None]) -> float | None:
    known = [reward for reward in rewards if reward is not None]
    return sum(known) / len(known) if known else None  # infinite, where fmean raises


def _curves(steps: Sequence[Mapping[str, Any]], phase: str) -> list[Sequence[Any]]:
    """The mean of the recorded rewards over the steps of a phase, and that of the later ones."""
    of = [step for step in steps if step["phase"] == phase]
    return [
        thinned([[s["step"], s[name]] for s in of if s[name] is not None], MOST_POINTS)
        for name in ("recorded", "judged")
    ]
