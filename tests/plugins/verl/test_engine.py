"""Calls to verl's servers: aborted ones continue, cancelled ones stop in the server, and dead servers get none."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, open_machine


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Any]]:
    """What the driver prints. One Ray cluster serves all tests, because its start takes most of the time."""
    with tempfile.TemporaryDirectory() as folder, open_machine(Path(folder)) as machine:
        yield _printed(machine)


def _printed(machine: Machine) -> dict[str, Any]:
    driver = str(Path(__file__).with_name("engine_driver.py"))
    lines = machine.run(sys.executable, driver, seconds=4 * PATIENCE).strip().splitlines()
    printed: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    return printed


def test_an_aborted_call_continues_after_its_last_token(found: dict[str, Any]) -> None:
    resumed, cut = found["resumed"]["answers"]
    assert resumed == {
        "tokens": [11, 12, 13, 14, 3],
        "logprobs": [-1, -2, -3, -4, -5],
        "versions": [4, 4, 4, 5, 5],
        "finish": "stop",
        "experts": [
            4,
            4,
            4,
            4,
            5,
            5,
        ],  # of two prompt tokens and four sampled ones; nothing followed the last
    }
    assert cut["experts"] is None
    assert cut["finish"] == "length" and len(cut["tokens"]) == 9
    first, second, _ = found["resumed"]["seen"]
    assert (first["prompt"], first["max_tokens"]) == ([1, 2], 9)
    assert (second["prompt"], second["max_tokens"]) == ([1, 2, 11, 12, 13], 6)
    assert "seed" not in first  # the continued call would repeat its random numbers
    assert first["temperature"] == 1.0 and first["logprobs"] and first["ignore_eos"]


def test_a_call_has_a_seed_only_with_verls_full_determinism(found: dict[str, Any]) -> None:
    assert "seed" not in found["seeds"]["usual"]
    assert found["seeds"]["deterministic"]["seed"] == 7


def test_the_load_balancer_is_asked_once_for_all_calls_of_an_episode(found: dict[str, Any]) -> None:
    assert found["resumed"]["counted"] == [1, True], "while the episode runs, and when it has ended"


def test_a_cancelled_call_is_cancelled_in_its_server(found: dict[str, Any]) -> None:
    assert found["cancelled"] == {"begun": True, "stopped": True, "released": True}


def test_calls_of_a_dead_server_go_to_the_others(found: dict[str, Any]) -> None:
    dead = found["dead"]
    assert dead["moved"], "the call was not repeated on the other server"
    assert len(dead["same_episode"]) in (5, 9) and dead["others"] == [9] * 4
    (said,) = dead["said"]
    assert said.startswith(f"inference server {dead['busy']} is dead; its calls go to the others: ")
    assert not dead["failed_early"]


def test_without_servers_the_run_ends_with_an_error_that_names_them(found: dict[str, Any]) -> None:
    dead = found["dead"]
    assert dead["error"].startswith("no inference server is left. ")
    assert all(f"{name}: " in dead["error"] for name in dead["names"])
    assert dead["failed"] == [dead["error"]]


def test_another_process_reports_progress(found: dict[str, Any]) -> None:
    assert found["pulses"]["events"] == ["alive"]
