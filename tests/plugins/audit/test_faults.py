"""`ajet audit` names each fault that was planted into the files of a run, in one line."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.cli import run_program
from tests.plugins.audit.conftest import Runs, audited, everything, judged

STEP = "batches/step_000002.npz"


@pytest.fixture(scope="module")
def _kept() -> dict[str, Path]:
    return {}


@pytest.fixture
def folder(runs: Runs, _kept: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a run in which nothing is wrong."""
    if "run" not in _kept:
        _kept["run"] = shutil.move(
            runs.run(everything, judged, mini_batches=2), tmp_path_factory.mktemp("whole")
        )
    copy = runs.folder / "copy"
    shutil.copytree(_kept["run"], copy)
    return copy


def change_batch(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change the record of a step: its arrays, and what `about` says."""
    with np.load(folder / STEP) as file:
        arrays = {name: file[name].copy() for name in file.files}
    about = json.loads(arrays.pop("about").tobytes())
    change(arrays, about)
    told = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez_compressed(folder / STEP, about=told, **arrays)


def change_journal(folder: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Change the journal's lines of the second step."""
    path = folder / "episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    own = [line for line in lines if line["step"] == 2]
    others = [line for line in lines if line["step"] != 2]
    change(own)
    path.write_text("".join(json.dumps(line) + "\n" for line in (*others, *own)))


def a_token_twice(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        about["samples"][0]["spans"].append(about["samples"][0]["spans"][0])

    change_batch(folder, change)


def a_row_twice_in_a_pass(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        about["mini_batches"][0].append(about["mini_batches"][0][0])

    change_batch(folder, change)


def a_wrong_context(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        arrays["token_ids"][2] += 1

    change_batch(folder, change)


def a_dropped_call(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        start, end, *_ = about["samples"][0]["spans"].pop()
        for name in ("mask", "weights", "advantages"):
            arrays[name][start:end] = 0

    change_batch(folder, change)


def a_doubled_weight(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        arrays["weights"][about["samples"][0]["spans"][0][0]] *= 2

    change_batch(folder, change)


def all_weights_doubled(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        arrays["weights"] *= 2

    change_batch(folder, change)


def a_weight_on_a_prompt_token(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        arrays["weights"][1] = 0.1

    change_batch(folder, change)


def a_prompt_token_in_the_mask(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        arrays["mask"][1] = True

    change_batch(folder, change)


def swapped_advantages(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        arrays["advantages"] *= -1

    change_batch(folder, change)


def an_episode_of_another_step(folder: Path) -> None:
    def change(own: list[dict[str, Any]]) -> None:
        own[0]["step"] = 1

    change_journal(folder, change)


def an_episode_that_nothing_explains(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        name = about["samples"][0]["episode"]
        del about["groups"][name]

    change_batch(folder, change)


def a_filter_that_the_job_does_not_name(folder: Path) -> None:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        (start, end, call, *_) = about["samples"][0]["spans"].pop()
        for name in ("mask", "weights", "advantages"):
            arrays[name][start:end] = 0
        about["left_out"]["calls"]["over_long"] = {about["samples"][0]["episode"]: [call]}

    change_batch(folder, change)


def a_changed_logprob(folder: Path) -> None:
    def change(own: list[dict[str, Any]]) -> None:
        tokens = own[0]["calls"][0]["tokens"]
        values = np.frombuffer(base64.b64decode(tokens["logprobs"]), "<f4").copy()
        values[0] -= 0.5
        tokens["logprobs"] = base64.b64encode(values.tobytes()).decode()

    change_journal(folder, change)


def a_changed_message(folder: Path) -> None:
    def change(own: list[dict[str, Any]]) -> None:
        for rows in own[0]["chats"].values():
            for _, message in rows:
                if message["role"] == "user":
                    message["content"] += "!"

    change_journal(folder, change)


def a_message_that_is_not_in_the_prompt(folder: Path) -> None:
    def change(own: list[dict[str, Any]]) -> None:
        key = own[0]["calls"][0]["key"]
        result = next(i for i, (_, m) in enumerate(own[0]["chats"][key]) if m["role"] == "tool")
        own[0]["chats"][key][result][1]["content"] = "8"

    change_journal(folder, change)


def a_changed_token_of_a_prompt(folder: Path) -> None:
    def change(own: list[dict[str, Any]]) -> None:
        rows = next(iter(own[0]["trees"].values()))
        values = np.frombuffer(base64.b64decode(rows[0][2]), "<i4").copy()
        values[2] += 1
        rows[0][2] = base64.b64encode(values.tobytes()).decode()

    change_journal(folder, change)


def a_changed_reward(folder: Path) -> None:
    def change(own: list[dict[str, Any]]) -> None:
        own[0]["reward"] += 2

    change_journal(folder, change)


def a_failure_that_was_trained(folder: Path) -> None:
    def change(own: list[dict[str, Any]]) -> None:
        own[0]["failure"] = "workflow:Error"

    change_journal(folder, change)


def a_call_without_a_reason(folder: Path) -> None:
    def change(own: list[dict[str, Any]]) -> None:
        own[0]["calls"][0]["tokens"]["trained"] = False

    change_journal(folder, change)


def another_number_of_tokens_in_the_trainer(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1]["tokens_trained"] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def a_missing_step(folder: Path) -> None:
    (folder / STEP).unlink()


def a_missing_line_of_metrics(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(True)[-1])


def a_truncated_record(folder: Path) -> None:
    os.truncate(folder / STEP, (folder / STEP).stat().st_size // 2)


def a_truncated_journal(folder: Path) -> None:
    os.truncate(folder / "episodes.jsonl", (folder / "episodes.jsonl").stat().st_size - 100)


def the_record_of_another_step(folder: Path) -> None:
    shutil.copyfile(folder / "batches" / "step_000001.npz", folder / STEP)


FAULTS = {
    a_token_twice: "a token is in the row twice",
    a_row_twice_in_a_pass: "does not have each row once",
    a_wrong_context: "is not that of the journal",
    a_dropped_call: "are neither trained nor excluded",
    a_doubled_weight: "a token has the weight",
    all_weights_doubled: "its weights add up to",
    a_weight_on_a_prompt_token: "token 1, which is only context, has the weight",
    a_prompt_token_in_the_mask: "1 tokens are trained that no call sampled",
    swapped_advantages: "its advantage is",
    an_episode_of_another_step: "is not one of its episodes in the journal",
    an_episode_that_nothing_explains: "episode",
    a_filter_that_the_job_does_not_name: "was left out by over_long, which the job does not name",
    a_changed_logprob: "its logprobs are not those that were trained",
    a_changed_message: "where the chat template writes",
    a_message_that_is_not_in_the_prompt: "where the chat template writes",
    a_changed_token_of_a_prompt: "where the chat template writes",
    a_changed_reward: "its advantage is",
    a_failure_that_was_trained: "but counts in its group",
    a_call_without_a_reason: "is marked as not trained, without a reason",
    another_number_of_tokens_in_the_trainer: "the trainer reports",
    a_missing_step: "what it trained is unknown",
    a_missing_line_of_metrics: "metrics.jsonl has no line of it",
    a_truncated_record: "step_000002.npz is damaged",
    a_truncated_journal: "its last line is cut off",
    the_record_of_another_step: "is the record of step 1",
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named(folder: Path, plant: Callable[[Path], None]) -> None:
    plant(folder)
    faults = audited(folder).faults
    assert any(FAULTS[plant] in fault for fault in faults), faults
    assert all("\n" not in fault for fault in faults)


def test_the_run_without_faults_has_none(folder: Path) -> None:
    assert audited(folder).faults == []


def test_the_command_prints_what_is_unexplained_and_ends_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_doubled_weight(folder)
    assert run_program(["audit", str(folder)]) == 1
    assert "\nunexplained: step 2: " in f"\n{capsys.readouterr().out}"
    assert run_program(["audit", str(folder), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["unexplained"]
