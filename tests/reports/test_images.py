"""Images of a run: one file each in the run folder, none in the journal, shown by `ajet show` and in its page."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ajet.cli import run_program
from ajet.reports.credit import run_credit
from ajet.reports.episode import episode_report
from ajet.reports.folder import read_run
from ajet.reports.run_summary import summarise
from ajet.reports.token_text import IMAGE, TokenText
from ajet.rollout.image_folder import IMAGES, image_file, restore_images
from ajet.rollout.recorder import JOURNAL, RunRecorder
from ajet.testing import ScriptedEngine
from tests.processors import picture, seen, vision

from .conftest import ask, page

RED, BLUE = picture("red"), picture("blue")


async def looks(task: Any) -> str:
    messages: list[Any] = [seen("Which colour?", RED)]
    messages.append(await ask(messages))
    messages.append(seen("And this?", BLUE, RED))
    return (await ask(messages)).content or ""


def recorded(bench: Any, folder: Path) -> list[Any]:
    """Two episodes in a run folder."""
    of_qwen = vision("qwen2_5_vl")
    engine = ScriptedEngine(
        of_qwen.processor.tokenizer, lambda request, prompt: "red", model_type="qwen2_5_vl", vision=of_qwen
    )
    episodes: list[Any] = bench(engine).run(looks, group_size=2)
    recorder = RunRecorder(folder)
    for episode in episodes:
        assert episode.failure is None, episode.error
        recorder.episode(episode, phase="train", step=1)
    recorder.close()
    of_qwen.processor.tokenizer.save_pretrained(folder / "tokenizer")
    return episodes


def test_each_image_is_a_file_of_its_own_and_the_journal_has_only_references(
    bench: Any, tmp_path: Path
) -> None:
    recorded(bench, tmp_path)
    names = {path.name: path.read_bytes() for path in (tmp_path / IMAGES).iterdir()}
    assert names == {f"{hashlib.sha256(data).hexdigest()}.png": data for data in (RED, BLUE)}
    journal = (tmp_path / JOURNAL).read_text()
    assert "sha256:" in journal
    assert "base64" not in journal and "iVBOR" not in journal


def test_a_trajectory_names_their_files(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    episode, _ = recorded(bench, tmp_path)
    assert run_program(["show", str(tmp_path), episode.id, "--atif"]) == 0
    first, answer, second, last = json.loads(capsys.readouterr().out)["steps"]
    paths = [
        part["source"]["path"] for step in (first, second) for part in step["message"] if "source" in part
    ]
    assert [Path(path).read_bytes() for path in paths] == [RED, BLUE, RED]
    assert answer["message"] == last["message"] == "red"
    assert "prompt_token_ids" not in last["metrics"] and last["metrics"]["completion_token_ids"]


def test_an_episode_that_is_read_again_trains_the_same_tokens_and_images(bench: Any, tmp_path: Path) -> None:
    episodes = recorded(bench, tmp_path)
    run = read_run(tmp_path)
    for entry, episode in zip(run.entries, sorted(episodes, key=lambda e: e.plan.id), strict=True):
        again = run.episode(entry)
        restore_images(again.record, tmp_path)
        selection = run_credit(run).selection
        (one,), (other,) = (selection.choose(e)[0] for e in (episode, again))
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.images == other.images
        assert {image.data for image in other.images} == {RED, BLUE}


def test_a_damaged_or_missing_file_is_not_taken_for_the_image(bench: Any, tmp_path: Path) -> None:
    recorded(bench, tmp_path)
    red, blue = (f"sha256:{hashlib.sha256(data).hexdigest()}" for data in (RED, BLUE))
    found = image_file(tmp_path, red)
    assert found
    found.write_bytes(BLUE)
    run = read_run(tmp_path)
    record = run.episode(run.entries[0]).record
    restore_images(record, tmp_path)
    assert list(record.images) == [blue]


def report_of(folder: Path) -> Any:
    run = read_run(folder)
    return episode_report(run, run.entries[0], run_credit(run), TokenText(folder))


def test_show_names_the_files_and_writes_placeholders_once(bench: Any, tmp_path: Path) -> None:
    recorded(bench, tmp_path)
    (conversation,) = report_of(tmp_path).conversations
    shown = [line.images for line in conversation.chat if line.images]
    assert [[path.read_bytes() for path in paths] for paths in shown] == [[RED], [BLUE, RED]]
    texts = [text for part in conversation.tokens for text in part.texts]
    assert texts.count(IMAGE) == 3


def test_the_page_contains_the_images_and_loads_nothing(bench: Any, tmp_path: Path) -> None:
    recorded(bench, tmp_path)
    run = read_run(tmp_path)
    written = page(summarise(run, run_credit(run)), [report_of(tmp_path)], everything=True)
    assert written.count("<img alt='image ") == 3
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in written


def test_the_page_contains_no_file_to_which_a_link_in_the_place_of_an_image_leads(
    bench: Any, tmp_path: Path
) -> None:
    recorded(bench, tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("it is 42")
    for image in (tmp_path / "images").iterdir():
        image.unlink()
        image.symlink_to(secret)
    run = read_run(tmp_path)
    written = page(summarise(run, run_credit(run)), [report_of(tmp_path)], everything=True)
    assert "<img" not in written and written.count(": its file holds something else") == 3
