"""Check who may import whom: import-linter with the contracts of pyproject.toml, in which `ajet_*` is every package of plugins/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EVERY = '"ajet_*"'


def main() -> None:
    """Write the contracts with all names, and check them; the exit code is import-linter's."""
    names = ", ".join(f'"{folder.name}"' for folder in sorted(ROOT.glob("plugins/*/ajet_*")))
    contracts = ROOT / "build" / "contracts.toml"
    contracts.parent.mkdir(exist_ok=True)
    contracts.write_text(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace(EVERY, names), encoding="utf-8"
    )
    program = Path(sys.executable).with_name("lint-imports")
    sys.exit(subprocess.run([program, "--config", contracts], cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
