"""Checkpoints of a run folder: only those that are complete on the disk are used.

``files.json`` is written last and lists the size and the CRC-32 of every other file, so that a truncated copy, a disk that lost
the end of a file, or one that changed a bit, is detected before anything is loaded.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ajet.interfaces.backbone import CheckpointDamaged
from ajet.types import AjetError, Metrics
from ajet.utils.files import plain, replace, write_whole, writing

CHECKPOINTS = "checkpoints"
CHECKPOINT_STATE = "ajet.json"
"""Holds, in addition to the trainer's files, the step, the weight version and the validation reward at that step."""
FILES = "files.json"
"""Maps each file of the checkpoint to its size and checksum (earlier releases: its size), except itself and `ajet.json`, which is
rewritten when a validation reward is added."""
DAMAGED = "damaged_"
"""Prefix of the name of a checkpoint that was set aside."""


def checkpoints(run_dir: Path) -> list[Path]:
    """Complete checkpoints, oldest first; damaged ones are left out."""
    return [path for path in sorted((run_dir / CHECKPOINTS).glob("step_*")) if fault(path) is None]


def best_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint with the highest validation reward, the earliest of equal ones; None if none was
    validated."""
    validated = [path for path in checkpoints(run_dir) if validation_reward(path) > -math.inf]
    return max(validated, key=validation_reward, default=None)


def validation_reward(checkpoint: Path) -> float:
    """The validation reward at a checkpoint's step, or -inf if the run did not validate there."""
    return float(_state(checkpoint).get("validation_reward", -math.inf))


def is_validated(run_dir: Path) -> bool:
    """Whether the newest checkpoint has a validation reward."""
    return any(validation_reward(path) > -math.inf for path in checkpoints(run_dir)[-1:])


