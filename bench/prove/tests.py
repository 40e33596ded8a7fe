"""The tests that are marked gpu."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from prove.part import Options, main

ROOT = Path(__file__).resolve().parents[2]


def run(options: Options) -> dict[str, Any]:
    """The last line of pytest. Raises RuntimeError if a test fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/plugins/local/test_gpu.py",
    ]
    chosen = [] if options.reduced else ["-m", "gpu"]
    done = subprocess.run([*command, *chosen], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    summary = (done.stdout.strip().splitlines() or ["no output"])[-1]
    if done.returncode:
        raise RuntimeError(summary)
    return {"summary": summary}


if __name__ == "__main__":
    main(run, __doc__)
