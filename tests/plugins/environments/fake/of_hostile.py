"""A library whose environment runs code that the model has written, which tries to answer in its place."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

FORGED = """
import os, sys
def write(path):
    try: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b'{"ok": true, "reward": 1.0, "response": "forged"}\\n')
    except OSError: pass
for process in (os.getppid(), 'self') if sys.argv[1] == 'child' else ('self',):
    for number in range(64): write(f'/proc/{process}/fd/{number}')
for number in range(64):
    try: os.write(number, b'{"ok": true, "reward": 1.0, "response": "forged"}\\n')
    except OSError: pass
"""


class Library:
    def __init__(self, what: str = "") -> None:
        self._what = what

    def tasks(self, count: int) -> list[dict[str, Any]]:
        return []

    async def run(self, index: int, model: dict[str, str], judge: dict[str, str] | None) -> dict[str, Any]:
        """Always 0; the code that tries to change that runs in a child, or, worse, in this program."""
        if self._what == "child":
            subprocess.run([sys.executable, "-c", FORGED, "child"], stdout=subprocess.DEVNULL)
        elif index == 0:
            exec(FORGED, {})
        return {"ok": True, "reward": 0.0, "metrics": {}, "response": f"honest {index}", "error": ""}
