"""The logger `tensorboard`: what the event files of a run contain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet import Task
from ajet.chat.images import Images
from ajet.interfaces.events import EpisodeEnd, RunStart
from ajet_loggers.tensorboard import TensorBoard
from tests.core.test_hooks import Training, training  # noqa: F401
from tests.processors import picture

from .conftest import Run
from .logged import job_of, recorded


def scalars(run_dir: Path) -> dict[int, dict[str, float]]:
    """Every scalar by step, as TensorBoard shows it."""
    steps: dict[int, dict[str, float]] = {}
    events = accumulated(run_dir)
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            steps.setdefault(event.step, {})[tag] = event.value
    return steps


def texts(run_dir: Path) -> dict[tuple[str, int], str]:
    """Every text by tag and step."""
    events = accumulated(run_dir)
    return {
        (tag, event.step): event.tensor_proto.string_val[0].decode()
        for tag in events.Tags()["tensors"]
        for event in events.Tensors(tag)
    }


def accumulated(run_dir: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0}).Reload()


def same(logged: dict[int, dict[str, float]], run_dir: Path) -> bool:
    """Whether all figures of the run folder are logged, and no others; TensorBoard stores them as float32."""
    figures = {s: {k: float(np.float32(v)) for k, v in line.items()} for s, line in recorded(run_dir).items()}
    return logged == figures


@pytest.mark.kept
def test_every_run_has_event_files_with_all_figures_the_job_and_the_checkpoints(run: Run) -> None:
    result = run()
    assert same(scalars(result.run_dir), result.run_dir) and len(recorded(result.run_dir)) == 3
    written = texts(result.run_dir)
    last = str(result.checkpoint)
    assert written[("checkpoint", 2)] == last and written[("checkpoint", 1)] == last.replace(
        "000002", "000001"
    )
    job = (result.run_dir / "job.yaml").read_text()
    assert re.sub("^    ", "", written[("job", 0)], flags=re.M) == job.rstrip("\n") and job_of(result.run_dir)
    assert {tag for tag, _ in written} == {"job", "checkpoint"}, "episodes only if the job names it"


@pytest.mark.whole
def test_a_run_that_nothing_else_watches_does_not_build_its_timelines(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[Any] = []
    monkeypatch.setattr("ajet.runs.callbacks.all_timelines", lambda record: built.append(record) or [])
    run()
    assert not built
    run("tensorboard")
    assert len(built) == 4 + 4 + 3 * 2


@pytest.mark.whole
def test_a_job_that_names_it_gets_episodes_too(run: Run) -> None:
    result = run({"type": "tensorboard", "episodes": 3})
    written = texts(result.run_dir)
    assert same(scalars(result.run_dir), result.run_dir)
    for phase, steps in {"train": (1, 2), "validation": (0, 1, 2)}.items():
        for step in steps:
            text = written[(f"episodes/{phase}", step)]
            assert text.count("reward 1.0") == (3 if phase == "train" else 2)
            assert "    [assistant]\n    4\n\nresponse\n\n    4" in text


@pytest.mark.whole
def test_a_resumed_run_replaces_what_came_after_its_checkpoint(run: Run, training: Training) -> None:  # noqa: F811
    def stop(event: Any) -> None:
        if event.step == 2 and not stopped:
            stopped.append(event.step)
            raise KeyboardInterrupt

    stopped: list[int] = []
    training.attach("stopper", ajet_step_end=stop)
    with pytest.raises(KeyboardInterrupt):
        run(steps=3)
    (run_dir,) = (training.folder / "runs").iterdir()
    before = scalars(run_dir)
    assert before.keys() == {0, 1, 2}
    assert run(steps=3, resume=run_dir).steps == 3
    assert len(list((run_dir / "tensorboard").iterdir())) == 2
    assert same(scalars(run_dir), run_dir) and recorded(run_dir).keys() == {0, 1, 2, 3}


def test_markup_in_an_episode_is_text(tmp_path: Path) -> None:
    logger = TensorBoard()
    logger.run_start(RunStart(run_dir=tmp_path, config={}))
    hostile = "</pre><script>alert(1)</script>\n# big \ud83d\n![x](http://elsewhere/x.png)"
    chat = [{"role": "user", "content": hostile}, {"role": "assistant", "content": None}]
    task = Task(id="<b>", query=hostile)
    logger.episode_end(
        EpisodeEnd(
            run_dir=tmp_path,
            id="e",
            phase="train",
            step=1,
            task=task,
            reward=0.5,
            response=hostile,
            messages=[chat],
        )
    )
    logger.log(tmp_path, 1, {"reward": 0.5})
    logger.close()
    text = texts(tmp_path)[("episodes/train", 1)]
    first, _, rest = text.partition("\n")
    assert first == 'episode "e", task "<b>", reward 0.5, success null, failure null'
    assert "\ud83d" not in text and "# big ?" in text
    assert all(not line or line.startswith("    ") for line in rest.split("\n") if line != "response")


def test_the_images_of_one_episode_of_a_step_are_logged(tmp_path: Path) -> None:
    logger = TensorBoard(episodes=1)
    logger.run_start(RunStart(run_dir=tmp_path, config={}))
    image = Images().add(picture("red", form="JPEG"), "x")
    for name in ("e", "f"):
        logger.episode_end(
            EpisodeEnd(
                run_dir=tmp_path,
                id=name,
                phase="train",
                step=1,
                task=Task("t"),
                reward=0.5,
                images={image.ref: image},
            )
        )
    logger.close()
    events = accumulated(tmp_path)
    assert events.Tags()["images"] == ["images/train/0"]
    (shown,) = events.Images("images/train/0")
    assert (shown.width, shown.height) == (48, 32)
