"""Runs a benchmark and keeps its figures in bench/results/NAME.json, from which tools/benchmarks_page.py makes a table of the site.

    python bench/save.py capture bench/capture.py
    make bench-local ARGS=step SAVE=local_step
    python bench/save.py --read h200.json prove_h200 bench/prove_h100.py --call 1   # was run on another machine

The figures are the last line that the benchmark prints, a JSON object. Commit, date, machine and command are added. A result
whose benchmark fails is not kept. The page says which names it shows (`AREAS` in tools/benchmarks_page.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="name of the result")
    parser.add_argument("--read", type=Path, metavar="FILE", help="read the object from a file; run nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the benchmark and its arguments")
    options = parser.parse_args()
    origin = measured()
    figures = json.loads(options.read.read_text() if options.read else last_line(options.command))
    if "device" in figures:
        origin["machine"] = figures["device"]
    path = RESULTS / f"{options.name}.json"
    result = {**origin, "command": " ".join(options.command), "figures": figures}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path} is written; python tools/benchmarks_page.py prints it")


def measured() -> dict[str, Any]:
    """What this process measures: ``commit`` (with "-dirty" if files differ from it), ``date`` and ``machine``."""
    describe = ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
    return {"commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine}


def last_line(command: list[str]) -> str:
    """The last line that a benchmark prints; all of its output is shown. Exits as it does if it fails."""
    line = ""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
    if process.returncode:
        sys.exit(process.returncode)
    return line


if __name__ == "__main__":
    main()
