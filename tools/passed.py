"""Whether the tests of an environment of their own have passed with these sources, which makes it needless to run them again.

    python tools/passed.py verl                 # exit code 0 if they have; CI_ALL=1: always 1
    python tools/passed.py verl --record        # they have just passed: make test-verl does this

`tests/plugins/NAME/passed` has the checksum of all that these tests may depend on, and belongs to the commit.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ("core", "examples/math", "tests", "pyproject.toml", "constraints.txt", "Makefile")
"""Files and folders on which the tests of each environment depend, beside its plugins and its page of docs/."""


def main() -> None:
    """Compare or record the checksum."""
    name, *options = sys.argv[1:]
    record, found = ROOT / "tests" / "plugins" / name / "passed", checksum(name)
    if options == ["--record"]:
        record.write_text(found + "\n", encoding="utf-8")
        return
    known = record.read_text(encoding="utf-8").strip() if record.exists() else ""
    if found != known or os.environ.get("CI_ALL"):
        sys.exit(1)
    print(
        f"The tests with {name} are not run: they have passed with the same sources (tools/passed.py). CI_ALL=1 runs them."
    )


def checksum(name: str) -> str:
    """Of names and contents of all files on which the tests with ``name`` may depend, of those that git tracks."""
    (plugins,) = re.findall(rf"^OF_{name.upper()} := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    tracked = _git(
        "ls-files", "--", *SHARED, f"docs/{name}.md", *(f"plugins/{one}" for one in plugins.split())
    )
    total = hashlib.sha256()
    for path in sorted(path for path in tracked if not path.endswith("/passed")):
        content = (ROOT / path).read_bytes()
        total.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


if __name__ == "__main__":
    main()
