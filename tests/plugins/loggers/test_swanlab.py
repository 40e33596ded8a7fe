"""The logger `swanlab` with SwanLab itself, offline: what its files contain.

SwanLab does not fit beside the other tools of the tests: `make test-matrix ARGS=loggers` runs these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import ConfigError
from ajet_loggers.tool import known_id

from .conftest import Run
from .logged import Logged, job_of, load, recorded, same_as_the_run_folder
from .wandb_file import messages

if find_spec("swanlab") is None:
    pytest.skip("SwanLab is not installed: make test-matrix", allow_module_level=True)
OFFLINE = {"type": "swanlab", "mode": "offline"}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SwanLab reads no settings and no login of this machine."""
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "swanlab"))
    monkeypatch.setenv("SWANLAB_CONFIG_DIR", str(tmp_path / "swanlab"))
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)


def folders(run_dir: Path) -> list[Path]:
    """What SwanLab has written: a folder for each start of the run."""
    return sorted((run_dir / "swanlog").glob("run-*"))


def records(folder: Path) -> Iterator[Any]:
    """The records of one start. SwanLab writes them in the format of wandb's."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    (file,) = folder.glob("*.swanlab")
    for data in messages(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        yield record


def read(run_dir: Path) -> Logged:
    metrics: dict[int, Any] = {}
    tables = {}
    checkpoints = {}
    config: dict[str, Any] = {}
    for folder in folders(run_dir):
        shown = yaml.safe_load((folder / "files" / "config.yaml").read_text())
        config |= {key: entry["value"] for key, entry in shown.items()}
        for record in records(folder):
            scalar, media = record.scalar, record.media
            if scalar.key and not scalar.key.startswith("__swanlab__"):  # its own figures of the machine
                metrics.setdefault(scalar.step, {})[scalar.key] = scalar.value.number
            for item in media.value.items:
                (file,) = (folder / "media").glob(f"*/{item.filename}")
                if media.key == "checkpoint":
                    checkpoints[media.step] = file.read_text()
                else:
                    tables[(media.key.removeprefix("episodes/"), media.step)] = load(file)["rowData"]
    # SwanLab writes {} for a section that is null.
    config |= {key: None for key, value in job_of(run_dir).items() if value is None and config[key] == {}}
    return Logged(config, metrics, tables, checkpoints)


def test_swanlab_has_what_the_run_folder_has(
    run: Run, said: Callable[[], list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(OFFLINE)
    same_as_the_run_folder(read(result.run_dir), result.run_dir)
    assert not said() and "ERROR" not in capfd.readouterr().out
    (folder,) = folders(result.run_dir)
    (begun,) = [record.start for record in records(folder) if record.HasField("start")]
    assert (begun.project, begun.name) == ("AgentJet", result.run_dir.name)
    assert begun.id == known_id(result.run_dir, "swanlab")
    assert states(folder) == ["RUN_STATE_FINISHED"]


def states(folder: Path) -> list[str]:
    """How a start of the run has ended."""
    from swanlab.proto.swanlab.run.v1.run_pb2 import RunState

    return [RunState.Name(r.finish.state) for r in records(folder) if r.HasField("finish")]


def test_checkpoints_are_paths_unless_they_are_uploaded(run: Run) -> None:
    def files(run_dir: Path) -> set[str]:
        (folder,) = folders(run_dir)
        paths = [record.save.source_path for record in records(folder) if record.HasField("save")]
        inside = run_dir / "checkpoints"
        return {str(Path(p).relative_to(inside)) for p in paths if Path(p).is_relative_to(inside)}

    assert files(run(OFFLINE).run_dir) == set()
    run_dir = run({**OFFLINE, "upload_checkpoints": True}).run_dir
    written = (run_dir / "checkpoints").rglob("*")
    assert (
        files(run_dir)
        == {str(p.relative_to(run_dir / "checkpoints")) for p in written if p.is_file()}
        != set()
    )


def test_a_resumed_run_keeps_its_id(run: Run) -> None:
    result = run(OFFLINE, steps=1)
    run(OFFLINE, steps=2, resume=result.run_dir)
    both = folders(result.run_dir)
    ids = [record.start.id for folder in both for record in records(folder) if record.HasField("start")]
    assert ids == [known_id(result.run_dir, "swanlab")] * 2
    assert read(result.run_dir).metrics == recorded(result.run_dir)


def test_a_failed_run_is_marked_as_crashed(run: Run) -> None:
    with pytest.raises(Exception, match="all 2 episodes failed"):
        run(OFFLINE, workflow="fails")
    (run_dir,) = Path("runs").iterdir()
    (folder,) = folders(run_dir.resolve())
    assert states(folder) == ["RUN_STATE_CRASHED"]


def test_what_the_run_prints_is_not_sent_to_swanlab(run: Run) -> None:
    terminal, hook = sys.stdout, sys.excepthook
    (folder,) = folders(run(OFFLINE).run_dir)
    assert not [record for record in records(folder) if record.HasField("log")]
    assert (sys.stdout, sys.excepthook) == (terminal, hook)


def test_a_missing_login_is_one_line_and_the_run_continues(run: Run, said: Callable[[], list[str]]) -> None:
    result = run({"type": "swanlab", "mode": "online"})
    unreachable, counted = said()
    assert unreachable.startswith("logger swanlab: sending to SwanLab failed (RuntimeError: ")
    assert "no API key was provided" in unreachable and unreachable.endswith("The run continues.")
    assert counted == "logger swanlab: 12 of 12 records were not sent to SwanLab"
    assert recorded(result.run_dir).keys() == {0, 1, 2}


def test_a_project_that_swanlab_would_refuse_is_refused_before_the_run(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"run\.loggers\.0.*project") as raised:
        run({**OFFLINE, "project": "my agent"})
    assert "\n" not in str(raised.value)