def fault(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, as far as file sizes show; None if it is complete."""
    try:
        listed = json.loads(plain(checkpoint / FILES).read_bytes())
        step = int(_state(checkpoint)["step"])
    except FileNotFoundError as error:
        return f"it has no {Path(error.filename).name}"
    except (AjetError, OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        return f"its {FILES} or {CHECKPOINT_STATE} cannot be read ({error})"
    if not isinstance(listed, dict):
        return f"its {FILES} is not a JSON object"
    if checkpoint.name.startswith("step_") and checkpoint.name != f"step_{step:06d}":
        return f"its {CHECKPOINT_STATE} is that of step {step}"
    sizes = _sizes(checkpoint)
    for name, noted in listed.items():
        size = noted.get("size") if isinstance(noted, dict) else noted
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != size:
            return f"{name} has {sizes[name]} bytes instead of {size}"
    return None


def changed(checkpoint: Path) -> str | None:
    """Which file of a complete checkpoint is not what was written, as far as checksums show; None if all are. Reads all files."""
    noted = json.loads((checkpoint / FILES).read_bytes())
    expected = {name: of["crc32"] for name, of in noted.items() if isinstance(of, dict)}
    checksums = _checksums(checkpoint, list(expected))
    return next(
        (
            f"{name} has changed since it was written"
            for name in expected
            if checksums[name] != expected[name]
        ),
        None,
    )


def write_checkpoint(
    run_dir: Path,
    step: int,
    save: Callable[[Path], None],
    state: Metrics,
    keep_last: int,
    *,
    keep_best: bool = False,
) -> Path:
    """Write a checkpoint atomically; ``save`` writes the trainer's part. Checkpoints older than the last ``keep_last``
    are removed, except the best one with ``keep_best``. Raises AjetError if it cannot be written."""
    final = run_dir / CHECKPOINTS / f"step_{step:06d}"
    # Written by a run that was killed right after: equal by the resume rule.
    if final in checkpoints(run_dir):
        return final
    partial = final.with_name(f".partial_{final.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with writing(final):
            save(partial)
            complete(partial, step, state)
            shutil.rmtree(final, ignore_errors=True)  # a damaged one
            replace(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # a full disk needs the space
        raise
    best = best_checkpoint(run_dir) if keep_best else None
    for old in checkpoints(run_dir)[:-keep_last]:
        if old != best:
            shutil.rmtree(old)
    return final


def complete(folder: Path, step: int, state: Metrics) -> None:
    """Make what a trainer has saved in a folder a checkpoint."""
    (folder / CHECKPOINT_STATE).write_text(json.dumps({"step": step, **state}))
    sizes = _sizes(folder)
    checksums = _checksums(folder, list(sizes))
    listed = {name: {"size": size, "crc32": checksums[name]} for name, size in sizes.items()}
    (folder / FILES).write_text(json.dumps(listed, indent=1))


def add_validation(run_dir: Path, step: int, reward: float) -> None:
    """Add the validation reward to the checkpoint of a step, if it was written before its validation."""
    checkpoint = run_dir / CHECKPOINTS / f"step_{step:06d}"
    if checkpoint in checkpoints(run_dir):
        state = {**_state(checkpoint), "validation_reward": reward}
        write_whole(checkpoint / CHECKPOINT_STATE, json.dumps(state))


def restore(run_dir: Path, load: Callable[[Path], None], say: Callable[[str], None]) -> int:
    """Load the newest checkpoint that can be loaded; return its step, 0 if the run has none yet. See `newest`. Later
    ones are renamed once it is loaded. Raises AjetError, and renames none, if none can be loaded: then the cause is
    probably elsewhere."""
    if newest(run_dir, say) is None:
        return 0
    refused: dict[Path, CheckpointDamaged] = {}
    for checkpoint in reversed(checkpoints(run_dir)):
        try:
            if other := changed(checkpoint):
                raise CheckpointDamaged(other)
            load(checkpoint)
        except CheckpointDamaged as error:
            refused[checkpoint] = error
            continue
        for damaged, why in refused.items():
            _set_aside(damaged, str(why), say)
        return step_of(newest(run_dir, say))
    first = next(iter(refused.values()))
    raise AjetError(
        f"{first}. No checkpoint of {run_dir} can be loaded, so the environment may be the cause, and none is renamed. "
        f"Compare the installed packages with {run_dir / 'versions.json'}, or restore a checkpoint from a copy."
    ) from first


def newest(run_dir: Path, say: Callable[[str], None]) -> Path | None:
    """The newest complete checkpoint, None if the run has none yet. Damaged ones after it are renamed, so that the run
    can write those steps again, and reported to ``say``. Raises AjetError if there are some, but none is complete."""
    for checkpoint in sorted((run_dir / CHECKPOINTS).glob("step_*"), reverse=True):
        why = fault(checkpoint)
        if why is None:
            return checkpoint
        _set_aside(checkpoint, why, say)
    if any((run_dir / CHECKPOINTS).glob(f"{DAMAGED}*")):
        raise AjetError(
            f"{run_dir / CHECKPOINTS}: no checkpoint is intact. Restore one from a copy, under its name step_NNNNNN, "
            "or start a new run."
        )
    return None


def step_of(checkpoint: Path | None) -> int:
    """The step after which a checkpoint was written; 0 without one."""
    return int(_state(checkpoint)["step"]) if checkpoint else 0


def _set_aside(checkpoint: Path, why: str, say: Callable[[str], None]) -> None:
    aside = checkpoint.with_name(f"{DAMAGED}{checkpoint.name}")
    with writing(aside):
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(checkpoint, aside)
    say(f"checkpoint {checkpoint} is damaged and is skipped ({why}); it was renamed to {aside.name}")


def _state(checkpoint: Path) -> dict[str, float]:
    state: dict[str, float] = json.loads(plain(checkpoint / CHECKPOINT_STATE).read_bytes())
    return state


def _sizes(folder: Path) -> dict[str, int]:
    """Sizes of all files below a folder, by their paths in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    return {name: size for name, size in sizes.items() if name not in (FILES, CHECKPOINT_STATE)}


def _checksums(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """The CRC-32 of files. It finds any error in up to 32 neighbouring bits; large files are read side by side."""
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(names, pool.map(lambda name: _checksum(folder / name), names), strict=True))


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as content:
        while piece := content.read(1 << 22):
            checksum = zlib.crc32(piece, checksum)
    return checksum
