"""Runs the benchmarks of this folder one after the other, and prints the last line of each: its JSON object.

    python bench/all.py                  # all of them: about an hour
    python bench/all.py gateway tracker  # some

`credit.py` and `steering.py` are not run, because they take hours. `local.py`, `prove_h100.py`, `verl_trees.py` and `verl_scale.py`
are not, because they need separate environments (`make bench-local`, `make prove-gpu`, `make bench-verl`, `make bench-scale`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOT_RUN = {
    "all",
    "save",
    "credit",
    "local",
    "prove_h100",
    "verl_trees",
    "verl_scale",
    "steering",
    "steering_simulated",
}


def main() -> None:
    names = [p.stem for p in sorted(HERE.glob("*.py")) if p.stem not in NOT_RUN and _is_program(p)]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    chosen = parser.parse_args().names or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    failed = [name for name in chosen if not _run(name)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _is_program(path: Path) -> bool:
    return '\nif __name__ == "__main__":' in path.read_text()


def _run(name: str) -> bool:
    """Whether a benchmark succeeded; prints the last line of its output, or of its errors."""
    started = time.monotonic()
    ran = subprocess.run([sys.executable, str(HERE / f"{name}.py")], capture_output=True, text=True)
    lines = (ran.stderr if ran.returncode else ran.stdout).strip().splitlines()
    print(f"{name} ({time.monotonic() - started:.0f} s): {lines[-1] if lines else '(no output)'}", flush=True)
    return ran.returncode == 0


if __name__ == "__main__":
    main()
