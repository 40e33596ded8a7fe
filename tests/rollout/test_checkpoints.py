"""Checkpoints after a crash: only an intact one is used, and a disk that cannot be written is named."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ajet.interfaces.backbone import CheckpointDamaged
from ajet.rollout import checkpoints as module
from ajet.rollout.checkpoints import checkpoints, restore, write_checkpoint
from ajet.rollout.recorder import RunRecorder
from ajet.types import AjetError

WEIGHTS = b"w" * 5000


def save(path: Path) -> None:
    (path / "adapters").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(WEIGHTS)
    (path / "adapters" / "a.safetensors").write_bytes(WEIGHTS)


def written(run_dir: Path, *steps: int) -> list[Path]:
    return [write_checkpoint(run_dir, step, save, {"version": step}, keep_last=9) for step in steps]


def truncate(name: str) -> Callable[[Path], Any]:
    return lambda checkpoint: os.truncate(checkpoint / name, 100)


def empty(name: str) -> Callable[[Path], Any]:
    return lambda checkpoint: (checkpoint / name).write_bytes(b"")


def emptied(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def piped(file: Path) -> None:
    """Of a folder that a stranger has made: to read a pipe has no end."""
    file.unlink()
    os.mkfifo(file)


DAMAGES = {
    "weights cut off": (truncate("model.safetensors"), "model.safetensors has 100 bytes instead of 5000"),
    "adapter cut off": (truncate("adapters/a.safetensors"), "a.safetensors has 100 bytes instead of 5000"),
    "a file lost": (lambda c: (c / "model.safetensors").unlink(), "model.safetensors is missing"),
    "empty state": (empty("ajet.json"), "ajet.json cannot be read"),
    "empty list of files": (empty("files.json"), "files.json"),
    "a list of files that is none": (
        lambda c: (c / "files.json").write_text("[]"),
        "files.json is not a JSON object",
    ),
    "a file without its size": (
        lambda c: (c / "files.json").write_text('{"model.safetensors": {}}'),
        "model.safetensors has 5000 bytes instead of None",
    ),
    "no step": (lambda c: (c / "ajet.json").write_text('{"step": 1e999}'), "ajet.json cannot be read"),
    "a pipe in the place of a file": (lambda c: piped(c / "files.json"), "is not a plain file"),
    "a pipe in the place of its step": (lambda c: piped(c / "ajet.json"), "is not a plain file"),
    "empty folder": (emptied, "it has no files.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_by_name_and_the_one_before_it_is_used(
    tmp_path: Path, damage: str
) -> None:
    one, two = written(tmp_path, 1, 2)
    harm, why = DAMAGES[damage]
    harm(two)
    assert checkpoints(tmp_path) == [one]
    said: list[str] = []
    loaded: list[Path] = []
    assert restore(tmp_path, loaded.append, said.append) == 1 and loaded == [one]
    assert len(said) == 1 and str(two) in said[0] and why in said[0] and "damaged_step_000002" in said[0]
    assert written(tmp_path, 2) == [two] and checkpoints(tmp_path) == [one, two], "the step is written again"


def test_a_checkpoint_whose_contents_cannot_be_read_is_skipped_too(tmp_path: Path) -> None:
    one, two = written(tmp_path, 1, 2)

    def load(checkpoint: Path) -> None:
        if checkpoint == two:
            raise CheckpointDamaged("model.safetensors: invalid header")

    said: list[str] = []
    assert restore(tmp_path, load, said.append) == 1
    assert "invalid header" in said[0] and checkpoints(tmp_path) == [one]


@pytest.mark.parametrize("name", ["model.safetensors", "adapters/a.safetensors"])
def test_a_checkpoint_with_a_changed_bit_is_skipped_by_name_and_the_one_before_it_is_used(
    tmp_path: Path, name: str
) -> None:
    first, second = written(tmp_path, 1, 2)
    content = bytearray((second / name).read_bytes())
    content[2500] ^= 1
    (second / name).write_bytes(content)
    loaded: list[Path] = []
    said: list[str] = []
    assert restore(tmp_path, loaded.append, said.append) == 1
    assert loaded == [first] and f"{name} has changed since it was written" in said[0]


def test_a_changed_step_is_noticed(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    (tmp_path / "checkpoints" / "step_000002" / "ajet.json").write_text('{"step": 3, "version": 2}')
    said: list[str] = []
    assert restore(tmp_path, lambda path: None, said.append) == 1
    assert "its ajet.json is that of step 3" in said[0]


def test_a_checkpoint_of_an_earlier_release_has_only_sizes(tmp_path: Path) -> None:
    (only,) = written(tmp_path, 1)
    sizes = {name: of["size"] for name, of in json.loads((only / "files.json").read_text()).items()}
    (only / "files.json").write_text(json.dumps(sizes))
    assert restore(tmp_path, lambda path: None, print) == 1


def test_checkpoints_that_all_cannot_be_loaded_keep_their_names(tmp_path: Path) -> None:
    paths = written(tmp_path, 1, 2)

    def load(checkpoint: Path) -> None:
        raise CheckpointDamaged(f"{checkpoint.name}: unknown model type")

    said: list[str] = []
    with pytest.raises(AjetError, match=r"^step_000002: unknown model type\. No checkpoint .*versions\.json"):
        restore(tmp_path, load, said.append)
    assert checkpoints(tmp_path) == paths and not said


def test_an_incomplete_checkpoint_between_the_refused_and_the_loaded_one_is_named_too(tmp_path: Path) -> None:
    one, two, three = written(tmp_path, 1, 2, 3)
    emptied(two)

    def load(checkpoint: Path) -> None:
        if checkpoint == three:
            raise CheckpointDamaged("invalid header")

    said: list[str] = []
    assert restore(tmp_path, load, said.append) == 1
    assert [line.partition(" is damaged")[0] for line in said] == [f"checkpoint {three}", f"checkpoint {two}"]
    assert checkpoints(tmp_path) == [one]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"type": "episode", "step": 1}', 'has no "id"'),
        ('{"type": "superseded", "step": 1}', 'has no "from_step"'),
        ('{"type": "train"}', 'has no "step"'),
        ('{"type": "train", "step": "1"}', "has the \"step\" '1'"),
        ('{"type": "superseded", "from_step": null}', 'has the "from_step" None'),
        ("[]", "is not a JSON object"),
    ],
)
def test_a_line_of_the_journal_that_lacks_a_field_is_named(tmp_path: Path, line: str, fault: str) -> None:
    (tmp_path / "episodes.jsonl").write_text(f"{line}\n")
    with pytest.raises(AjetError, match=rf"episodes\.jsonl:1: {fault}, so the file was damaged"):
        RunRecorder(tmp_path)


def test_a_run_without_an_intact_checkpoint_does_not_begin_anew_in_silence(tmp_path: Path) -> None:
    for checkpoint in written(tmp_path, 1, 2):
        emptied(checkpoint)
    for _ in range(2):
        with pytest.raises(AjetError, match="no checkpoint is intact"):
            restore(tmp_path, lambda checkpoint: None, lambda text: None)


def test_a_run_that_has_no_checkpoint_yet_begins_at_the_start(tmp_path: Path) -> None:
    assert restore(tmp_path, lambda checkpoint: None, lambda text: None) == 0


def test_a_validation_reward_can_be_added_to_a_checkpoint_which_stays_intact(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path)
    (path,) = written(tmp_path, 3)
    recorder.validated(3, 0.5)
    assert json.loads((path / "ajet.json").read_text())["validation_reward"] == 0.5
    assert checkpoints(tmp_path) == [path]


def test_every_file_and_folder_of_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        events.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        fsync(descriptor)

    def renamed(new: Path, old: Path) -> None:
        events.append(f"rename {old}")
        rename(new, old)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to see which file is synced")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    (final,) = written(tmp_path, 1)
    partial = final.with_name(f".partial_{final.name}")
    at = events.index(f"rename {final}")
    inside = ["", "/model.safetensors", "/adapters", "/adapters/a.safetensors", "/ajet.json", "/files.json"]
    assert {f"sync {partial}{name}" for name in inside} <= set(events[:at])
    assert events[at + 1 :] == [f"sync {final.parent}"], "the name itself is on the disk, too"


# ------------------------------------------------------------------ disks that cannot be written


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory, at a folder."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"mount cannot be run: {error}")
    if done.returncode:
        pytest.skip(f"this user cannot mount a file system: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line_with_path_and_remedy_and_costs_no_older_checkpoint(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "disk"
    with mounted(run_dir, "size=64k"):
        recorder = RunRecorder(run_dir)
        (one,) = written(run_dir, 1)

        def large(path: Path) -> None:
            save(path)
            (path / "more").write_bytes(bytes(1 << 20))

        with pytest.raises(
            AjetError, match=r"step_000002: cannot be written: No space left.*Free some space"
        ):
            recorder.checkpoint(2, large, {}, keep_last=1)
        assert checkpoints(run_dir) == [one]
        with pytest.raises(
            AjetError, match=r"metrics\.jsonl: cannot be written: No space left.*Free some space"
        ):
            for step in range(10_000):
                recorder.metrics("train", step, {"reward": 0.0})
        recorder.close()


def test_a_disk_that_is_mounted_read_only_is_one_line_with_path_and_remedy(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "disk", "ro"),
        pytest.raises(AjetError, match=r"disk: cannot be written: Read-only file system\. Choose a folder"),
    ):
        RunRecorder(tmp_path / "disk")


def test_a_limit_on_the_size_of_files_is_one_line_with_path_and_remedy(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(
            AjetError, match=r"step_000001: cannot be written: File too large\. Raise the limit"
        ):
            recorder.checkpoint(1, save, {}, keep_last=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list((tmp_path / module.CHECKPOINTS).iterdir()), "nothing partial takes space"
