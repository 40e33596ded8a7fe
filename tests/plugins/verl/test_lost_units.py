"""Groups on a real Ray cluster with verl's queue: their runner dies, they are cancelled, their run is resumed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine

DRIVER = Path(__file__).with_name("units_driver.py")


def test_nothing_of_a_group_is_lost_doubled_or_left(machine: Machine) -> None:
    printed = machine.run(sys.executable, str(DRIVER), seconds=4 * PATIENCE)
    found = json.loads(printed.strip().splitlines()[-1])

    killed = found["killed"]
    assert not killed["stale"], "a row of the run that died is left"
    assert killed["status"].pop("waits") == "running"
    assert set(killed["status"].values()) == {"finished"}
    assert set(killed["rows"].values()) == {3} and len(killed["rows"]) == 9
    assert killed["lines"] == 0, "in this mode the step that learns is not known yet"
    assert sum("an episode runner was lost" in text for text in killed["messages"]) == 1

    cancelled = found["cancelled"]
    assert cancelled["left"] == [] and cancelled["seconds"] < 30
    assert cancelled["ended"] == ["five", "four", "kills", "one", "seven", "six", "three", "two"]
    assert cancelled["rewards"] == [0.0, 0.25, 0.0, 0.75]

    resumed = found["resumed"]
    assert resumed["episodes"] == [8, 24] and resumed["lost"] == [1, 0]
    assert resumed["steps"] == {"1": 8, "2": 24} and resumed["ids"] == 32
    assert resumed["failed"] == {"workflow:RuntimeError": 8}
    assert found["validation"]["episodes"] == 3 and found["validation"]["episodes_failed"] == 0
