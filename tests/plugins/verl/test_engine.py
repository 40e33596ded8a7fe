"""Calls that verl's servers break off go on, and every token keeps the version that sampled it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.plugins.verl.conftest import Machine


def test_a_call_that_is_broken_off_goes_on_where_it_was(machine: Machine) -> None:
    printed = machine.run(sys.executable, str(Path(__file__).with_name("engine_driver.py")), seconds=120)
    found = json.loads(printed.strip().splitlines()[-1])
    resumed, cut = found["answers"]
    assert resumed == {
        "tokens": [11, 12, 13, 14, 3],
        "logprobs": [-1, -2, -3, -4, -5],
        "versions": [4, 4, 4, 5, 5],
        "finish": "stop",
    }
    assert cut["finish"] == "length" and len(cut["tokens"]) == 9
    first, second, _ = found["seen"]
    assert (first["prompt"], first["max_tokens"]) == ([1, 2], 9)
    assert (second["prompt"], second["max_tokens"]) == ([1, 2, 11, 12, 13], 6)
    assert "seed" not in first  # its random numbers would come twice
    assert first["temperature"] == 1.0 and first["logprobs"] and first["ignore_eos"]
