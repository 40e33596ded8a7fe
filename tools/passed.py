"""Whether the tests of an environment of their own have passed with these sources, which makes it needless to run them again.

    python tools/passed.py verl                 # exit code 0 if they have; CI_ALL=1: always 1
    python tools/passed.py verl --record        # they have just passed: make test-verl does this

What counts is the content of the core, of the plugins that the environment installs, and of the tests; `tests/plugins/NAME/passed` has
its checksum and belongs to the commit.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = {
    "verl": "openai_sdk environments readers judges local loggers verl vllm online audit advice",
    "trinity": "openai_sdk environments readers judges local loggers trinity",
}
"""Its plugins, as in the Makefile."""
TESTS = {"verl": "verl vllm", "trinity": "trinity"}


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
    """Of names and contents of all files on which the tests with ``name`` depend, as git knows them."""
    folders = ["core", *(f"plugins/{plugin}" for plugin in INSTALLED[name].split())]
    folders += [f"tests/plugins/{tested}" for tested in TESTS[name].split()]
    tracked = _git(
        "ls-files", "--", "pyproject.toml", *folders, ":(glob)tests/*.py", ":(glob)tests/plugins/*.py"
    )
    total = hashlib.sha256()
    for path in sorted(path for path in tracked if not path.endswith((".md", "/passed"))):
        content = (ROOT / path).read_bytes()
        total.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


if __name__ == "__main__":
    main()
