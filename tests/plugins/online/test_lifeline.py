"""Processes end with the one that started them, however that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from tests.patience import PATIENCE

CHILD = "from ajet_online.lifeline import hold_on; hold_on(); import signal, sys; print('up', flush=True); signal.pause()"
PARENT = f"""
import os, sys
from ajet_online.lifeline import lifeline, start
with lifeline() as line:
    child = start([sys.executable, "-c", {CHILD!r}], line, dict(os.environ))
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.mark.whole
def test_a_child_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "up\n"
    parent.kill()
    parent.wait(PATIENCE)
    try:
        assert parent.stdout.read() == "", "until the child, which has the same output, has ended"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
